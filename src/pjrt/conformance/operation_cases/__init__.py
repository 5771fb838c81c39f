"""The cases of operations: their smallest programs, a module for each kind of operation."""
