"""Optimizations of the interpreter: the same results, bit by bit, sooner."""
