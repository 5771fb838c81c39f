"""Shardings: what a program states about its devices, and the partitioner."""
