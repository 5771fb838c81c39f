"""The devices of authors: kernels of their own, with the reference interpreter for everything else.

The interpreter compiles and runs the program. Where the author has a kernel for an operation, or takes a run of
operations whole, the author's code takes the place of the interpreter's.
"""
