"""FFI handlers: host functions that programs call by name."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from pjrt.api.checks import expect, expect_int
from pjrt.api.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError


class FfiHandler(NamedTuple):
    """A host function.

    Attributes:
        function: a Python function, or the address of an XLA FFI handler.
        traits: the bits of ``XLA_FFI_Handler_Traits``.
    """

    function: Callable[..., Any] | int
    traits: int


class FfiHandlers(Mapping[str, FfiHandler]):
    """The handlers that were registered with a client, by the name that custom calls use."""

    def __init__(self) -> None:
        self._handlers: dict[str, FfiHandler] = {}
        self._types: dict[str, int] = {}
        self._type_ids = itertools.count(1)

    def register(self, name: str, function: Callable[..., Any] | int, traits: int) -> None:
        """Add a handler.

        Raises:
            InvalidArgumentError: the handler is neither a function nor an address.
            AlreadyExistsError: the name has another handler.
        """
        expect(name, str, "the name of a custom call's target as a str")
        expect_int(traits, "the traits of an FFI handler as the bits of a whole number")
        if not callable(function) and not (isinstance(function, int) and function):
            raise InvalidArgumentError(
                f"an FFI handler is a function or the address of one, found {type(function).__name__} for {name!r}"
            )
        handler = FfiHandler(function, traits)
        if self._handlers.setdefault(name, handler) != handler:
            raise AlreadyExistsError(f"the custom call {name!r} has another handler already; use another name")

    def register_type(self, name: str) -> int:
        """Return the id of a type of user data; the same each time for the same name."""
        type_id = self._types.get(expect(name, str, "the name of an FFI type as a str"))
        return self._types.setdefault(name, next(self._type_ids)) if type_id is None else type_id

    def find(self, name: str) -> FfiHandler:
        """Return the handler with a name.

        Raises:
            NotFoundError: no handler has this name.
        """
        handler = self._handlers.get(name)
        if handler is None:
            raise NotFoundError(
                f"no FFI handler is registered for the custom call {name!r}; registered are "
                f"{', '.join(sorted(self._handlers)) or 'none'}"
            )
        return handler

    def __getitem__(self, name: str) -> FfiHandler:
        return self._handlers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._handlers)

    def __len__(self) -> int:
        return len(self._handlers)
