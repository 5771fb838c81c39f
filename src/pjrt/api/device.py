"""Devices, their descriptions, attributes and memory spaces (``PjRtDevice``, ``PjRtMemorySpace``)."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar, cast

from pjrt.api.errors import FailedPreconditionError, NotFoundError, PjrtError, unimplemented
from pjrt.api.printable import html_table, readable_bytes
from pjrt.api.shape_spec import ShapeSpec, TiledLayout

if TYPE_CHECKING:
    from pjrt.api.client import Client


NamedValue = str | int | float | bool | Sequence[int]
"""The type of an attribute or option: a string, a 64-bit integer, a 32-bit float, a boolean or a list of 64-bit
integers.
"""

Attributes = Mapping[str, NamedValue]
"""Named values by name; lists arrive as tuples of ``int``."""


class DeviceDescription(abc.ABC):
    """A device as its vendor describes it, whether or not this process can use it (``PJRT_DeviceDescription``)."""

    __slots__ = ("__weakref__",)

    @property
    @abc.abstractmethod
    def id(self) -> int:
        """The device's id, unique over all processes (``PJRT_DeviceDescription_Id``)."""

    @property
    @abc.abstractmethod
    def process_index(self) -> int:
        """The process that can address the device (``PJRT_DeviceDescription_ProcessIndex``)."""

    @property
    @abc.abstractmethod
    def kind(self) -> str:
        """The vendor's name of the kind of device, such as ``TPU v5e`` (``PJRT_DeviceDescription_Kind``)."""

    @property
    def attributes(self) -> Attributes:
        """The vendor's facts by name, such as ``coords`` (``PJRT_DeviceDescription_Attributes``)."""
        return {}

    @property
    def memory_limit_in_bytes(self) -> int | None:
        """The bytes of memory that programs can use, from the attributes; ``None`` if they do not have it."""
        limit = self.attributes.get("device_memory_bytes_limit")
        return limit if isinstance(limit, int) else None

    @property
    def memory_space_descriptions(self) -> Sequence[MemorySpaceDescription]:
        """The kinds of memory of the device, its default one first (MemoryDescriptions extension)."""
        raise unimplemented(self.kind, "DeviceDescription.memory_space_descriptions")

    @property
    def debug_string(self) -> str:
        """A long description for debugging (``PJRT_DeviceDescription_DebugString``)."""
        return str(self)

    def __str__(self) -> str:
        """Return a short description (``PJRT_DeviceDescription_ToString``)."""
        return f"{self.kind}(id={self.id})"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"


class Device(abc.ABC):
    """One device of a client (``PJRT_Device``)."""

    __slots__ = ("__weakref__",)

    @property
    @abc.abstractmethod
    def client(self) -> Client:
        """The client that the device belongs to."""

    @property
    @abc.abstractmethod
    def description(self) -> DeviceDescription:
        """The description of the device (``PJRT_Device_GetDescription``)."""

    @property
    def id(self) -> int:
        """The id of its description, unique over all processes."""
        return self.description.id

    @property
    def kind(self) -> str:
        """The kind of its description."""
        return self.description.kind

    @property
    def process_index(self) -> int:
        """The process index of its description."""
        return self.description.process_index

    @property
    @abc.abstractmethod
    def is_addressable(self) -> bool:
        """Whether this process can use the device (``PJRT_Device_IsAddressable``)."""

    @property
    @abc.abstractmethod
    def local_hardware_id(self) -> int:
        """The number of the hardware on this machine; −1 for none (``PJRT_Device_LocalHardwareId``)."""

    @property
    @abc.abstractmethod
    def memory_spaces(self) -> Sequence[MemorySpace]:
        """The memory spaces the device can address (``PJRT_Device_AddressableMemories``)."""

    @property
    @abc.abstractmethod
    def default_memory_space(self) -> MemorySpace:
        """The default memory space of buffers for this device (``PJRT_Device_DefaultMemory``)."""

    def memory_space(self, kind: str) -> MemorySpace:
        """Return the device's memory space of a kind.

        Raises:
            NotFoundError: the device has no memory of this kind.
        """
        for space in self.memory_spaces:
            if space.kind == kind:
                return space
        raise NotFoundError(
            f"{self} has no memory space of kind {kind!r}; it has {[s.kind for s in self.memory_spaces]}"
        )

    @property
    def attributes(self) -> Attributes:
        """Facts of the running device by name (``PJRT_Device_GetAttributes``)."""
        return self.description.attributes

    def memory_stats(self) -> AllocatorStats:
        """Return the state of the device's allocator (``PJRT_Device_MemoryStats``)."""
        raise unimplemented(self.client.platform_name, "Device.memory_stats")

    def clear_memory_stats(self) -> None:
        """Reset the peaks of ``memory_stats`` to the bytes in use now (``PJRT_Device_ClearMemoryStats``)."""
        raise unimplemented(self.client.platform_name, "Device.clear_memory_stats")

    def poison_execution(self, launch_id: int, error: PjrtError) -> bool:
        """Fail the earliest execution with a launch id that has not ended, instead of letting it run on
        (``PJRT_Device_PoisonExecution``).

        Returns:
            Whether there was such an execution.
        """
        raise unimplemented(self.client.platform_name, "Device.poison_execution")

    def create_async_tracking_event(self, description: str) -> AsyncTrackingEvent:
        """Mark that an asynchronous operation goes on until the event is closed; the text describes the operation
        (``PJRT_Device_CreateAsyncTrackingEvent``).
        """
        raise unimplemented(self.client.platform_name, "Device.create_async_tracking_event")

    def stream_for_external_ready_events(self) -> int:
        """Return the address of the platform's stream on which other code may wait (Stream extension)."""
        raise unimplemented(self.client.platform_name, "Device.stream_for_external_ready_events")

    def __str__(self) -> str:
        return str(self.description)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    def _repr_html_(self) -> str:
        try:
            memory = readable_bytes(self.memory_stats().bytes_in_use)
        except PjrtError:  # the device does not count it, or is gone
            memory = ""
        spaces = ", ".join(space.kind for space in self.memory_spaces)
        return html_table(self, [("id", self.id), ("kind", self.kind), ("memory", spaces), ("in use", memory)])


