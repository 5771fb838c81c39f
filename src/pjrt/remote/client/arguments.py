"""Arguments of an execution: their checks, which need no answer of the server, and the donated ones."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pjrt.api.buffer import Buffer
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.api.execute_options import ExecuteOptions
from pjrt.api.shape_spec import stands_for_token
from pjrt.remote.client.buffer import RemoteBuffer
from pjrt.remote.client.value_placement import ValuePlacement

if TYPE_CHECKING:
    from pjrt.remote.client.client import RemoteClient
    from pjrt.remote.client.device import RemoteDevice

# Of two executions that donate the same buffer, one must fail. Its holder can enter it again, because the garbage
# collector may run inside, and end something whose end runs a program.
_donation = threading.RLock()


class Arguments:
    """Checks the arguments of a program.

    Args:
        client: the client.
        name: the program's name.
        parameters: the parameters on their devices.
        donated: the numbers of the parameters that an execution uses up.
    """

    def __init__(
        self, client: RemoteClient, name: str, parameters: Sequence[ValuePlacement], donated: frozenset[int]
    ) -> None:
        self._client = client
        self._name = name
        self._parameters = parameters
        self._donated = donated

    def donated(self, options: ExecuteOptions) -> frozenset[int]:
        """Return the numbers of the parameters that an execution uses up."""
        undonated = options.non_donatable_input_indices
        return self._donated - undonated if undonated and self._donated else self._donated

    def check(self, row: Sequence[Buffer], place: int, device: RemoteDevice) -> None:
        """Raise an error unless buffers can be the arguments on a device.

        Args:
            row: the buffers.
            place: the device's number among those of the program.
            device: the device.

        Raises:
            InvalidArgumentError: the number, a type or a device of the buffers is wrong.
        """
        parameters = self._parameters
        if len(row) != len(parameters):
            raise InvalidArgumentError(f"{self._name!r} takes {len(parameters)} arguments, found {len(row)}")
        for number, (buffer, parameter) in enumerate(zip(row, parameters, strict=True)):
            if type(buffer) is not RemoteBuffer:
                raise InvalidArgumentError(
                    f"argument {number} of {self._name!r} must be a buffer of this client, found "
                    f"{type(buffer).__name__}; make one with client.buffer_from_host"
                )
            actual = buffer.type
            if actual is not parameter.types[place]:
                self._check_type(number, buffer, device)
                parameter.types[place] = actual

    def _check_type(self, number: int, buffer: RemoteBuffer, device: RemoteDevice) -> None:
        actual, expected = buffer.type, self._parameters[number].spec
        if actual.device is not device:
            if actual.client is not self._client:
                raise InvalidArgumentError(
                    f"argument {number} of {self._name!r} must be a buffer of this client, found one of another client"
                )
            raise InvalidArgumentError(
                f"argument {number} of {self._name!r} is on {actual.device}, the program runs on {device}; use "
                "buffer.copy_to(device)"
            )
        if expected is None:
            return
        if expected.element_type is ElementType.TOKEN and stands_for_token(actual.element_type, actual.shape):
            return
        if actual.shape != expected.shape or actual.element_type is not expected.element_type:
            raise InvalidArgumentError(
                f"argument {number} of {self._name!r} must be {expected}, found "
                f"{actual.element_type.name.lower()}{list(actual.shape)}"
            )

    def take(self, rows: Sequence[Sequence[Any]], donated: frozenset[int]) -> None:
        """Check that buffers have their values, and mark the donated ones as deleted; ``release`` must follow.

        Raises:
            FailedPreconditionError: a buffer was deleted or donated before.
            InvalidArgumentError: a donated buffer is another argument too.
            UnavailableError: the connection is broken.
        """
        if not donated:
            for row in rows:
                for buffer in row:
                    buffer.check()
            return
        with _donation:
            for row in rows:
                for buffer in row:
                    buffer.check()
                for number in donated:
                    self._check_used_once(number, row)
            for row in rows:
                for number in donated:
                    row[number].donate()

    @staticmethod
    def release(rows: Sequence[Sequence[Any]], donated: frozenset[int]) -> None:
        """Release the handles of the donated buffers, after the execution was sent."""
        for row in rows:
            for number in donated:
                row[number].release()

    def _check_used_once(self, number: int, row: Sequence[Any]) -> None:
        if sum(other is row[number] for other in row) > 1:
            raise InvalidArgumentError(
                f"argument {number} of {self._name!r} is donated and must not be another argument as well; name it in "
                "non_donatable_input_indices or pass a copy"
            )


def check_options(options: ExecuteOptions, name: str) -> None:
    """Raise an error for execute options that the protocol has no place for.

    Raises:
        UnimplementedError: the options have host callbacks or a context.
    """
    if options.send_callbacks or options.recv_callbacks or options.hlo_output_callbacks:
        raise UnimplementedError(
            f"{name!r} runs on a server, and the IFRT proxy protocol does not carry the callbacks of PJRT's execute "
            "options; return the values as results"
        )
    if options.context is not None:
        raise UnimplementedError(
            f"{name!r} runs on a server, where the addresses in an execute context mean nothing; leave it out"
        )
