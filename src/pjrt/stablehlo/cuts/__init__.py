"""Cuts: programs made of parts of other programs."""
