"""Facts: the arguments and results of a program, what it holds, and whether a device can run it."""
