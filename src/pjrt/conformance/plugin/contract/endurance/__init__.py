"""The requirements that hold over time: no leaks, many threads, any order at the end."""
