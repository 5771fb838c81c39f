"""The client of the host runtime: a device author's functions, made into a complete asynchronous client."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pjrt.api.attributes import Attributes
from pjrt.api.client import Client, choose_place
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.device import Device
from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError
from pjrt.api.executable import Executable
from pjrt.api.host_buffer_semantics import HostBufferSemantics
from pjrt.api.layout import Layout, TiledLayout
from pjrt.api.memory_space import MemorySpace
from pjrt.api.program import Program
from pjrt.host import from_host
from pjrt.host.buffer import HostBuffer
from pjrt.host.compiled import CompileFunction
from pjrt.host.compiler import HostCompiler
from pjrt.host.device import HostDevice, HostDeviceDescription
from pjrt.host.dispatch import Dispatcher
from pjrt.host.executable import HostExecutable
from pjrt.host.loaded_executable import HostLoadedExecutable
from pjrt.host.memory_space import HostMemorySpace
from pjrt.host.queue import forked, generation
from pjrt.host.topology import HostTopology

MEMORY_KINDS = ("device", "pinned_host", "unpinned_host")
"""The kinds of memory that a host device has when nothing else is said, its default one first."""


class HostClient(Client):
    """A complete, asynchronous client over one function that compiles.

    Args:
        name: the platform's name.
        compile: ``compile(program, options)`` gives a function on numpy arrays, or a ``Compiled``, which is such a
            function with what its author likes to say about it.
        num_devices: how many devices there are; each runs its programs on a thread of its own.
        platform_version: the platform's version, for people.
        device_kind: the name of the kind of device; the platform's name if not said.
        device_attributes: facts of every device by name.
        attributes: what the platform says of itself, such as ``stablehlo_current_version``.
        memory_kinds: the kinds of memory of each device, its default one first.
        memory_limit: the most bytes in use on each device: of its default memory, or by kind.
        process_index: the number of this process; device ids begin at ``process_index * num_devices``.
        formats: the program formats that ``compile`` takes; ``None`` is any.
        deserialize: ``deserialize(payload, program, options)`` gives what ``compile`` does, from what
            ``Compiled.serialize`` gave.
        alignment: the alignment in bytes that the device needs to use a host array where it lies; others are copied.
        collective_timeout: how long the devices of a launch wait for each other, in seconds.
    """

    __slots__ = (
        "_assignments",
        "_attributes",
        "_closed",
        "_compiler",
        "_devices",
        "_dispatcher",
        "_generation",
        "_memory_spaces",
        "_process_index",
        "_topology",
        "alignment",
        "collective_timeout",
        "order",
    )

    def __init__(
        self,
        name: str,
        *,
        compile: CompileFunction,
        num_devices: int = 1,
        platform_version: str = "",
        device_kind: str | None = None,
        device_attributes: Attributes | None = None,
        attributes: Attributes | None = None,
        memory_kinds: Sequence[str] = MEMORY_KINDS,
        memory_limit: int | Mapping[str, int] | None = None,
        process_index: int = 0,
        formats: Sequence[str] | None = None,
        deserialize: Callable[[bytes, Program, CompileOptions], Any] | None = None,
        alignment: int = 1,
        collective_timeout: float = 60.0,
    ) -> None:
        self._closed = False
        if num_devices < 1:
            raise InvalidArgumentError(f"a client has one device or more, num_devices is {num_devices}")
        if not memory_kinds:
            raise InvalidArgumentError("a device has one kind of memory or more, memory_kinds is empty")
        self._process_index = process_index
        self._attributes = dict(attributes or {})
        self._generation = generation()
        self.alignment = alignment
        self.collective_timeout = collective_timeout
        self._compiler = HostCompiler(name, platform_version, memory_kinds[0], compile, deserialize, formats)
        limits = _limits(memory_limit, memory_kinds)
        descriptions = [
            HostDeviceDescription(
                process_index * num_devices + number,
                process_index,
                device_kind or name,
                device_attributes or {},
                memory_kinds,
            )
            for number in range(num_devices)
        ]
        self._devices = tuple(HostDevice(self, d, number, limits) for number, d in enumerate(descriptions))
        self._memory_spaces = tuple(space for device in self._devices for space in device.memory_spaces)
        self._topology = HostTopology(self._compiler, descriptions, self._attributes)
        self._dispatcher = Dispatcher()
        self.order = threading.Lock()

    # What it is.

    @property
    def platform_name(self) -> str:
        return self._compiler.platform_name

    @property
    def platform_version(self) -> str:
        return self._compiler.platform_version

    @property
    def process_index(self) -> int:
        return self._process_index

    @property
    def attributes(self) -> Attributes:
        return self._attributes

    @property
    def devices(self) -> Sequence[HostDevice]:
        return self._devices

    @property
    def addressable_devices(self) -> Sequence[HostDevice]:
        return self._devices

    @property
    def memory_spaces(self) -> Sequence[HostMemorySpace]:
        return self._memory_spaces

    @property
    def topology(self) -> HostTopology:
        return self._topology

    def default_device_assignment(self, num_replicas: int, num_partitions: int) -> DeviceAssignment:
        needed = num_replicas * num_partitions
        if needed > len(self._devices):
            raise InvalidArgumentError(
                f"{num_replicas} replicas × {num_partitions} partitions need {needed} devices, "
                f"'{self.platform_name}' has {len(self._devices)}; make the client with num_devices={needed}"
            )
        ids = [device.id for device in self._devices[:needed]]
        return DeviceAssignment(
            tuple(tuple(ids[r * num_partitions : (r + 1) * num_partitions]) for r in range(num_replicas))
        )

    def default_layout(self, element_type: ElementType, shape: Sequence[int]) -> Layout:
        return TiledLayout.row_major(len(shape))

    # Programs.

    def compile(self, program: Program | str | bytes, options: CompileOptions | None = None) -> HostLoadedExecutable:
        self.check_open()
        return self._load(self._compiler.compile(program, options))

    def load(self, executable: Executable, options: CompileOptions | None = None) -> HostLoadedExecutable:
        self.check_open()
        if not isinstance(executable, HostExecutable) or executable.platform_name != self.platform_name:
            raise InvalidArgumentError(f"{executable!r} was not compiled for '{self.platform_name}'")
        if options is not None:
            executable = self._compiler.compile(executable.origin.program, options)
        return self._load(HostExecutable(executable.compiled, executable.origin))

    def deserialize(self, serialized: bytes, options: CompileOptions | None = None) -> HostLoadedExecutable:
        self.check_open()
        return self._load(self._compiler.deserialize(serialized, options))

    # Buffers.

    def buffer_from_host(
        self,
        array: Any,
        *,
        device: Device | None = None,
        memory_space: MemorySpace | None = None,
        layout: Layout | None = None,
        semantics: HostBufferSemantics = HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL,
        on_done_with_host_buffer: Callable[[], object] | None = None,
    ) -> HostBuffer:
        self.check_open()
        place, space = self.choose_place(device, memory_space)
        return from_host.place(array, place, space, layout, semantics, on_done_with_host_buffer)

    def choose_place(
        self, device: Device | None, memory_space: MemorySpace | None
    ) -> tuple[HostDevice, HostMemorySpace]:
        """The device and memory space meant by a caller who may have named either, both or none."""
        if device is None and memory_space is None:
            first = self._devices[0]
            return first, first._memory_spaces[0]
        chosen, space = choose_place(self, device, memory_space)
        assert isinstance(chosen, HostDevice)
        assert isinstance(space, HostMemorySpace)
        return chosen, space

    # Its end.

    @property
    def is_closed(self) -> bool:
        return self._closed

    def check_open(self) -> None:
        """Returns if the client can be used.

        Raises:
            FailedPreconditionError: it was closed, or belongs to the parent of a forked process.
        """
        if self._closed:
            raise FailedPreconditionError(f"the client '{self.platform_name}' was closed; make a new one")
        if self._generation != generation():
            raise forked()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._generation != generation():
            return
        self._finish()
        for device in self._devices:
            device.compute.close()
            device.transfers.close()

    def _finish(self) -> None:
        """Waits for the work under way; what waits for an input that nobody will bring any more is cancelled."""
        queues = [queue for device in self._devices for queue in (device.compute, device.transfers)]
        while any(queue.is_busy for queue in queues):
            for queue in queues:
                queue.drain()
        while self._dispatcher.is_waiting:
            self._dispatcher.cancel_waiting(f"the client '{self.platform_name}' was closed")
            for queue in queues:
                queue.drain()

    def _load(self, executable: HostExecutable) -> HostLoadedExecutable:
        options = executable.origin.options
        assignment = options.device_assignment
        if (
            assignment is None
            and options.device_ordinal >= 0
            and executable.num_replicas * executable.num_partitions == 1
        ):
            assignment = DeviceAssignment(((self._device_at(options.device_ordinal).id,),))
        if assignment is None:
            assignment = self.default_device_assignment(options.num_replicas, options.num_partitions)
        for row in assignment.device_ids:
            for device_id in row:
                self.lookup_device(device_id)
        return HostLoadedExecutable(self, executable, assignment)

    def _device_at(self, ordinal: int) -> HostDevice:
        if ordinal >= len(self._devices):
            raise InvalidArgumentError(
                f"device_ordinal is {ordinal}, '{self.platform_name}' has {len(self._devices)} devices"
            )
        return self._devices[ordinal]

    def enqueue(self, *args: Any) -> None:
        """Runs the executions of one launch when their inputs are there."""
        self._dispatcher.enqueue(*args)


def _limits(memory_limit: int | Mapping[str, int] | None, kinds: Sequence[str]) -> dict[str, int]:
    if memory_limit is None:
        return {}
    if isinstance(memory_limit, int):
        return {kinds[0]: memory_limit}
    for kind in memory_limit:
        if kind not in kinds:
            raise InvalidArgumentError(f"memory_limit names the kind {kind!r}, the devices have {', '.join(kinds)}")
    return dict(memory_limit)
