"""Handles: the numbers by which a client names the objects of a session."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from pjrt.api.errors import InvalidArgumentError, NotFoundError, PjrtError, ResourceExhaustedError

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

_FIRST_OF_SERVER = 1 << 62
"""Clients count from 1, so that their handles and those of the server stay apart."""


class HeldMemory(Protocol[T_contra]):
    """The count of the memory of objects by their handles."""

    def hold(self, handle: int, value: T_contra | PjrtError) -> None:
        """Count an object, or the error that came instead of it.

        Raises:
            ResourceExhaustedError: there would be too much memory. It does not count then.
        """

    def release(self, handle: int) -> None:
        """Count the object of a handle no more."""


class HandleStore(Generic[T]):
    """The objects of one noun that a session holds, by handle.

    An object that could not be made is held as its error, because the client names it without waiting for the response:
    each use of the handle raises that error.

    Args:
        noun: the name of such objects, for errors.
        numbers: the counter of the session for handles that the server makes.
        most: the number of objects that a session may hold.
        memory: counts the bytes of the objects; ``None`` for objects without memory that counts.
    """

    def __init__(
        self, noun: str, numbers: Iterator[int], most: int = sys.maxsize, memory: HeldMemory[T] | None = None
    ) -> None:
        self._noun = noun
        self._numbers = numbers
        self._most = most
        self._memory = memory
        self._objects: dict[int, T | PjrtError] = {}

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, handle: object) -> bool:
        return handle in self._objects

    def add(self, value: T | PjrtError, handle: int = 0) -> int:
        """Hold an object, or the error that came instead of it, and return its handle.

        Args:
            value: the object or the error.
            handle: the handle that the client made; 0 makes one here.

        Raises:
            InvalidArgumentError: the handle is in use.
            ResourceExhaustedError: the session would hold too many objects, or too much memory.
        """
        if len(self._objects) >= self._most:
            raise ResourceExhaustedError(
                f"a session may hold {self._most} {self._noun}s, and it holds them; delete some, or start the server "
                "with a larger limit"
            )
        if not handle:
            handle = next(self._numbers)
        elif handle in self._objects:
            raise InvalidArgumentError(f"expected a new handle for the {self._noun}, found {handle}, which is in use")
        if self._memory is not None:
            self._memory.hold(handle, value)
        self._objects[handle] = value
        return handle

    def add_all(self, values: Iterable[T], handles: Iterable[int]) -> list[int]:
        """Hold objects under handles that the client made, or under new ones if it made none.

        Raises:
            InvalidArgumentError: there is not one handle for each object, or a handle is in use.
        """
        values, handles = list(values), list(handles)
        if not handles:
            return [self.add(value) for value in values]
        if len(handles) != len(values):
            raise InvalidArgumentError(f"expected {len(values)} handles of {self._noun}s, found {len(handles)}")
        return [self.add(value, handle) for value, handle in zip(values, handles, strict=True)]

    def get(self, handle: int) -> T:
        """Return the object of a handle.

        Raises:
            NotFoundError: the session has no such handle.
            PjrtError: the object could not be made; this is the error that came instead.
        """
        value = self._objects.get(handle)
        if value is None:
            raise self._unknown(handle)
        if isinstance(value, PjrtError):
            raise value.with_traceback(None)
        return value

    def get_all(self, handles: Iterable[int]) -> list[T]:
        """Return the objects of handles; raise the errors of ``get``."""
        return [self.get(handle) for handle in handles]

    def pop(self, handle: int) -> T:
        """Return the object of a handle and forget it; raise the errors of ``get``."""
        value = self.get(handle)
        self.forget(handle)
        return value

    def forget(self, handle: int) -> None:
        """Forget a handle, also one of an error.

        Raises:
            NotFoundError: the session has no such handle.
        """
        if self._objects.pop(handle, None) is None:
            raise self._unknown(handle)
        if self._memory is not None:
            self._memory.release(handle)

    def clear(self) -> list[T]:
        """Forget all handles and return the objects, without the errors."""
        objects = [value for value in self._objects.values() if not isinstance(value, PjrtError)]
        self._objects.clear()
        return objects

    def _unknown(self, handle: int) -> NotFoundError:
        return NotFoundError(f"expected the handle of an {self._noun} of this session, found {handle}")


def server_handles() -> Iterator[int]:
    """Return a counter of the handles that a server makes."""
    return itertools.count(_FIRST_OF_SERVER)
