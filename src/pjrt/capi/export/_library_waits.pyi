"""Types of the functions of ``_library_waits.pyx`` that Python calls."""

import os

def release_gil_in_waits(*libraries: str | os.PathLike[str]) -> int: ...
