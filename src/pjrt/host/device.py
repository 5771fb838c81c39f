"""The devices of the host runtime: descriptions, memory spaces, infeed, capabilities and topology."""

from __future__ import annotations

import functools
import hashlib
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pjrt.api.capability import Capabilities, Effort, Feature, Support, try_compiling
from pjrt.api.checks import expect, expect_callable, expect_int, topology_options
from pjrt.api.client import Client
from pjrt.api.compile_options import CompileOptions
from pjrt.api.device import (
    AllocatorStats,
    AsyncTrackingEvent,
    Attributes,
    DescribedDevice,
    DeviceFacts,
    MemorySpaceFacts,
)
from pjrt.api.element_type import ElementType
from pjrt.api.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    PjrtError,
    unimplemented,
)
from pjrt.api.program import AnyProgram
from pjrt.api.shape_spec import Layout, Shapes, ShapeSpec, TiledLayout, expect_shape
from pjrt.api.topology import TopologyDescription
from pjrt.host.device_memory import Allocation, Memory, has_layouts, kept_spec, layout_in
from pjrt.host.executable import HostExecutable, TopologyExecutable
from pjrt.host.fences import FenceWaiter
from pjrt.host.processes import Membership
from pjrt.host.shutdown import runtime_lock
from pjrt.host.storage import MemoryAccount, freeze
from pjrt.host.work_queue import WorkQueue
from pjrt.host_memory.array import HostArray, order_and_layout

if TYPE_CHECKING:
    from pjrt.host.client import HostClient, HostCompiler
    from pjrt.host.execution import Execution

_WAIT_SLICE_SECONDS = 0.2