class AsyncTrackingEvent(abc.ABC):
    """A mark that an asynchronous operation goes on; a context manager (``PJRT_AsyncTrackingEvent``)."""

    __slots__ = ("__weakref__",)

    @abc.abstractmethod
    def close(self) -> None:
        """End the mark (``PJRT_AsyncTrackingEvent_Destroy``). A second call does nothing."""

    def __enter__(self) -> AsyncTrackingEvent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AllocatorStats(NamedTuple):
    """The state of a device's allocator, in bytes except for the count (``PJRT_Device_MemoryStats``); ``None`` if
    unknown.
    """

    bytes_in_use: int
    peak_bytes_in_use: int | None = None
    num_allocs: int | None = None
    largest_alloc_size: int | None = None
    bytes_limit: int | None = None
    bytes_reserved: int | None = None
    peak_bytes_reserved: int | None = None
    bytes_reservable_limit: int | None = None
    largest_free_block_bytes: int | None = None
    pool_bytes: int | None = None
    peak_pool_bytes: int | None = None
    peak_allocated_bytes: int | None = None


class MemorySpace(abc.ABC):
    """One memory of one or more devices, such as a device's own memory or pinned memory of the host."""

    __slots__ = ("__weakref__",)

    @property
    @abc.abstractmethod
    def client(self) -> Client:
        """The client that this memory space belongs to."""

    @property
    @abc.abstractmethod
    def id(self) -> int:
        """The id, unique among the client's memory spaces (``PJRT_Memory_Id``)."""

    @property
    @abc.abstractmethod
    def kind(self) -> str:
        """The kind, such as ``device``, ``pinned_host`` or ``unpinned_host`` (``PJRT_Memory_Kind``)."""

    @property
    @abc.abstractmethod
    def kind_id(self) -> int:
        """A number that is the same for memory spaces of the same kind (``PJRT_Memory_Kind_Id``)."""

    @property
    @abc.abstractmethod
    def devices(self) -> Sequence[Device]:
        """The devices that can address it (``PJRT_Memory_AddressableByDevices``)."""

    @property
    def has_layouts(self) -> bool:
        """Whether the memory itself says how it lays out arrays: ``layout`` and ``size_of`` answer."""
        return False

    def layout(self, spec: ShapeSpec) -> TiledLayout | None:
        """Return how the memory lays out an array; ``None`` for rows without tiles.

        Args:
            spec: the array; its layout is the order of the dimensions that is wanted, ``None`` for rows.

        Raises:
            UnimplementedError: the memory holds no such arrays, not in this order, or does not say.
        """
        raise unimplemented(self.client.platform_name, "MemorySpace.layout")

    def size_of(self, spec: ShapeSpec) -> int:
        """Return the bytes that an array takes in the memory, with tiles and padding.

        Raises:
            UnimplementedError: the memory does not say.
        """
        raise unimplemented(self.client.platform_name, "MemorySpace.size_of")

    @property
    def debug_string(self) -> str:
        """A long description for debugging (``PJRT_Memory_DebugString``)."""
        return str(self)

    def __str__(self) -> str:
        """Return a short description (``PJRT_Memory_ToString``)."""
        return f"{self.kind}(id={self.id})"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"


