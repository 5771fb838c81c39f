"""Devices whose programs run in C: the runtime under a driver, and the Python that compiles for it.

The library of such a device is a whole PJRT plugin without Python. Its driver, a table of functions in C
(``pjrt_driver.h``), allocates, copies and launches. A compiler in Python returns code as bytes; it runs in a process of
its own, which the library starts when the first program must be compiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pjrt.api.lazy_names import lazy_names

if TYPE_CHECKING:
    from pjrt.native.code import Code, asked_layouts
    from pjrt.native.library import get_include, is_library, write_library
    from pjrt.native.steps import HostCall, HostProgram, Kernel, with_fallback

__all__ = [
    "Code",
    "HostCall",
    "HostProgram",
    "Kernel",
    "asked_layouts",
    "get_include",
    "is_library",
    "with_fallback",
    "write_library",
]

if not TYPE_CHECKING:  # a type checker has the names from above; with these functions it would accept any other
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".code": "Code asked_layouts",
            ".library": "get_include is_library write_library",
            ".steps": "HostCall HostProgram Kernel with_fallback",
        },
    )
