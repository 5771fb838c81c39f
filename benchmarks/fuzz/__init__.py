"""Fuzzing: mutated programs through the parser and the compilers, in processes that may die of them."""
