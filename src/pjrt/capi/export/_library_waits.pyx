"""Libraries of frameworks that wait for a device with the GIL held, which a device in Python then never gets."""

import os

cdef extern from "pjrt_support/library_waits.h":
    int pjrt_library_waits_let_go(const char *path)


def release_gil_in_waits(*libraries) -> int:
    """Have libraries let go of the GIL while they wait, as far as they are loaded. To do it twice changes nothing.

    Args:
        libraries: their files.

    Returns:
        How many of the functions that they wait by were replaced; 0 where none of the libraries is loaded, or on a
        system other than Linux.
    """
    cdef int replaced = 0
    for path in libraries:
        replaced += pjrt_library_waits_let_go(os.fsencode(path))
    return replaced
