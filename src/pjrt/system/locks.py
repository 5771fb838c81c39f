"""Locks between processes."""

from __future__ import annotations

import os
import sys

# On Windows a locked part of a file cannot be read by others. A part far behind all content leaves the content to them.
_LOCKED_BYTE = 1 << 30


def try_lock(descriptor: int) -> bool:
    """Locks an open file for its holder alone, without waiting; ``False`` where another has it.

    The system takes the lock back when the file is closed, and so when the process ends in any way. The file can be
    read by anyone meanwhile. Opening the same file again and locking it through that is refused also within a process.
    On POSIX a child made by fork shares the lock, until all of them have closed the file.

    Args:
        descriptor: of a file that was opened for writing.

    Raises:
        OSError: the file's system has no locks.
    """
    if sys.platform == "win32":
        return _locked_byte(descriptor)
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


if sys.platform == "win32":

    def _locked_byte(descriptor: int) -> bool:
        import msvcrt

        position = os.lseek(descriptor, 0, os.SEEK_CUR)
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        finally:
            os.lseek(descriptor, position, os.SEEK_SET)
        return True
