"""Analyses: what a program holds, whether a device can run it, what it costs, and the memory that it needs."""
