"""Loaded executables of the ``cpu`` device."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pjrt.api.buffer import Buffer
from pjrt.api.checks import expect, expect_sequence, wrong_number_of_rows
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, unimplemented
from pjrt.api.loaded_executable import WITHOUT_TYPE, Argument, ExecuteOptions, LoadedExecutable, bound, explained
from pjrt.devices.xla._short_path import ShortCall
from pjrt.devices.xla.buffer import XlaBuffer
from pjrt.devices.xla.executable import XlaExecutable
from pjrt.devices.xla.execution import Executor
from pjrt.devices.xla.future import ArrayFuture
from pjrt.devices.xla.rendezvous import Rendezvous

if TYPE_CHECKING:
    from pjrt.api.client import Client
    from pjrt.api.compile_options import DeviceAssignment
    from pjrt.api.device import Device
    from pjrt.api.future import Future
    from pjrt.devices.xla.array_type import ArrayType
    from pjrt.devices.xla.device import XlaDevice
    from pjrt.devices.xla.runtime import Runtime
    from pjrt.devices.xla.value_path import XlaValuePath

_NO_OPTIONS = ExecuteOptions()
# JAX gives every execution a launch id, which has no meaning for the short path: one device needs no rendezvous.
_all_but_launch_id = attrgetter(*(f.name for f in dataclasses.fields(ExecuteOptions) if f.name != "launch_id"))
_DEFAULTS = _all_but_launch_id(_NO_OPTIONS)


class XlaLoaded(XlaExecutable, LoadedExecutable):
    """A program compiled by XLA for the CPU that a client holds until it is deleted or the client is closed."""

    __slots__ = ("_client", "_deleted", "_executable", "_runtime")

    def __init__(self, client: Client, runtime: Runtime, executable: XlaExecutable) -> None:
        options = executable.compile_options()
        super().__init__(executable.jaxlib_executable, executable.assignment, options, code=executable.code)
        self._client = client
        self._runtime = runtime
        self._deleted = False
        self._executable = executable

    @property
    def client(self) -> Client:
        return self._client

    @property
    def executable(self) -> XlaExecutable:
        return self._executable

    @property
    def device_assignment(self) -> DeviceAssignment:
        return self.assignment

    @property
    def is_deleted(self) -> bool:
        return self._deleted

    def delete(self) -> None:
        self._deleted = True
        self._stop()

    def unload(self, reason: str) -> Any:
        self.delete()
        self._executable.unload(reason)
        return super().unload(reason)

    def close_short_path(self) -> None:
        """Check at each execution from now on whether the runtime can be used, which the short path leaves out."""

    @abc.abstractmethod
    def _stop(self) -> None:
        """Start nothing any more. The code stays for as long as it runs or has properties to report."""

    def _check_usable(self) -> None:
        self._runtime.check_open()
        if self._deleted:
            raise FailedPreconditionError(f"the executable {self.name!r} was deleted; compile it again")


class XlaLoadedExecutable(ShortCall, XlaLoaded):
    """A program compiled by XLA for the CPU, on its devices.

    Each way to run it tries the short path first (``Executor.short_path``): one device, and arguments that need no
    preparation.
    """

    __slots__ = ("_devices", "_executor", "_first", "_has_results", "_short_path", "_value_path")

    def __init__(
        self,
        executable: XlaExecutable,
        devices: Sequence[XlaDevice],
        rendezvous: Rendezvous | None = None,
        fingerprint: str = "",
    ) -> None:
        super().__init__(devices[0].client, devices[0].runtime, executable)
        self.__dict__["program_shape"] = executable.program_shape  # computed once for both
        self._devices = tuple(devices)
        self._first = self._devices[0]
        rendezvous = rendezvous or Rendezvous(len(self._devices))
        self._executor = Executor(executable, self._devices, rendezvous, fingerprint)
        self._has_results = bool(executable.program_shape.results)
        self._short_path = self._executor.short_path()
        self._value_path = self._executor.value_path()
        self._runtime.adopt(self)

    def unload(self, reason: str) -> Any:
        self._executor.unload()
        return super().unload(reason)

    @property
    def addressable_devices(self) -> Sequence[XlaDevice]:
        return self._devices

    @property
    def addressable_device_logical_ids(self) -> Sequence[tuple[int, int]]:
        return [self.assignment.logical_ids(device.id) for device in self._devices]

    # Running it.

    def call_long(self, arguments: tuple[Argument, ...], keywords: dict[str, Argument]) -> tuple[Buffer, ...]:
        """Run the program by a call (``executable(…)``) that the short path has left."""
        self._check(None, None)
        if len(self._devices) > 1:
            return LoadedExecutable.__call__(self, *arguments, **keywords)
        values: Sequence[Argument] = arguments
        if keywords or not WITHOUT_TYPE.isdisjoint(map(type, arguments)):
            values = bound(self, arguments, keywords)
        put, here = self._client.buffer_from_host, self._first
        buffers = [a if isinstance(a, Buffer) else put(a, device=here) for a in values]
        results = self._short_path.run(buffers)
        if results is not None:
            return tuple(results)
        try:
            return tuple(self.execute_sharded(buffers, here))
        except InvalidArgumentError as error:
            raise explained(error, self, values) from error

    def execute_sharded(
        self,
        arguments: Sequence[Buffer],
        device: Device,
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[Buffer]:
        if (
            (options is None or (type(options) is ExecuteOptions and _all_but_launch_id(options) == _DEFAULTS))
            and device is self._first
            # A program without results has no array whose readiness is its completion.
            and (returned_futures is None or (self._has_results and type(returned_futures) is list))
        ):
            results = self._short_path.run(arguments)
            if results is not None:
                if returned_futures is not None:
                    future = results[0].ready()
                    if isinstance(future, ArrayFuture):
                        future.siblings = [buffer.array for buffer in results[1:] if isinstance(buffer, XlaBuffer)]
                    returned_futures.append(future)
                return results
        options = self._check(options, returned_futures)
        place = self._place_of(device)
        row = self._checked(arguments, place, options)
        non_donatable, launch_id = options.non_donatable_input_indices, options.launch_id
        if len(self._devices) == 1:
            return self._executor.execute([row], non_donatable, launch_id, returned_futures)[0]
        return self._executor.contribute(row, place, non_donatable, launch_id, returned_futures)

    def execute(
        self,
        arguments: Sequence[Sequence[Buffer]],
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[list[Buffer]]:
        checked_options = self._check(options, returned_futures)
        arguments = expect_sequence(arguments, "one list of arguments a device")
        if len(arguments) != len(self._devices):
            raise wrong_number_of_rows(self.name, len(self._devices), len(arguments))
        # A launch can be poisoned by its id, which only the long path passes to jaxlib.
        if len(self._devices) == 1 and not checked_options.launch_id:
            return [self.execute_sharded(arguments[0], self._first, options, returned_futures=returned_futures)]
        rows = [self._checked(row, place, checked_options) for place, row in enumerate(arguments)]
        non_donatable, launch_id = checked_options.non_donatable_input_indices, checked_options.launch_id
        return self._executor.execute(rows, non_donatable, launch_id, returned_futures)

    def execute_portable(
        self,
        arguments: Sequence[Buffer],
        device: Device,
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[Buffer]:
        raise FailedPreconditionError(
            f"the program {self.name!r} was compiled for {', '.join(map(str, self._devices))}; compile it with "
            "CompileOptions(compile_portable_executable=True) to run it on a device of choice, or use execute_sharded"
        )

    def value_path(self) -> XlaValuePath | None:
        return self._value_path

    def close_short_path(self) -> None:
        self._short_path.close()
        if self._value_path is not None:
            self._value_path.close()

    def _stop(self) -> None:
        self.close_short_path()
        self._executor.stop("the executable was deleted before all of its devices had been given their arguments")

    def _check(self, options: ExecuteOptions | None, returned_futures: list[Future[None]] | None) -> ExecuteOptions:
        """Return the options, which the device supports, if anything can be executed at all."""
        self._check_usable()
        if returned_futures is not None:
            expect(returned_futures, list, "a list, or None, as returned_futures")
        return _NO_OPTIONS if options is None else self._supported(ExecuteOptions.of(options))

    def _supported(self, options: ExecuteOptions) -> ExecuteOptions:
        if options.send_callbacks or options.recv_callbacks:
            raise unimplemented(
                self.platform_name, "ExecuteOptions.send_callbacks and recv_callbacks", "use an FFI handler"
            )
        if options.hlo_output_callbacks:
            raise unimplemented(self.platform_name, "ExecuteOptions.hlo_output_callbacks")
        if options.context is not None:
            raise unimplemented(self.platform_name, "ExecuteOptions.context")
        count = len(self.program_shape.parameters)
        for number in options.non_donatable_input_indices:
            if not 0 <= number < count:
                raise InvalidArgumentError(
                    f"non_donatable_input_indices has {number}, the program {self.name!r} takes {count} arguments"
                )
        return options

    def _checked(self, arguments: Sequence[Buffer], place: int, options: ExecuteOptions) -> list[XlaBuffer]:
        row = _checked_arguments(arguments, self._executor.parameter_types[place], self.name)
        _check_donated_once(row, self._executor.donated - options.non_donatable_input_indices, self.name)
        return row

    def _place_of(self, device: Device) -> int:
        for place, own in enumerate(self._devices):
            if own is device:
                return place
        raise InvalidArgumentError(
            f"the program {self.name!r} runs on {', '.join(map(str, self._devices))}, found the device {device}"
        )


def _checked_arguments(arguments: Sequence[Buffer], types: Sequence[ArrayType], program: str) -> list[XlaBuffer]:
    """Return the arguments, which fit the parameters' types and have values.

    Raises:
        InvalidArgumentError: the number of arguments, the type of one or its place is wrong.
        FailedPreconditionError: an argument was deleted or donated.
    """
    arguments = expect_sequence(arguments, "the arguments as a list of buffers")
    if len(arguments) != len(types):
        expected = f"{len(types)} argument{'' if len(types) == 1 else 's'}"
        raise InvalidArgumentError(f"the program {program!r} takes {expected}, found {len(arguments)}")
    buffers = []
    for number, (argument, expected_type) in enumerate(zip(arguments, types, strict=True)):
        if not isinstance(argument, XlaBuffer):
            raise InvalidArgumentError(
                f"argument {number} of the program {program!r} must be a buffer of the same client, found "
                f"{type(argument).__name__}; put it there with client.buffer_from_host"
            )
        if not expected_type.accepts(argument.type):
            raise _mismatch(number, argument, expected_type, program)
        argument.check_usable()
        buffers.append(argument)
    return buffers


def _check_donated_once(arguments: Sequence[XlaBuffer], donated: frozenset[int], program: str) -> None:
    """Refuse a buffer that is donated and used as another argument as well.

    Raises:
        InvalidArgumentError: a donated buffer is given twice.
    """
    for number in donated:
        others = [n for n, argument in enumerate(arguments) if argument is arguments[number] and n != number]
        if others:
            raise InvalidArgumentError(
                f"the program {program!r} donates argument {number}, which is also argument {others[0]}; pass a copy "
                "for one of them (buffer.copy_to(buffer.device))"
            )


def _mismatch(number: int, argument: XlaBuffer, expected: ArrayType, program: str) -> InvalidArgumentError:
    start = f"argument {number} of the program {program!r} must be {expected}"
    place, found_place = expected.memory_space.device, argument.device
    if found_place.client is not place.client:
        return InvalidArgumentError(f"{start} on {place}, found a buffer of another client; copy it by way of the host")
    if found_place is not place:
        return InvalidArgumentError(f"{start} on {place}, found it on {found_place}; use buffer.copy_to(device)")
    if argument.type.layout != expected.layout and argument.shape == expected.shape:
        return InvalidArgumentError(
            f"{start} with the layout {expected.layout}, found {argument.type.layout}; pass layout= to "
            "client.buffer_from_host"
        )
    return InvalidArgumentError(f"{start}, found {argument.type}")