class MemorySpaceDescription(NamedTuple):
    """A kind of memory that a described device has (``PJRT_MemoryDescription`` of the MemoryDescriptions extension).

    Attributes:
        kind: the kind, such as ``device``.
        kind_id: a number that is the same for the same kind.
    """

    kind: str
    kind_id: int


# Devices whose facts are values, as clients in Python have them.


class DeviceFacts(DeviceDescription):
    """The description of a device, as values.

    Args:
        device_id, process_index, kind, attributes: as ``DeviceDescription`` has them.
        memories: the kinds of memory of the device, its default one first; or only their names, which are numbered.
        text: the short description; by default kind and id.
        debug_string: the long description; by default the short one.
    """

    __slots__ = ("_text", "attributes", "debug_string", "id", "kind", "memory_space_descriptions", "process_index")

    attributes: Attributes
    debug_string: str
    id: int
    kind: str
    memory_space_descriptions: Sequence[MemorySpaceDescription]
    process_index: int

    def __init__(
        self,
        device_id: int,
        process_index: int,
        kind: str,
        memories: Sequence[MemorySpaceDescription | str],
        attributes: Attributes | None = None,
        *,
        text: str = "",
        debug_string: str = "",
    ) -> None:
        self.id = device_id
        self.process_index = process_index
        self.kind = kind
        self.attributes = {} if attributes is None else dict(attributes)
        self.memory_space_descriptions = tuple(
            MemorySpaceDescription(each, number) if isinstance(each, str) else each
            for number, each in enumerate(memories)
        )
        self._text = text or f"{kind}(id={device_id})"
        self.debug_string = debug_string or self._text

    def __str__(self) -> str:
        return self._text


class MemorySpaceFacts(MemorySpace):
    """A memory space of a client, as values.

    Args:
        client, space_id, kind, kind_id: as ``MemorySpace`` has them.
        text: the short description; by default kind and id.
        debug_string: the long description; by default the short one.

    Attributes:
        devices: the devices that can address it. They are made after it, and know it.
    """

    __slots__ = ("_text", "client", "debug_string", "devices", "id", "kind", "kind_id")

    client: Client
    debug_string: str
    devices: Sequence[Device]
    id: int
    kind: str
    kind_id: int

    def __init__(
        self, client: Client, space_id: int, kind: str, kind_id: int, *, text: str = "", debug_string: str = ""
    ) -> None:
        self.client = client
        self.id = space_id
        self.kind = kind
        self.kind_id = kind_id
        self.devices = ()
        self._text = text or f"{kind}(id={space_id})"
        self.debug_string = debug_string or self._text

    def __str__(self) -> str:
        return self._text


AnySpace = TypeVar("AnySpace", bound=MemorySpace)


class DescribedDevice(Device, Generic[AnySpace]):
    """A device whose facts are values.

    Args:
        client: its client.
        description: its description.
        memory_spaces: its memory spaces, the default one first; none for a device of another process.
        local_hardware_id: the number of the hardware on this machine; -1 for none.
        is_addressable: whether this process can use it.
    """

    __slots__ = ("client", "description", "is_addressable", "local_hardware_id", "memory_spaces")

    client: Client
    description: DeviceDescription
    is_addressable: bool
    local_hardware_id: int
    memory_spaces: Sequence[AnySpace]

    def __init__(
        self,
        client: Client,
        description: DeviceDescription,
        memory_spaces: Sequence[AnySpace],
        local_hardware_id: int,
        *,
        is_addressable: bool = True,
    ) -> None:
        self.client = client
        self.description = description
        self.memory_spaces = memory_spaces
        self.local_hardware_id = local_hardware_id
        self.is_addressable = is_addressable

    @property
    def default_memory_space(self) -> AnySpace:
        if not self.memory_spaces:
            raise self.elsewhere("its memory")
        return self.memory_spaces[0]

    def memory_space(self, kind: str) -> AnySpace:
        return cast("AnySpace", super().memory_space(kind))

    def elsewhere(self, subject: str) -> FailedPreconditionError:
        """Return the error for the use of a device that belongs to another process."""
        return FailedPreconditionError(
            f"{self} belongs to process {self.process_index}: {subject} cannot be reached from process "
            f"{self.client.process_index}; use one of client.addressable_devices"
        )