class Feed:
    """A queue of values between the host and the programs of one device.

    Args:
        name: its name, for messages.
    """

    __slots__ = ("_changed", "_name", "_values")

    def __init__(self, name: str) -> None:
        self._name = name
        self._values: deque[Any] = deque()
        self._changed = threading.Condition(runtime_lock)

    def put(self, value: Any) -> None:
        """Add a value at the end; never waits."""
        with self._changed:
            self._values.append(value)
            self._changed.notify()

    def get(self, timeout: float | None = None, check: Callable[[], object] = lambda: None) -> Any:
        """Remove and return the first value; wait for it.

        Args:
            timeout: the longest time to wait, in seconds; ``None`` is no limit.
            check: called from time to time while waiting; its exceptions end the wait.

        Raises:
            DeadlineExceededError: no value came in time.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._changed:
                if self._values:
                    return self._values.popleft()
                left = _WAIT_SLICE_SECONDS if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    raise DeadlineExceededError(f"nothing came on the {self._name} within {timeout:g} s")
                self._changed.wait(min(left, _WAIT_SLICE_SECONDS))
                if self._values:
                    continue
            check()

    def __len__(self) -> int:
        return len(self._values)


# The memory spaces of a host device.


class HostMemorySpace(MemorySpaceFacts):
    """One kind of memory of one device. All kinds are memory of this process, with separate accounts."""

    __slots__ = ("account",)

    client: HostClient
    devices: Sequence[HostDevice]

    def __init__(self, device: HostDevice, space_id: int, kind: str, kind_id: int, limit: int | None) -> None:
        super().__init__(device.client, space_id, kind, kind_id, text=f"{kind}(id={space_id}) of {device}")
        self.devices = (device,)
        self.account = MemoryAccount(f"{device.description}, memory '{kind}'", limit, device.wait_for_memory)

    def size_of(self, spec: ShapeSpec) -> int:
        """Return the bytes that an array takes in this memory."""
        memory = self.client.memory
        if memory is None or spec.element_type is ElementType.TOKEN:
            return spec.size_in_bytes
        size = memory.size_of(kept_spec(memory, spec, self), self)
        return expect_int(size, f"a number of bytes from {type(memory).__name__}.size_of")

    @property
    def has_layouts(self) -> bool:
        memory = self.client.memory
        return has_layouts(memory) or (memory is not None and type(memory).size_of is not Memory.size_of)

    def layout(self, spec: ShapeSpec) -> TiledLayout | None:
        return self.place(spec)[1]

    def place(self, spec: ShapeSpec) -> tuple[tuple[int, ...] | None, TiledLayout | None]:
        """Return the order in which the host holds an array for this memory, and how the memory lays it out; both are
        ``None`` for rows.

        Raises:
            PjrtError: the memory holds no arrays in the layout of the spec.
        """
        memory = self.client.memory
        if memory is None:
            return order_and_layout(spec.layout, spec.shape, spec.element_type)
        return None, layout_in(memory, spec, self)


# The devices of the host runtime.


class HostDevice(DescribedDevice[HostMemorySpace]):
    """A device whose programs run on a thread of this process.

    Attributes:
        compute: the queue on which programs run, one after the other.
        transfers: the queue on which large copies run, so that they do not wait for programs.
        launches: the executions under way that have a launch id, in the order in which they came.
        fences: the work that programs have enqueued on hardware of the device.
        awaits_infeed: whether the host has asked for ``infeed``: a program then waits for its values without a limit.
        outfeed: values from running programs for the host.
    """

    __slots__ = ("_infeed", "_tracked", "awaits_infeed", "compute", "fences", "launches", "outfeed", "transfers")

    client: HostClient

    def __init__(self, client: HostClient, description: DeviceFacts, platform: PlatformSpec) -> None:
        member = platform.membership
        is_here = description.process_index == member.process_index
        number = description.id - member.first_device_ids[member.process_index]
        super().__init__(client, description, (), number if is_here else -1, is_addressable=is_here)
        memories = description.memory_space_descriptions if is_here else ()
        first = description.id * len(memories)
        limits = platform.memory_limits
        self.memory_spaces = tuple(
            HostMemorySpace(self, first + m.kind_id, m.kind, m.kind_id, limits.get(m.kind)) for m in memories
        )
        self.launches: dict[Execution, None] = {}
        self._infeed = Feed(f"infeed of {description}")
        self.awaits_infeed = False
        self.outfeed = Feed(f"outfeed of {description}")
        self._tracked: set[HostAsyncTrackingEvent] = set()
        name = f"{platform.name}:{description.id}"
        self.compute = WorkQueue(name)
        self.transfers = WorkQueue(name, "transfers")
        reset = None if platform.reset is None else functools.partial(platform.reset, self)
        self.fences = FenceWaiter(name, platform.watchdog_seconds, reset)

    @property
    def infeed(self) -> Feed:
        """The values from the host for running programs."""
        self.awaits_infeed = True
        return self._infeed

    def next_infeed(self, timeout: float | None, check: Callable[[], object]) -> Any:
        """Return the next value of the infeed, for a program; see ``Feed.get``.

        Where the host never asks for ``infeed``, as a framework never does, nobody feeds the device. So the program
        waits no longer than it would for another device.

        Raises:
            DeadlineExceededError: no value came in time.
        """
        limit = self.client.collective_timeout if timeout is None else timeout
        try:
            return self._infeed.get(limit, check)
        except DeadlineExceededError as error:
            if timeout is None and self.awaits_infeed:
                return self._infeed.get(None, check)
            raise DeadlineExceededError(
                f"{error.message}: a program waits for values that the host gives to device.infeed.put"
            ) from error

    def stored(self, array: HostArray, spec: ShapeSpec, space: HostMemorySpace) -> Any:
        """Return a new host array as the value of a storage: frozen, or copied into memory of the device's own."""
        memory = self.client.memory
        return freeze(array) if memory is None else Allocation.of_array(memory, array, spec, space)

    def wait_for_memory(self) -> bool:
        """Wait until work under way has returned memory that it alone holds; return whether there was such work."""
        return self.client.dispatcher.wait_for_memory(self)

    def memory_stats(self) -> AllocatorStats:
        space, memory = self.default_memory_space, self.client.memory
        stats = space.account.stats()
        return stats if memory is None else stats._replace(**memory.stats(space))

    def clear_memory_stats(self) -> None:
        self.default_memory_space.account.clear_peak()

    def poison_execution(self, launch_id: int, error: PjrtError) -> bool:
        expect_int(launch_id, "a launch id as a whole number")
        expect(error, PjrtError, "an error as pjrt.PjrtError")
        # What the device's own queue has begun came before what still waits for its inputs.
        if self.fences.poison_first(error, launch_id):
            return True
        running = [execution for execution in list(self.launches) if execution.launch_id == launch_id]
        return any(execution.poison(error) for execution in running)

    def create_async_tracking_event(self, description: str) -> HostAsyncTrackingEvent:
        expect(description, str, "a description as a str")
        event = HostAsyncTrackingEvent(self._tracked, description)
        self._tracked.add(event)
        return event

    @property
    def tracked(self) -> list[str]:
        """The descriptions of the asynchronous operations under way that ``create_async_tracking_event`` marked."""
        return sorted(event.description for event in list(self._tracked))


class HostAsyncTrackingEvent(AsyncTrackingEvent):
    """A mark that an asynchronous operation goes on, until it is closed.

    Attributes:
        description: the operation.
    """

    __slots__ = ("_among", "description")

    def __init__(self, among: set[HostAsyncTrackingEvent], description: str) -> None:
        self._among = among
        self.description = description

    def close(self) -> None:
        self._among.discard(self)


