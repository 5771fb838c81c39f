"""Host buffers on their way to a server: in pieces, each a message with one field of bytes, or as files.

A client on the server's machine writes files to a directory of shared memory. The protocol has it for large arrays: the
client writes the file ``lt_HANDLE``, and asks the server to read it (``HostBufferReadFromDisk``). It saves the way
through the socket. The server reads only from the directory that its operator named, and trusts nothing in it.
"""

from __future__ import annotations

import os
import re
import stat
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pjrt.api.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    UnimplementedError,
)
from pjrt.api.future import Future
from pjrt.host_memory.array import aligned_empty

if TYPE_CHECKING:
    from pjrt.remote.server.isolation import IsolatedSession
    from pjrt.remote.server.session import Session

# The few bytes before the data of a piece are read and written here, because protobuf would copy the data once more.

CHUNK_BYTES = 1 << 20
"""The length of a piece; that of jaxlib's client."""

_DATA_FIELD = b"\x0a"  # field 1, of a length that follows
_MAX_HEADER = 11


class Pieces(NamedTuple):
    """A host buffer on its way to its client.

    Attributes:
        size: its length.
        messages: the messages with its pieces, in their order; futures where they come later.
    """

    size: int
    messages: Iterator[bytes | Future[bytes]]


def pieces(data: memoryview) -> Iterator[bytes]:
    """Yield the messages with the pieces of a host buffer; an empty one is an empty piece."""
    for start in range(0, max(data.nbytes, 1), CHUNK_BYTES):
        yield piece(data[start : start + CHUNK_BYTES])


def piece(data: memoryview) -> bytes:
    """Return the message with a piece of a host buffer."""
    length, header = data.nbytes, bytearray(_DATA_FIELD)
    while length > 0x7F:
        header.append(length & 0x7F | 0x80)
        length >>= 7
    header.append(length)
    return b"".join((header, data))


def piece_data(message: bytes) -> np.ndarray[Any, Any]:
    """Return the data in a message with a piece of a host buffer.

    Raises:
        InvalidArgumentError: the message has something else, or its length is wrong.
    """
    if not message:
        return np.empty(0, np.uint8)
    position, length, shift = 1, 0, 0
    while True:
        if message[:1] != _DATA_FIELD or position >= min(len(message), _MAX_HEADER):
            raise InvalidArgumentError("expected a message with one field of bytes, found another one")
        byte = message[position]
        position += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    if position + length != len(message):
        raise InvalidArgumentError(f"expected {length} bytes in a message, found {len(message) - position}")
    return np.frombuffer(message, np.uint8, length, position)


SUBDIRECTORY_ATTRIBUTE = "pjrt.transfer_directory"
"""The attribute of the protocol's ``initialization_data`` with the name of a client's subdirectory."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class TransferDirectory:
    """The directory of a server in which clients leave host buffers.

    Clients number their files alike, so each needs a directory of its own: a subdirectory, whose name it sends when it
    opens its session. One client at a time may use the directory itself, as JAX does without this package.

    Args:
        path: the directory.

    Raises:
        NotFoundError: there is no such directory.
        PermissionDeniedError: every user may write to the directory.
        UnimplementedError: this operating system cannot open files relative to a directory.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if os.open not in os.supports_dir_fd or not hasattr(os, "O_NOFOLLOW"):
            raise UnimplementedError("a transfer directory needs a system that opens files relative to a directory")
        try:
            self._directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise NotFoundError(f"expected a directory for transfers, found {os.fspath(path)!r}: {error}") from None
        self._finalizer = weakref.finalize(self, os.close, self._directory)
        if os.fstat(self._directory).st_mode & stat.S_IWOTH:
            self.close()
            raise PermissionDeniedError(
                f"expected a directory for transfers that only the server's clients may write to, found "
                f"{os.fspath(path)!r}, to which every user may; make one of the mode 0700"
            )
        self._lock = threading.Lock()
        self._owners: weakref.WeakValueDictionary[str, Session | IsolatedSession] = weakref.WeakValueDictionary()

    def close(self) -> None:
        """Close the directory. May be called again."""
        self._finalizer()

    def take(self, session: Session | IsolatedSession, handle: int, size: int) -> np.ndarray[Any, Any]:
        """Read the file of a host buffer, remove it, and return the bytes.

        The file is copied and not mapped: a client that shortens a mapped file ends the process that reads it.

        Args:
            session: the session of the client.
            handle: the handle of the host buffer.
            size: the number of bytes that the client declares.

        Raises:
            NotFoundError: there is no such file, or it is none of the client's own.
            DataLossError: the file has another size.
            FailedPreconditionError: another session uses the directory.
        """
        subdirectory = session.transfer_subdirectory
        self._claim(session, subdirectory)
        directory = self._directory
        if subdirectory:
            directory = _opened(subdirectory, os.O_DIRECTORY, directory)
        try:
            return _take(directory, handle, size)
        finally:
            if subdirectory:
                os.close(directory)

    def _claim(self, session: Session | IsolatedSession, subdirectory: str) -> None:
        if subdirectory and not _NAME.fullmatch(subdirectory):
            raise InvalidArgumentError(
                f"expected a name of letters, digits, '_' and '-' for a subdirectory, found {subdirectory!r}"
            )
        with self._lock:
            if self._owners.setdefault(subdirectory, session) is not session:
                raise FailedPreconditionError(
                    f"another client uses the directory {subdirectory or '.'!r} for transfers, and both number their "
                    f"files alike; send the name of a subdirectory as {SUBDIRECTORY_ATTRIBUTE!r} in initialization_data"
                )


def file_name(handle: int) -> str:
    """Return the name of the file of a host buffer; jaxlib's client cuts the handle to a C ``int``."""
    return f"lt_{(handle + (1 << 31)) % (1 << 32) - (1 << 31)}"


def _take(directory: int, handle: int, size: int) -> np.ndarray[Any, Any]:
    name = file_name(handle)
    # Without O_NONBLOCK, a pipe of that name would hold up the server.
    file = _opened(name, os.O_NONBLOCK, directory)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise NotFoundError(
                f"expected the host buffer {handle} in a file of its own, found something else at {name}"
            )
        os.unlink(name, dir_fd=directory)
        if status.st_size != size:
            raise DataLossError(f"expected a host buffer of {size} bytes in {name}, found {status.st_size}")
        data: np.ndarray[Any, Any] = aligned_empty((size,), np.dtype(np.uint8))
        view, position = data.data, 0
        while position < size:
            count = os.readv(file, [view[position:]])
            if not count:
                raise DataLossError(f"expected a host buffer of {size} bytes in {name}, found {position}")
            position += count
        return data
    finally:
        os.close(file)


def _opened(name: str, flags: int, directory: int) -> int:
    try:
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=directory)
    except OSError as error:
        raise NotFoundError(f"expected {name!r} in the server's directory for transfers: {error}") from None
