"""The client of the ``cpu`` device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pjrt.api.client import Client, choose_place
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.device import Device
from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError
from pjrt.api.host_buffer_semantics import HostBufferSemantics
from pjrt.api.layout import Layout, TiledLayout
from pjrt.api.memory_space import MemorySpace
from pjrt.api.program import Program
from pjrt.api.topology import TopologyDescription
from pjrt.devices.xla import _compile, _raw
from pjrt.devices.xla.array_type import ArrayType
from pjrt.devices.xla.buffer import XlaBuffer
from pjrt.devices.xla.device import XlaDevice
from pjrt.devices.xla.future import Notifier
from pjrt.devices.xla.loaded_executable import XlaLoadedExecutable
from pjrt.devices.xla.memory_space import XlaMemorySpace

PLATFORM = "cpu"


class XlaClient(Client):
    """XLA's CPU runtime with a number of virtual devices."""

    __slots__ = ("_closed", "_devices", "_lock", "_raw", "_types", "notifier")

    def __init__(self, num_devices: int = 1, asynchronous: bool = True) -> None:
        self._closed = ""
        self._lock = threading.Lock()
        self._raw = _raw.make_client(num_devices, asynchronous)
        self._devices = tuple(XlaDevice(self, device) for device in self._raw.local_devices())
        self._types: dict[tuple[object, ...], ArrayType] = {}
        self.notifier = Notifier()

    @property
    def platform_name(self) -> str:
        return PLATFORM

    @property
    def platform_version(self) -> str:
        return f"XLA of jaxlib {_raw.VERSION}"

    @property
    def devices(self) -> Sequence[XlaDevice]:
        return self._devices

    @property
    def addressable_devices(self) -> Sequence[XlaDevice]:
        return self._devices

    @property
    def memory_spaces(self) -> Sequence[XlaMemorySpace]:
        return tuple(space for device in self._devices for space in device.memory_spaces)

    @property
    def topology(self) -> TopologyDescription:
        raise NotImplementedError

    @property
    def raw(self) -> Any:
        """jaxlib's client."""
        self.check_open()
        return self._raw

    def check_open(self) -> None:
        """Raises a ``FailedPreconditionError`` if the client can not be used any more."""
        if self._closed:
            raise FailedPreconditionError(self._closed)

    def array_type(
        self,
        shape: tuple[int, ...],
        element_type: ElementType,
        memory_space: XlaMemorySpace,
        layout: TiledLayout | None = None,
    ) -> ArrayType:
        """The one object for buffers of this type; the layout is row-major if not said."""
        key = (shape, element_type, memory_space.id, None if layout is None or layout.is_row_major else layout)
        found = self._types.get(key)
        if found is None:
            made = ArrayType(shape, element_type, layout or TiledLayout.row_major(len(shape)), memory_space)
            found = self._types.setdefault(key, made)
        return found

    def space_of(self, place: Device | MemorySpace) -> XlaMemorySpace:
        """The memory space meant by a device (its default one) or a memory space of this client."""
        if isinstance(place, XlaDevice) and place.client is self:
            return place.default_memory_space
        if isinstance(place, XlaMemorySpace) and place.client is self:
            return place
        raise InvalidArgumentError(f"{place} belongs to another client; use one of client.addressable_devices")

    def default_device_assignment(self, num_replicas: int, num_partitions: int) -> DeviceAssignment:
        wanted = num_replicas * num_partitions
        if wanted > len(self._devices):
            raise InvalidArgumentError(
                f"{num_replicas} replicas × {num_partitions} partitions need {wanted} devices, the client has "
                f"{len(self._devices)}; make it with pjrt.client('cpu', num_devices={wanted})"
            )
        ids = [device.id for device in self._devices[:wanted]]
        return DeviceAssignment(
            tuple(tuple(ids[r * num_partitions : (r + 1) * num_partitions]) for r in range(num_replicas))
        )

    def compile(self, program: Program | str | bytes, options: CompileOptions | None = None) -> XlaLoadedExecutable:
        return _compile.compile_and_load(self, Program.of(program), options or CompileOptions())

    def buffer_from_host(
        self,
        array: Any,
        *,
        device: Device | None = None,
        memory_space: MemorySpace | None = None,
        layout: Layout | None = None,
        semantics: HostBufferSemantics = HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL,
        on_done_with_host_buffer: Callable[[], object] | None = None,
    ) -> XlaBuffer:
        self.check_open()
        _, space = choose_place(self, device, memory_space)
        given = np.asarray(array)
        array_type = self.array_type(given.shape, ElementType.of(given.dtype), space)
        raw = _raw.put(given, array_type.aval, space.device.raw, space.sharding, _raw.COPY_DURING_CALL)
        return XlaBuffer(raw, array_type)

    @property
    def is_closed(self) -> bool:
        return bool(self._closed)

    def close(self) -> None:
        self._closed = "the client was closed; make a new one with pjrt.client('cpu')"
