"""Arguments: their checks before an execution, and the donated ones."""

from __future__ import annotations

from collections.abc import Sequence

from pjrt.api.buffer import Buffer
from pjrt.api.checks import expect_sequence
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError
from pjrt.api.shape_spec import ShapeSpec, stands_for_token
from pjrt.host.buffer import HostBuffer
from pjrt.host.compiled import Compiled
from pjrt.host.device import HostDevice
from pjrt.host.fork_safety import runtime_lock
from pjrt.host.storage import TOKEN, Storage


class Arguments:
    """Checks the arguments of a program, and takes the storages of the donated ones away from their buffers."""

    __slots__ = ("_donated", "_name", "_parameters")

    def __init__(self, compiled: Compiled) -> None:
        self._name = compiled.name
        self._parameters = None if compiled.parameters is None else tuple(compiled.parameters)
        self._donated = frozenset(compiled.aliases) | frozenset(compiled.donated)

    def donated(self, kept: frozenset[int]) -> frozenset[int]:
        """Return the numbers of the parameters that are donated; those in ``kept`` are not."""
        return self._donated - kept if kept and self._donated else self._donated

    def take(
        self, arguments: Sequence[Sequence[Buffer]], devices: Sequence[HostDevice], donated: frozenset[int]
    ) -> list[list[Storage]]:
        """Return the storages of the arguments, one list a device; the buffers of the donated ones are deleted.

        Everything is checked before anything is deleted, so that a call that raises changes nothing.

        Raises:
            InvalidArgumentError: number, type or device of the arguments is wrong, or a donated one is used twice.
            FailedPreconditionError: an argument was deleted or donated before.
        """
        rows = [expect_sequence(row, "the arguments as a list of buffers") for row in arguments]
        if not donated:
            return [self._check(row, device) for row, device in zip(rows, devices, strict=True)]
        with runtime_lock:  # Of two calls that donate the same argument, one must fail.
            storages = [self._check(row, device) for row, device in zip(rows, devices, strict=True)]
            for row in rows:
                self._check_used_once(row, donated)
            for row in rows:
                for number in donated:
                    if number < len(row):
                        row[number].delete()
            return storages

    def _check(self, arguments: Sequence[Buffer], device: HostDevice) -> list[Storage]:
        parameters = self._parameters
        if parameters is not None and len(parameters) != len(arguments):
            raise InvalidArgumentError(f"{self._name!r} takes {len(parameters)} arguments, found {len(arguments)}")
        storages = []
        for number, buffer in enumerate(arguments):
            if not isinstance(buffer, HostBuffer):
                raise InvalidArgumentError(
                    f"argument {number} of {self._name!r} must be a buffer of this client, found "
                    f"{type(buffer).__name__}; make one with client.buffer_from_host"
                )
            if buffer.device is not device:
                raise InvalidArgumentError(
                    f"argument {number} of {self._name!r} is on {buffer.device}, the program runs on {device}; use "
                    "buffer.copy_to(device)"
                )
            storage = buffer.use()
            if parameters is not None:
                expected = parameters[number]
                if not _fits(buffer, expected):
                    raise InvalidArgumentError(
                        f"argument {number} of {self._name!r} must be {expected}, found {buffer.described}"
                    )
                if expected.element_type is ElementType.TOKEN:
                    storage = _as_token(storage)
            storages.append(storage)
        return storages

    def _check_used_once(self, arguments: Sequence[Buffer], donated: frozenset[int]) -> None:
        for number in donated:
            if number < len(arguments) and sum(other is arguments[number] for other in arguments) > 1:
                raise InvalidArgumentError(
                    f"argument {number} of {self._name!r} is donated and must not be another argument as well; name it "
                    "in non_donatable_input_indices or pass a copy"
                )


def _fits(buffer: HostBuffer, expected: ShapeSpec) -> bool:
    if expected.element_type is ElementType.TOKEN:
        return stands_for_token(buffer.element_type, buffer.shape)
    return buffer.shape == expected.shape and buffer.element_type is expected.element_type


def _as_token(source: Storage) -> Storage:
    """Return the token that an empty array stands for: it is ready, or fails, when the array does."""
    token = Storage(source.definition, TOKEN)
    token.queue = source.queue
    return token
