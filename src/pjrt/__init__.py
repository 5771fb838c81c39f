"""PJRT, the uniform device API of machine learning, for Python."""
