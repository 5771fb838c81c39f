"""The needs of JAX, PyTorch and TensorFlow: their sequences of calls, and the operations of StableHLO."""
