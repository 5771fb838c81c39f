"""Libraries of frameworks that hold the GIL while they wait for a device, so that a device in Python never gets it."""

import os

cdef extern from "pjrt_support/library_waits.h":
    int pjrt_library_waits_let_go(const char *path)


def release_gil_in_waits(*libraries) -> int:
    """Have loaded libraries release the GIL while they wait. A second call for the same libraries changes nothing.

    Args:
        libraries: their paths.

    Returns:
        The number of waiting functions that were replaced; 0 if none of the libraries is loaded, or on a system other
        than Linux.
    """
    cdef int replaced = 0
    for path in libraries:
        replaced += pjrt_library_waits_let_go(os.fsencode(path))
    return replaced
