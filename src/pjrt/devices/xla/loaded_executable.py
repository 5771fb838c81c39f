"""Loaded executables of the ``cpu`` device."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pjrt.api.buffer import Buffer
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.device import Device
from pjrt.api.element_type import ElementType
from pjrt.api.executable import Executable
from pjrt.api.execute_options import ExecuteOptions
from pjrt.api.future import Future
from pjrt.api.loaded_executable import Argument, LoadedExecutable
from pjrt.devices.xla import _raw
from pjrt.devices.xla.buffer import XlaBuffer

if TYPE_CHECKING:
    from pjrt.devices.xla.client import XlaClient
    from pjrt.devices.xla.device import XlaDevice

_array_of = attrgetter("array")
_type_of = attrgetter("type")


class XlaLoadedExecutable(LoadedExecutable):
    """A program compiled by XLA for the CPU, on its devices."""

    __slots__ = (
        "_assignment",
        "_client",
        "_devices",
        "_handlers",
        "_options",
        "_parameters",
        "_raw",
        "_results",
        "_run",
    )

    def __init__(
        self,
        client: XlaClient,
        raw: Any,
        devices: Sequence[XlaDevice],
        assignment: DeviceAssignment,
        options: CompileOptions,
    ) -> None:
        self._client = client
        self._raw = raw
        self._devices = tuple(devices)
        self._assignment = assignment
        self._options = options
        parameters, results = _raw.signature(raw)
        space = self._devices[0].default_memory_space
        self._parameters = [client.array_type(s, ElementType.of(d), space) for s, d in parameters]
        self._results = [client.array_type(s, ElementType.of(d), space) for s, d in results]
        self._handlers = [_raw.result_handler(t.aval, t.memory_space.sharding) for t in self._results]
        self._run = raw.execute_sharded

    def __call__(self, *arguments: Argument) -> tuple[Buffer, ...]:
        try:
            if list(map(_type_of, arguments)) == self._parameters:
                results = self._run(list(map(_array_of, arguments))).consume_with_handlers(self._handlers)
                return tuple(map(XlaBuffer, results, self._results))
        except AttributeError:
            pass
        return super().__call__(*arguments)

    @property
    def client(self) -> XlaClient:
        return self._client

    @property
    def executable(self) -> Executable:
        raise NotImplementedError

    @property
    def name(self) -> str:
        name: str = self._raw.hlo_modules()[0].name
        return name

    @property
    def num_replicas(self) -> int:
        return self._assignment.num_replicas

    @property
    def num_partitions(self) -> int:
        return self._assignment.num_partitions

    @property
    def num_outputs(self) -> int:
        return len(self._results)

    @property
    def addressable_devices(self) -> Sequence[XlaDevice]:
        return self._devices

    @property
    def addressable_device_logical_ids(self) -> Sequence[tuple[int, int]]:
        return [self._assignment.logical_ids(device.id) for device in self._devices]

    @property
    def device_assignment(self) -> DeviceAssignment:
        return self._assignment

    def execute(
        self,
        arguments: Sequence[Sequence[Buffer]],
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[list[Buffer]]:
        raise NotImplementedError

    def execute_sharded(
        self,
        arguments: Sequence[Buffer],
        device: Device,
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[Buffer]:
        results = self._run(list(map(_array_of, arguments))).consume_with_handlers(self._handlers)
        return list(map(XlaBuffer, results, self._results))

    def execute_portable(
        self,
        arguments: Sequence[Buffer],
        device: Device,
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[Buffer]:
        return self.execute_sharded(arguments, device, options, returned_futures=returned_futures)

    @property
    def is_deleted(self) -> bool:
        return self._raw is None

    def delete(self) -> None:
        self._raw = None
