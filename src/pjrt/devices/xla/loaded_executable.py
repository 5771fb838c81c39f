"""Loaded executables of the ``cpu`` device."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pjrt.api.buffer import Buffer
from pjrt.api.checks import expect, expect_sequence
from pjrt.api.compile_options import DeviceAssignment
from pjrt.api.device import Device
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, unimplemented
from pjrt.api.execute_options import ExecuteOptions
from pjrt.api.future import Future
from pjrt.api.loaded_executable import Argument
from pjrt.devices.xla._jaxlib import TURNS, collect_released
from pjrt.devices.xla.arguments import check_donated_once, checked
from pjrt.devices.xla.array_type import ArrayType
from pjrt.devices.xla.buffer import XlaBuffer, waiting
from pjrt.devices.xla.errors import converted
from pjrt.devices.xla.executable import XlaExecutable
from pjrt.devices.xla.execution import Executor, use_up
from pjrt.devices.xla.future import nothing
from pjrt.devices.xla.launch import Launcher
from pjrt.devices.xla.loaded import XlaLoaded
from pjrt.devices.xla.rendezvous import Rendezvous

if TYPE_CHECKING:
    from pjrt.devices.xla.client import XlaClient
    from pjrt.devices.xla.device import XlaDevice

_array_of = attrgetter("array")
_type_of = attrgetter("type")
_NO_OPTIONS = ExecuteOptions()
# JAX gives every execution a launch id, which on one device there is nothing to match with.
_beside_launch_id = attrgetter(*(f.name for f in dataclasses.fields(ExecuteOptions) if f.name != "launch_id"))
_NOTHING_BESIDE = _beside_launch_id(_NO_OPTIONS)


class XlaLoadedExecutable(XlaLoaded):
    """A program compiled by XLA for the CPU, on its devices.

    The short path, of one device and a program that donates nothing, is written out in ``__call__`` and again in
    ``execute_sharded``: a function between would cost as much as all else that is added to jaxlib's own work.
    """

    __slots__ = (
        "_devices",
        "_executor",
        "_first",
        "_handlers",
        "_results",
        "_start",
        "_takes",
    )

    def __init__(self, client: XlaClient, executable: XlaExecutable, rendezvous: Rendezvous | None = None) -> None:
        super().__init__(client, executable)
        self.__dict__["program_shape"] = executable.program_shape
        self._devices = tuple(client.device_with_id(number) for row in self.assignment.device_ids for number in row)
        self._first = self._devices[0]
        launcher = Launcher(client, executable, self._devices)
        self._executor = Executor(client, launcher, rendezvous or Rendezvous(len(self._devices)))
        self._start = launcher.start
        self._handlers = launcher.handlers
        self._results = launcher.result_types[0]
        is_short = len(self._devices) == 1 and not launcher.donated
        # What the arguments of the short path are; None is what no list of arguments is equal to.
        self._takes: list[ArrayType] | None = launcher.parameter_types[0] if is_short else None
        client.adopt(self)

    # What it is.

    @property
    def addressable_devices(self) -> Sequence[XlaDevice]:
        return self._devices

    @property
    def addressable_device_logical_ids(self) -> Sequence[tuple[int, int]]:
        return [self.assignment.logical_ids(device.id) for device in self._devices]

    @property
    def device_assignment(self) -> DeviceAssignment:
        return self.assignment

    # Running it.

    def __call__(self, *arguments: Argument) -> tuple[Buffer, ...]:
        try:
            if list(map(_type_of, arguments)) == self._takes:
                results = self._start(list(map(_array_of, arguments))).consume_with_handlers(self._handlers)
                if next(TURNS):
                    collect_released()
                return tuple(map(XlaBuffer, results, self._results))
        except (AttributeError, TypeError):
            pass  # not all of them are buffers, or one has no array
        except Exception as error:
            return tuple(self._executor.failed(converted(error), [arguments])[0])
        self._check(None, None)
        if len(self._devices) > 1:
            return super().__call__(*arguments)
        put, here = self._client.buffer_from_host, self._first
        buffers = [a if isinstance(a, Buffer) else put(a, device=here) for a in arguments]
        results = self._short(buffers)
        return tuple(self.execute_sharded(buffers, here) if results is None else results)

    def execute_sharded(
        self,
        arguments: Sequence[Buffer],
        device: Device,
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[Buffer]:
        if (
            (options is None or (type(options) is ExecuteOptions and _beside_launch_id(options) == _NOTHING_BESIDE))
            and device is self._first
            and (returned_futures is None or (self._handlers and type(returned_futures) is list))
        ):
            try:
                if list(map(_type_of, arguments)) == self._takes:
                    results = self._start(list(map(_array_of, arguments))).consume_with_handlers(self._handlers)
                    if next(TURNS):
                        collect_released()
                    if returned_futures is not None:
                        returned_futures.append(waiting(results[0], self._client, nothing))
                    return list(map(XlaBuffer, results, self._results))
            except (AttributeError, TypeError):
                pass  # as above
            except Exception as error:
                return self._executor.failed(converted(error), [arguments], returned_futures)[0]
        chosen = self._check(options, returned_futures)
        place = self._place_of(device)
        if len(self._devices) == 1:
            return self._execute_on_one(arguments, chosen, returned_futures)
        row = self._checked(arguments, place, chosen)
        kept, launch_id = chosen.non_donatable_input_indices, chosen.launch_id
        return self._executor.contribute(row, place, kept, launch_id, returned_futures)

    def execute(
        self,
        arguments: Sequence[Sequence[Buffer]],
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[list[Buffer]]:
        chosen = self._check(options, returned_futures)
        arguments = expect_sequence(arguments, "one list of arguments a device")
        if len(arguments) != len(self._devices):
            raise InvalidArgumentError(
                f"the program {self.name!r} runs on {len(self._devices)} devices: expected one list of arguments for "
                f"each, found {len(arguments)}"
            )
        if len(self._devices) == 1:
            return [self._execute_on_one(arguments[0], chosen, returned_futures)]
        rows = [self._checked(row, place, chosen) for place, row in enumerate(arguments)]
        return self._executor.execute(rows, chosen.non_donatable_input_indices, chosen.launch_id, returned_futures)

    def _execute_on_one(
        self, arguments: Sequence[Buffer], options: ExecuteOptions, returned_futures: list[Future[None]] | None
    ) -> list[Buffer]:
        kept, launch_id = options.non_donatable_input_indices, options.launch_id
        if not kept and not launch_id and self._results:
            results = self._short(arguments)
            if results is not None:
                if returned_futures is not None:
                    returned_futures.append(results[0].ready())
                return results
        row = self._checked(arguments, 0, options)
        return self._executor.execute([row], kept, launch_id, returned_futures)[0]

    def _short(self, arguments: Sequence[Buffer]) -> list[Buffer] | None:
        """The short path once more, for programs that donate too; ``None`` if it has to be the long one."""
        launcher = self._executor.launcher
        try:
            if list(map(_type_of, arguments)) != launcher.parameter_types[0]:
                return None
            arrays = list(map(_array_of, arguments))
            if launcher.donated:
                results = launcher.start_donating_alone(arrays)
                if results is None:
                    return None
                use_up(arguments, launcher.donated)
            else:
                results = self._start(arrays).consume_with_handlers(self._handlers)
            if next(TURNS):
                collect_released()
            return list(map(XlaBuffer, results, self._results))
        except (AttributeError, TypeError):
            return None
        except Exception as error:
            return self._executor.failed(converted(error), [arguments])[0]

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

    def take_the_long_way(self) -> None:
        self._takes = None

    def _stop(self) -> None:
        self._takes = None
        self._start = self._executor.launcher.start = _unloaded
        self._executor.cancel("the executable was deleted before all of its devices had been given their arguments")

    def _check(self, options: ExecuteOptions | None, returned_futures: list[Future[None]] | None) -> ExecuteOptions:
        """The options, which the device can do, after a look at whether anything can be executed at all."""
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
        launcher = self._executor.launcher
        taken = checked(arguments, launcher.parameter_types[place], self.name)
        check_donated_once(taken, launcher.donated - options.non_donatable_input_indices, self.name)
        return taken

    def _place_of(self, device: Device) -> int:
        for place, own in enumerate(self._devices):
            if own is device:
                return place
        raise InvalidArgumentError(
            f"the program {self.name!r} runs on {', '.join(map(str, self._devices))}, found the device {device}"
        )


def _unloaded(*_: Any, **__: Any) -> Any:
    raise FailedPreconditionError("the executable was deleted; compile it again")
