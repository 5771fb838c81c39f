"""Encodings: how a program is written down, told apart by its bytes, and the one way to import jaxlib."""
