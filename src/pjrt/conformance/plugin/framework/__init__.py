"""The needs of JAX, PyTorch/XLA and TensorFlow: their sequences of calls, and the operations of StableHLO."""