# Platform specs: the checked facts of a host platform.

MEMORY_KINDS = ("device", "pinned_host", "unpinned_host")
"""The default kinds of memory of a host device, its default one first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformSpec:
    """The facts of a platform; ``HostClient`` documents them."""

    name: str
    version: str
    num_devices: int
    device_kind: str
    device_attributes: Attributes
    attributes: Attributes
    memory_kinds: Sequence[str]
    memory_limit: int | Mapping[str, int] | None
    membership: Membership
    alignment: int
    watchdog_seconds: float | None
    reset: Callable[[Any], object] | None

    def __post_init__(self) -> None:
        if self.num_devices < 1:
            raise InvalidArgumentError(f"a client has one device or more, num_devices is {self.num_devices}")
        if not self.memory_kinds:
            raise InvalidArgumentError("a device has one kind of memory or more, memory_kinds is empty")
        if self.alignment < 1 or self.alignment & (self.alignment - 1):
            raise InvalidArgumentError(f"an alignment is a power of two, found {self.alignment}")
        seconds = self.watchdog_seconds
        if seconds is not None and not (isinstance(seconds, (int, float)) and 0 < seconds < threading.TIMEOUT_MAX):
            raise InvalidArgumentError(f"expected watchdog_seconds as a positive number of seconds, found {seconds!r}")
        if self.reset is not None:
            expect_callable(self.reset, "a function of a device as reset, or None")
        for kind in self.memory_limits:
            if kind not in self.memory_kinds:
                raise InvalidArgumentError(
                    f"memory_limit names the kind {kind!r}, the devices have {', '.join(self.memory_kinds)}"
                )

    @property
    def memory_limits(self) -> Mapping[str, int]:
        """The most bytes in use by kind of memory, for the kinds that have a limit."""
        if self.memory_limit is None:
            return {}
        if isinstance(self.memory_limit, int):
            return {self.memory_kinds[0]: self.memory_limit}
        return self.memory_limit

    def describe(self) -> list[DeviceFacts]:
        """Return the descriptions of the devices of all processes, in the order of their ids."""
        return [
            DeviceFacts(first + number, process, self.device_kind, self.memory_kinds, self.device_attributes)
            for process, (first, count) in enumerate(
                zip(self.membership.first_device_ids, self.membership.device_counts, strict=True)
            )
            for number in range(count)
        ]


# The capabilities of a host client's devices: the runtime's, and the author's declarations.

_RUNTIME = {
    Feature.ALIAS_BUFFERS: True,
    Feature.AOT_TOPOLOGIES: True,
    Feature.ASYNC_TRANSFERS: True,
    Feature.CROSS_HOST_TRANSFERS: False,
    Feature.DEVICE_VIEWS: True,
    Feature.DMA_MAPPING: True,
    Feature.DONATION: True,
    Feature.ERROR_BUFFERS: True,
    Feature.EXECUTE_CONTEXTS: True,
    Feature.HOST_CALLBACKS: True,
    Feature.LAYOUTS: True,
    Feature.MEMORY_STATISTICS: True,
    Feature.SERIALIZATION: True,
    Feature.STRIDED_LAYOUTS: False,
    Feature.TILED_LAYOUTS: False,
    Feature.UNINITIALIZED_BUFFERS: True,
}
"""The abilities of the runtime; the author declares what programs may contain."""

_OF_LAYOUTS = (Feature.LAYOUTS, Feature.TILED_LAYOUTS)


def describe(compiler: HostCompiler, descriptions: Sequence[DeviceFacts], attributes: Attributes) -> Capabilities:
    """Return the capabilities of described devices: the author's declarations first, then attributes and runtime."""
    kinds = dict.fromkeys(memory.kind for device in descriptions for memory in device.memory_space_descriptions)
    names = dict.fromkeys(device.kind for device in descriptions)
    memory = compiler.memory
    lacking = {}
    if memory is not None:
        lacking = {Feature.DEVICE_VIEWS: memory.is_on_host, **dict.fromkeys(_OF_LAYOUTS, has_layouts(memory))}
    runtime = Capabilities(
        num_devices=len(descriptions),
        memory_kinds=tuple(kinds),
        program_formats=compiler.formats,
        features={**_RUNTIME, **lacking},
        variants={"device_kind": ", ".join(names)},
    )
    return compiler.declared_capabilities().completed(Capabilities.from_attributes(attributes)).completed(runtime)


# The topology of a host client: the descriptions of its devices.


