"""The expectations of XLA's C tests."""
