"""Launches: the checks of everything that an execution is given, once for all clients that start it in Python."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pjrt.api.buffer import Buffer
from pjrt.api.checks import expect, expect_sequence
from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError
from pjrt.api.loaded_executable import ExecuteOptions, LoadedExecutable
from pjrt.api.shape_spec import ShapeSpec, format_shape, stands_for_token

if TYPE_CHECKING:
    from pjrt.api.client import Client
    from pjrt.api.device import Device
    from pjrt.api.future import Future

AnyBuffer = TypeVar("AnyBuffer", bound=Buffer)


class Parameters(Generic[AnyBuffer]):
    """The parameters of a program on one device, and the checks of arguments for them.

    Whether an argument was deleted is for the client to check, at the moment in which it takes the value.

    Args:
        program: the program's name.
        client: the client.
        buffer_class: the class of the client's buffers.
        specs: the type of each parameter, ``None`` where only a run decides it; ``None`` if the program declares none.
        donated: the numbers of the parameters that each execution donates.
    """

    __slots__ = ("_buffer_class", "_client", "_donated", "_program", "_specs")

    def __init__(
        self,
        program: str,
        client: Client,
        buffer_class: type[AnyBuffer],
        specs: Sequence[ShapeSpec | None] | None,
        donated: frozenset[int],
    ) -> None:
        self._program = program
        self._client = client
        self._buffer_class = buffer_class
        self._specs = specs
        self._donated = donated

    def donated(self, options: ExecuteOptions) -> frozenset[int]:
        """Return the numbers of the parameters that an execution with these options donates."""
        kept = options.non_donatable_input_indices
        return self._donated - kept if kept and self._donated else self._donated

    def checked(self, arguments: Sequence[Buffer], device: Device) -> Sequence[AnyBuffer]:
        """Return the arguments of a program on a device.

        Raises:
            InvalidArgumentError: the number of arguments is wrong, or the class, client, device or type of one.
        """
        row: Sequence[Any] = expect_sequence(arguments, "the arguments as a list of buffers")
        specs = self._specs
        if specs is not None and len(row) != len(specs):
            raise InvalidArgumentError(f"{self._program!r} takes {len(specs)} arguments, found {len(row)}")
        for number, buffer in enumerate(row):
            if not isinstance(buffer, self._buffer_class):
                raise self._error(
                    number, f"a buffer of this client, found {type(buffer).__name__}; make one with "
                    "client.buffer_from_host"
                )  # fmt: skip
            if buffer.device is not device:
                raise self._misplaced(number, buffer, device)
            if specs is not None:
                self._check_type(number, buffer, specs[number])
        return row

    def check_donated_once(self, row: Sequence[Buffer], donated: frozenset[int]) -> None:
        """Raise an error if a donated argument is another argument as well.

        Raises:
            InvalidArgumentError: it is.
        """
        for number in donated:
            if number < len(row) and sum(other is row[number] for other in row) > 1:
                raise InvalidArgumentError(
                    f"argument {number} of {self._program!r} is donated and must not be another argument as well; name "
                    "it in non_donatable_input_indices or pass a copy"
                )

    def _check_type(self, number: int, buffer: AnyBuffer, spec: ShapeSpec | None) -> None:
        if spec is None or (buffer.shape == spec.shape and buffer.element_type is spec.element_type):
            return
        if spec.element_type is ElementType.TOKEN and stands_for_token(buffer.element_type, buffer.shape):
            return
        raise self._error(number, f"{spec}, found {format_shape(buffer.element_type, buffer.shape)}")

    def _misplaced(self, number: int, buffer: Buffer, device: Device) -> InvalidArgumentError:
        if buffer.client is not self._client:
            return self._error(
                number, "a buffer of this client, found one of another client; copy it by way of the host"
            )
        return self._error(
            number, f"on {device}, where the program runs, found one on {buffer.device}; use buffer.copy_to(device)"
        )

    def _error(self, number: int, problem: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"argument {number} of {self._program!r} must be {problem}")


class CheckedExecutable(LoadedExecutable):
    """A loaded executable whose executions are checked here, up to the arguments of each device.

    A client says how they start: ``_start`` on all devices and ``_start_at`` on one of them; and ``_start_on`` on a
    device of choice, for a portable executable.
    """

    __slots__ = ()

    @property
    def is_portable(self) -> bool:
        """Whether it runs on a device of choice: it was compiled with ``compile_portable_executable``."""
        return self.compile_options().compile_portable_executable

    def execute(
        self,
        arguments: Sequence[Sequence[Buffer]],
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[list[Buffer]]:
        options = self._begin(options, returned_futures)
        rows = expect_sequence(arguments, "one list of arguments a device")
        count = len(self.addressable_devices)
        if not count and self.is_portable:
            raise self._for_any_device()
        if len(rows) != count:
            raise InvalidArgumentError(
                f"the program {self.name!r} runs on {count} devices: expected one list of arguments for each, found "
                f"{len(rows)}"
            )
        return self._start(rows, options, returned_futures)

    def execute_sharded(
        self,
        arguments: Sequence[Buffer],
        device: Device,
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[Buffer]:
        options = self._begin(options, returned_futures)
        devices = self.addressable_devices
        for place, own in enumerate(devices):
            if own is device:
                return self._start_at(place, arguments, options, returned_futures)
        if not devices and self.is_portable:
            raise self._for_any_device()
        raise InvalidArgumentError(f"{self.name!r} does not run on {device}; it runs on {_listed(devices)}")

    def execute_portable(
        self,
        arguments: Sequence[Buffer],
        device: Device,
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[Buffer]:
        options = self._begin(options, returned_futures)
        if not self.is_portable:
            raise InvalidArgumentError(
                f"{self.name!r} was compiled for {_listed(self.addressable_devices)}; compile it with "
                "compile_portable_executable, or use execute_sharded"
            )
        if not any(own is device for own in self.client.addressable_devices):
            raise InvalidArgumentError(f"{device} is no device of this client; use one of client.addressable_devices")
        return self._start_on(device, arguments, options, returned_futures)

    def _begin(self, options: ExecuteOptions | None, returned_futures: list[Future[None]] | None) -> ExecuteOptions:
        """Return the options of an execution.

        Raises:
            FailedPreconditionError: the executable was deleted, or the client is closed.
            UnimplementedError: the client does not support an option.
        """
        self._check_usable()  # a client that is closed deletes its executables, too
        if self.is_deleted:
            raise FailedPreconditionError(f"the executable {self.name!r} was deleted; compile it again")
        if returned_futures is not None:
            expect(returned_futures, list, "a list, or None, as returned_futures")
        if options is None:
            return _DEFAULT
        options = ExecuteOptions.of(options)
        self._check_options(options)
        return options

    @abc.abstractmethod
    def _check_usable(self) -> None:
        """Raise an error if the client cannot start anything."""

    def _check_options(self, options: ExecuteOptions) -> None:
        """Raise an error for options that the client does not support."""

    def _start(
        self, rows: Sequence[Sequence[Buffer]], options: ExecuteOptions, futures: list[Future[None]] | None
    ) -> list[list[Buffer]]:
        """Start the program on all addressable devices; ``rows`` has as many rows as there are devices."""
        raise NotImplementedError

    def _start_at(
        self, place: int, arguments: Sequence[Buffer], options: ExecuteOptions, futures: list[Future[None]] | None
    ) -> list[Buffer]:
        """Start the program on one of the addressable devices, by its number."""
        raise NotImplementedError

    def _start_on(
        self, device: Any, arguments: Sequence[Buffer], options: ExecuteOptions, futures: list[Future[None]] | None
    ) -> list[Buffer]:
        """Start a portable program on a device of this process."""
        raise NotImplementedError

    def _for_any_device(self) -> FailedPreconditionError:
        return FailedPreconditionError(
            f"{self.name!r} is a portable executable, which runs on a device of choice; use execute_portable"
        )


def _listed(devices: Sequence[Device]) -> str:
    return ", ".join(map(str, devices)) or "devices of other processes"


_DEFAULT = ExecuteOptions()
