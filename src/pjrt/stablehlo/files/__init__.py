"""Readers of program files: those of JAX, PyTorch/XLA, TensorFlow and XLA."""
