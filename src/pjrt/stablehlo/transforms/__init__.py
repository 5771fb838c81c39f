"""Transforms: programs made of programs, for given sizes, for one device of many, or of some of the operations."""
