"""The models that the benchmarks run, in plain JAX: a function, and arguments with random numbers to call it with."""
