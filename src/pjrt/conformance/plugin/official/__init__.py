"""What the C tests of XLA expect of a plugin."""
