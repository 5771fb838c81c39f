"""The error of an author's compiler that declines a program, with the operations that are the reason."""

from __future__ import annotations

from collections.abc import Collection

from pjrt.api.errors import UnimplementedError


class DeclinedError(UnimplementedError):
    """A program that an author's ``compile`` leaves to the fallback, because of some of its operations.

    The other operations of a run are offered again, without these.

    Args:
        message: the reason.
        operations: the positions of the reasons among the operations of the program's entry function.
    """

    def __init__(self, message: str, operations: Collection[int] = ()) -> None:
        super().__init__(message)
        self.operations = frozenset(operations)
