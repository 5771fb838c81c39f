"""A look at a shared library's file before it is opened: the dynamic linker ends the process on one that is cut off."""

from __future__ import annotations

import os
from pathlib import Path

from pjrt.api.errors import DataLossError, FailedPreconditionError
from pjrt.system.elf import is_library, missing_bytes


def check_library_file(path: Path) -> None:
    """Refuses what is no library at all, and a library whose file ends before the parts of it that are to be loaded, as
    after a broken download.

    A library of another system or processor is left to the dynamic linker, which says so.

    Raises:
        FailedPreconditionError: the file is no shared library.
        DataLossError: the file is cut off.
    """
    if path.is_file() and os.access(path, os.R_OK) and not is_library(path):
        kind = "is empty" if not path.stat().st_size else "has something else in it"
        raise FailedPreconditionError(
            f"{path}: the library could not be opened: it is no shared library, the file {kind}; give the path of the "
            "plugin's library, or install the plugin again"
        )
    missing = missing_bytes(path)
    if missing is not None:
        has, needs = missing
        raise DataLossError(
            f"{path}: the library's file is cut off: it has {has} bytes, its header speaks of at least {needs}; "
            "get it again"
        )
