"""Inputs: the arrays for the parameters of a model, from files, numbers and fillers."""
