"""Execute contexts of the host runtime: a framework's data for handlers inside a program."""

from __future__ import annotations

from collections.abc import Mapping

from pjrt.api.errors import AlreadyExistsError, FailedPreconditionError
from pjrt.api.loaded_executable import ExecuteContext


class HostExecuteContext(ExecuteContext):
    """The addresses of a framework's objects by the id of their type."""

    __slots__ = ("_closed", "_user_data")

    def __init__(self) -> None:
        self._user_data: dict[int, int] = {}
        self._closed = False

    def add_user_data(self, type_id: int, address: int) -> None:
        if self._closed:
            raise FailedPreconditionError("the execute context was closed; make a new one")
        if type_id in self._user_data:
            raise AlreadyExistsError(f"the execute context holds user data of the type {type_id} already")
        self._user_data[type_id] = address

    @property
    def user_data(self) -> Mapping[int, int]:
        """The addresses by type id, for the function that computes the program."""
        return dict(self._user_data)

    def close(self) -> None:
        self._closed = True
