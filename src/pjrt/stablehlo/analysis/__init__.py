"""Analyses: what a program costs, and the memory that it needs."""
