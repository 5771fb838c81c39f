"""Files of shared memory in which a client leaves large arrays for a server on its machine."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shutil
import threading
from pathlib import Path

from pjrt.api.errors import InvalidArgumentError
from pjrt.remote.transport.host_buffers import file_name

SMALLEST_FILE = 1 << 20
"""The bytes from which on arrays are left in files; smaller ones take longer so than by the connection."""

_MOST_SPARE_BYTES = 256 << 20


class TransferFiles:
    """The files of one client, in a subdirectory of its own.

    The server removes the name of a file when it opens it. The file itself has a second name here, and serves again
    for the next array of the same size: the memory of a new one would have to be zeroed by the system first.

    Args:
        directory: the server's directory for transfers.

    Attributes:
        subdirectory: the name of the client's directory in it.

    Raises:
        InvalidArgumentError: no subdirectory can be made there.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.subdirectory = f"client-{secrets.token_hex(8)}"
        self._path = Path(directory, self.subdirectory)
        try:
            self._path.mkdir(mode=0o700)
        except (OSError, TypeError) as error:
            raise InvalidArgumentError(
                f"expected a directory that this client may write to as transfer_directory, found {directory!r}: "
                f"{error}"
            ) from None
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._spare: dict[int, list[Path]] = {}
        self._spare_bytes = 0

    def write(self, handle: int, data: memoryview) -> Path | None:
        """Write the file of a host buffer; return the file for ``done``, or ``None`` if there is no room for it."""
        path = self._taken(data.nbytes)
        try:
            with open(path, "r+b" if path.exists() else "xb", buffering=0, opener=_private) as file:
                position = 0
                while position < data.nbytes:
                    position += file.write(data[position:])
            os.link(path, self._path / file_name(handle))
        except OSError:
            self._remove(path)
            return None
        return path

    def done(self, handle: int, path: Path, size: int) -> None:
        """Keep a file that the server has read for the next array, or remove it; the server may be gone."""
        with contextlib.suppress(OSError):
            (self._path / file_name(handle)).unlink()
        with self._lock:
            if self._spare_bytes + size <= _MOST_SPARE_BYTES:
                self._spare_bytes += size
                self._spare.setdefault(size, []).append(path)
                return
        self._remove(path)

    def close(self) -> None:
        """Remove all files. May be called again."""
        shutil.rmtree(self._path, ignore_errors=True)

    def _taken(self, size: int) -> Path:
        with self._lock:
            if spare := self._spare.get(size):
                self._spare_bytes -= size
                return spare.pop()
            return self._path / f"spare-{next(self._numbers)}"

    def _remove(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            path.unlink()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
