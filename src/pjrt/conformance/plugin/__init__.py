"""The checks of a plugin through its C API, ``pjrt conform``: whether it does what the header of PJRT requires.

Each check (``check``) is a function that is given the plugin as a ``Subject`` and runs in a process of its own, which
``zygote`` forks: a crash and a hang are outcomes with the call that did it. ``official`` has what the C tests of XLA
expect, ``contract`` what the header states, and ``framework`` what JAX, PyTorch and TensorFlow need.
"""