class HostTopology(TopologyDescription):
    """Described devices of a host platform, and its compiler.

    Args:
        compiler: the compiler.
        descriptions: the devices.
        attributes: the attributes of all together.
        home: a device of a client, perhaps of a closed one, whose memory says how such devices lay out arrays; ``None``
            where they lie in rows.
    """

    __slots__ = ("_compiler", "_home", "attributes", "device_descriptions")

    attributes: Attributes
    device_descriptions: Sequence[DeviceFacts]

    def __init__(
        self,
        compiler: HostCompiler,
        descriptions: Sequence[DeviceFacts],
        attributes: Attributes,
        home: HostDevice | None = None,
    ) -> None:
        self._compiler = compiler
        self._home = home
        self.device_descriptions = tuple(descriptions)
        self.attributes = dict(attributes)

    @property
    def platform_name(self) -> str:
        return self._compiler.platform_name

    @property
    def platform_version(self) -> str:
        return self._compiler.platform_version

    def compile(
        self,
        program: AnyProgram,
        options: CompileOptions | None = None,
        *,
        client: Client | None = None,
        shapes: Shapes | None = None,
    ) -> HostExecutable:
        if client is not None:
            expect(client, Client, "a client whose devices may be used while compiling, or None")
        executable, home = self._compiler.compile(program, options, shapes), self._home
        return executable if home is None else TopologyExecutable(executable.compiled, executable.origin, home)

    @property
    def capabilities(self) -> Capabilities:
        return describe(self._compiler, self.device_descriptions, self.attributes)

    def supports(
        self,
        program: AnyProgram,
        options: CompileOptions | None = None,
        *,
        effort: Effort | str | None = None,
    ) -> Support:
        return self._compiler.supports(
            program, options, effort, self.capabilities, lambda: try_compiling(self, program, options)
        )

    def serialize(self) -> bytes:
        description = {
            "platform": self.platform_name,
            "version": self.platform_version,
            "attributes": self.attributes,
            "devices": [
                {
                    "id": d.id,
                    "process": d.process_index,
                    "kind": d.kind,
                    "attributes": d.attributes,
                    "memories": [m.kind for m in d.memory_space_descriptions],
                }
                for d in self.device_descriptions
            ],
        }
        return json.dumps(description, sort_keys=True).encode()

    def deserialize(self, serialized: bytes) -> HostTopology:
        try:
            description = json.loads(serialized)
            platform = description["platform"]
            devices = [
                DeviceFacts(d["id"], d["process"], d["kind"], d["memories"], _attributes(d["attributes"]))
                for d in description["devices"]
            ]
            attributes = _attributes(description["attributes"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidArgumentError(f"expected a serialized topology of '{self.platform_name}': {error}") from error
        if platform != self.platform_name:
            raise InvalidArgumentError(f"the topology is of '{platform}', this is '{self.platform_name}'")
        return HostTopology(self._compiler, devices, attributes, self._home)

    def fingerprint(self) -> int:
        return int.from_bytes(hashlib.sha256(self.serialize()).digest()[:8], "little")

    def default_layout(self, element_type: ElementType, shape: Sequence[int]) -> Layout:
        expect(element_type, ElementType, "an element type as pjrt.ElementType")
        rows = TiledLayout.row_major(len(expect_shape(shape)))
        own = self._home and self._home.default_memory_space.layout(ShapeSpec(tuple(shape), element_type))
        return own or rows

    def size_of(self, spec: ShapeSpec) -> int:
        return spec.size_in_bytes if self._home is None else self._home.default_memory_space.size_of(spec)

    @property
    def memory_space_kind_ids(self) -> Sequence[int]:
        return sorted({m.kind_id for d in self.device_descriptions for m in d.memory_space_descriptions})


def _attributes(values: dict[str, Any]) -> Attributes:
    """Return attributes from JSON, which has lists instead of tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def named_topology(platform: str, make: Callable[..., Client], name: str, options: Mapping[str, Any]) -> HostTopology:
    """Return the topology of a new client, which is closed again: a topology describes devices and needs no client.

    Args:
        platform: the device's name, for messages.
        make: a function that makes a client of the options.
        name: the number of devices, such as ``8``; empty for the default number.
        options: those of the client; ``num_devices`` may stand there instead of in the name.

    Raises:
        InvalidArgumentError: the name is not a number, or the options have ``num_devices`` too.
        UnimplementedError: the clients are not host clients, or have another number of devices than the name.
    """
    with make(**topology_options(platform, name, options)) as client:
        topology = client.topology
        if not isinstance(topology, HostTopology):
            raise unimplemented(platform, "Plugin.topology")
        count = len(client.addressable_devices)
        if name and count != int(name):
            raise unimplemented(platform, f"the topology {name!r}", f"it always has {count} devices")
        return topology
