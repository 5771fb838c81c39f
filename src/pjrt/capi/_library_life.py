"""Libraries of plugins from being opened to being closed, and what becomes of those that cannot be.

Closing a library takes its code out of the process, if nothing holds it there: a thread that is inside of it, or a mark
of its own (``DF_1_NODELETE``, destructors of threads, unique symbols of C++). Nor is one closed that has opened further
libraries besides those it needs: they stay, and may call it when the process ends, as CUDA's runtime does. What is not
closed stays, at the cost of its memory, and the linker would take it for the one that is meant when its path is opened
again, though the file has changed. So the file is copied, and opened as the copy.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from pjrt import system
from pjrt.system.library_file import needed_libraries

_PATIENCE_SECONDS = 1.0
_PAUSE_SECONDS = 0.01

Signature = tuple[int, int, int, int]

_lock = threading.Lock()
_stayed: dict[str, Signature] = {}


def signature(path: str | os.PathLike[str]) -> Signature:
    """What tells a file from the one that was at its path before: where it lies, its size, when it was written."""
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@dataclass(frozen=True)
class Library:
    """A library that this process has opened.

    Attributes:
        path: the path that it is known by.
        opened: the path that it was opened by: that of a copy where an older one at ``path`` is still in memory.
        handle: the system's handle.
        signature: of the file, when it was opened.
        before_it: the libraries that were in memory before it was opened.
        opened_by_it: those that it opened, besides the ones that the linker opened because it needs them.
    """

    path: str
    opened: str
    handle: int
    signature: Signature
    before_it: frozenset[str]
    opened_by_it: set[str] = field(default_factory=set)

    @staticmethod
    def open(path: str) -> Library:
        """Opens a library.

        Raises:
            OSError: the system cannot open it; the text is the linker's.
        """
        found, before_it = signature(path), system.mapped_libraries()
        with _lock:
            before = _stayed.get(path, found)
        if before == found or not system.library_is_open(path):
            return Library(path, path, system.open_library(path), found, before_it)
        copy = _copied(path)
        try:
            return Library(path, copy, system.open_library(copy), found, before_it)
        finally:
            _remove(copy)

    def note_opened(self) -> None:
        """Notes which further libraries it has opened, when it was opened or became a plugin."""
        itself = os.path.realpath(self.opened)
        new = {file for file in system.mapped_libraries() - self.before_it if file != itself}
        waiting = [name for name in needed_libraries(Path(self.path)) if name]
        while waiting:
            name = waiting.pop()
            for file in [each for each in new if Path(each).name.startswith(name)]:
                new.remove(file)
                waiting += needed_libraries(Path(file))
        self.opened_by_it.update(new)

    @property
    def has_changed(self) -> bool:
        """Whether its file is another one now, or gone."""
        try:
            return signature(self.path) != self.signature
        except OSError:
            return True

    def close(self) -> bool:
        """Closes it, unless something is or may be that holds it; returns whether it has left the process."""
        if not self.opened_by_it and self._is_left_by_threads():
            system.close_library(self.handle)
        if not system.library_is_open(self.opened):
            return True
        self.leave()
        return False

    def leave(self) -> None:
        """Leaves it in memory, where it is not to be taken for another that comes to lie at its path."""
        if self.opened == self.path:
            with _lock:
                _stayed[self.path] = self.signature

    def _is_left_by_threads(self) -> bool:
        """Whether no thread is inside; those that are about to end are given the time."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while (inside := system.threads_in_library(self.opened)) != 0:
            if inside is None or time.monotonic() >= deadline:
                return False
            time.sleep(_PAUSE_SECONDS)
        return True


def _copied(path: str) -> str:
    """A copy of a library, beside it if that can be: libraries that it needs may be found from where it lies."""
    name = Path(path).name
    for folder in (Path(path).parent, Path(tempfile.gettempdir())):
        copy = folder / f".{secrets.token_hex(8)}.{name}"
        try:
            shutil.copyfile(path, copy)
            copy.chmod(0o700)
        except OSError:
            _remove(str(copy))
            continue
        return str(copy)
    raise OSError(f"an older {name} is still in memory, and the new one cannot be copied to be opened beside it")


def _remove(path: str) -> None:
    """Removes a file; where the system keeps the file of an open library it stays."""
    try:
        os.unlink(path)
    except OSError:
        return
