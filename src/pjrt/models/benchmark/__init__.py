"""Benchmarks: how long a model takes on devices, side by side."""
