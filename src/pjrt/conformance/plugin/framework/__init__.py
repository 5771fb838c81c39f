"""What JAX and PyTorch/XLA need of a plugin: their sequences of calls, and the operations of StableHLO."""
