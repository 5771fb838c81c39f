"""Comparisons: a model on several devices, and the first operation whose results differ."""
