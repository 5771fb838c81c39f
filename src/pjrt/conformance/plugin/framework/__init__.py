"""The needs of JAX and PyTorch/XLA: their sequences of calls, and the operations of StableHLO."""
