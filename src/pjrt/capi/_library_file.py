"""A look at a shared library's file before it is opened: the dynamic linker ends the process on one that is cut off."""

from __future__ import annotations

from pathlib import Path

from pjrt.api.errors import DataLossError
from pjrt.system.library_file import missing_bytes


def check_library_file(path: Path) -> None:
    """Refuses a library whose file ends before the parts of it that are to be loaded, as after a broken download.

    What is no such library at all is left to the dynamic linker, which says so.

    Raises:
        DataLossError: the file is cut off.
    """
    missing = missing_bytes(path)
    if missing is not None:
        has, needs = missing
        raise DataLossError(
            f"{path}: the library's file is cut off: it has {has} bytes, its header speaks of at least {needs}; "
            "get it again"
        )
