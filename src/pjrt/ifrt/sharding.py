"""Shardings: how an array is spread over devices (``xla::ifrt::Sharding``).

A sharding names devices, a kind of memory, and the part of an array that each device has. This module has the base
class, the two simplest kinds, and those that list their parts; ``hlo_sharding`` has those that cut an array of any size
by a rule.
"""

from __future__ import annotations

import abc
import enum
import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, overload

from pjrt.api.checks import expect_all
from pjrt.api.client import Client
from pjrt.api.device import Device, MemorySpace
from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.api.shape_spec import expect_shape


@dataclass(frozen=True, slots=True)
class IndexDomain:
    """A box of indices.

    Attributes:
        origin: the first index of each dimension (``xla::ifrt::Index``).
        shape: the number of indices along each dimension; 0 for a shard that holds nothing.
    """

    origin: tuple[int, ...]
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "origin", expect_shape(self.origin))
        object.__setattr__(self, "shape", expect_shape(self.shape))
        if len(self.origin) != len(self.shape):
            raise InvalidArgumentError(
                f"expected an origin and a shape of the same number of dimensions, found {self.origin} and {self.shape}"
            )

    @staticmethod
    def whole(shape: tuple[int, ...]) -> IndexDomain:
        """Return the domain of a whole array."""
        return IndexDomain((0,) * len(shape), tuple(shape))

    @property
    def slices(self) -> tuple[slice, ...]:
        """The slices that take this domain out of the whole array."""
        return tuple(slice(begin, begin + size) for begin, size in zip(self.origin, self.shape, strict=True))

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def intersection(self, other: IndexDomain) -> IndexDomain | None:
        """Return the indices that both domains have, or ``None`` if there are none."""
        begins = [max(a, b) for a, b in zip(self.origin, other.origin, strict=True)]
        ends = [
            min(a + m, b + n) for a, m, b, n in zip(self.origin, self.shape, other.origin, other.shape, strict=True)
        ]
        if any(begin >= end for begin, end in zip(begins, ends, strict=True)):
            return None
        return IndexDomain(tuple(begins), tuple(end - begin for begin, end in zip(begins, ends, strict=True)))

    def within(self, outer: IndexDomain) -> IndexDomain:
        """Return this domain with indices that count from the origin of another one, which contains it."""
        return IndexDomain(tuple(a - b for a, b in zip(self.origin, outer.origin, strict=True)), self.shape)

    def __str__(self) -> str:
        return "[" + ", ".join(f"{s.start}:{s.stop}" for s in self.slices) + "]"


class DeviceList(Sequence[Device]):
    """Devices of one client, each once, in a fixed order.

    Two lists are equal if they have the same devices in the same order.

    Args:
        devices: the devices; devices of other processes are allowed.

    Attributes:
        ids: the global ids of the devices.
        addressable_devices: the devices that this process can use (``AddressableDeviceList``).

    Raises:
        InvalidArgumentError: the list is empty, has a device twice, or has devices of several clients.
    """

    __slots__ = ("_devices", "_hash", "addressable_devices", "ids")

    def __init__(self, devices: Iterable[Device]) -> None:
        self._devices = tuple(expect_all(devices, Device, "a device of a client"))
        if not self._devices:
            raise InvalidArgumentError("expected at least one device, found an empty list")
        ids = [device.id for device in self._devices]
        if len(set(ids)) != len(ids):
            raise InvalidArgumentError(f"expected each device once, found the ids {ids}")
        others = {id(device.client) for device in self._devices}
        if len(others) > 1:
            raise InvalidArgumentError(f"expected devices of one client, found devices of {len(others)}")
        self.ids = tuple(ids)
        self._hash = hash(self.ids)
        self.addressable_devices = tuple([device for device in self._devices if device.is_addressable])

    @staticmethod
    def of(devices: DeviceList | Iterable[Device]) -> DeviceList:
        """Return the devices as a device list."""
        return devices if isinstance(devices, DeviceList) else DeviceList(devices)

    @property
    def client(self) -> Client:
        """The client of all devices."""
        return self._devices[0].client

    @property
    def is_fully_addressable(self) -> bool:
        """Whether this process can use all of the devices."""
        return len(self.addressable_devices) == len(self._devices)

    def __len__(self) -> int:
        return len(self._devices)

    @overload
    def __getitem__(self, index: int) -> Device: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Device, ...]: ...
    def __getitem__(self, index: Any) -> Any:
        return self._devices[index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeviceList):
            return NotImplemented
        return self is other or self._devices == other._devices

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"DeviceList([{', '.join(map(str, self._devices))}])"


Shape = tuple[int, ...]

_SHAPES_KEPT = 64
"""The number of shapes whose domains a sharding keeps; a program has few, lengths of sequences may be many."""


class SingleDeviceShardSemantics(enum.Enum):
    """A choice of the shards of an array (``xla::ifrt::SingleDeviceShardSemantics``)."""

    ADDRESSABLE_SHARDS = "addressable_shards"
    """The shards on devices of this process."""
    ALL_SHARDS = "all_shards"
    """The shards on all devices; an error for an array of which other processes have some."""


class Sharding(abc.ABC):
    """The devices of an array and what each of them has. Shardings are immutable.

    Args:
        devices: the devices; shard ``i`` of an array is on device ``i``.
        memory_kind: the kind of memory on the devices; ``None`` is their default kind.

    Raises:
        InvalidArgumentError: the devices are not a device list.
        NotFoundError: the devices have no memory of that kind.
    """

    __slots__ = ("__dict__", "__weakref__", "_domains_by_shape", "devices", "memory_kind")

    def __init__(self, devices: DeviceList | Iterable[Device], memory_kind: str | None = None) -> None:
        self.devices = DeviceList.of(devices)
        # The memory of other processes' devices is not listed. It is taken to be like that of the devices here, so that
        # shardings are equal in all processes.
        addressable = self.devices.addressable_devices or self.devices.client.addressable_devices
        if memory_kind is not None and addressable:
            addressable[0].memory_space(memory_kind)
        elif addressable:
            memory_kind = addressable[0].default_memory_space.kind
        self.memory_kind = memory_kind
        # Arrays of one shape follow one another; their domains are computed once.
        self._domains_by_shape: dict[tuple[Shape, SingleDeviceShardSemantics], tuple[IndexDomain, ...]] = {}

    @functools.cached_property
    def memory_spaces(self) -> tuple[MemorySpace, ...]:
        """The memory space of each addressable device, where its shard lies."""
        kind = self.memory_kind
        devices = self.devices.addressable_devices
        return tuple([each.default_memory_space if kind is None else each.memory_space(kind) for each in devices])

    @property
    @abc.abstractmethod
    def is_fully_replicated(self) -> bool:
        """Whether every device has the whole array."""

    @abc.abstractmethod
    def shard_shape(self, shape: Sequence[int]) -> Shape:
        """Return the shape of each shard of an array of a shape (``GetShardShape``).

        Raises:
            InvalidArgumentError: the sharding is not for arrays of this shape, or its shards differ in shape.
            UnimplementedError: the sharding is opaque.
        """

    @abc.abstractmethod
    def all_index_domains(self, shape: Sequence[int]) -> tuple[IndexDomain, ...]:
        """Return the index domain of the shard on each device, addressable or not, of an array of a shape.

        Raises:
            InvalidArgumentError: the sharding is not for arrays of this shape.
            UnimplementedError: the sharding does not know its index domains.
        """

    def index_domains(
        self,
        shape: Sequence[int],
        semantics: SingleDeviceShardSemantics = SingleDeviceShardSemantics.ADDRESSABLE_SHARDS,
    ) -> tuple[IndexDomain, ...]:
        """Return the index domains of an array's shards (``IndexDomains``)."""
        key = (tuple(shape), semantics)
        domains = self._domains_by_shape.get(key)
        if domains is None:
            domains = self.all_index_domains(shape)
            if semantics is SingleDeviceShardSemantics.ADDRESSABLE_SHARDS:
                pairs = zip(domains, self.devices, strict=True)
                domains = tuple([domain for domain, device in pairs if device.is_addressable])
            if len(self._domains_by_shape) >= _SHAPES_KEPT:
                self._domains_by_shape.clear()
            self._domains_by_shape[key] = domains
        return domains

    def disassemble(
        self,
        shape: Sequence[int],
        semantics: SingleDeviceShardSemantics = SingleDeviceShardSemantics.ADDRESSABLE_SHARDS,
    ) -> list[tuple[Shape, SingleDeviceSharding]]:
        """Return the shape and the sharding of each shard as an array of its own (``Disassemble``)."""
        shapes = [domain.shape for domain in self.index_domains(shape, semantics)]
        return list(zip(shapes, self._single_device_shardings(semantics), strict=True))

    def _single_device_shardings(self, semantics: SingleDeviceShardSemantics) -> tuple[SingleDeviceSharding, ...]:
        if semantics is SingleDeviceShardSemantics.ALL_SHARDS:
            return self._shardings_of_shards
        pairs = zip(self._shardings_of_shards, self.devices, strict=True)
        return tuple([sharding for sharding, device in pairs if device.is_addressable])

    @functools.cached_property
    def _shardings_of_shards(self) -> tuple[SingleDeviceSharding, ...]:
        return tuple([SingleDeviceSharding(device, self.memory_kind) for device in self.devices])

    def check_shards(self, semantics: SingleDeviceShardSemantics) -> None:
        """Raise an error unless this process has the shards that are meant.

        Raises:
            InvalidArgumentError: all shards are meant, and other processes have some.
        """
        if semantics is SingleDeviceShardSemantics.ALL_SHARDS and not self.devices.is_fully_addressable:
            raise InvalidArgumentError(
                f"expected a sharding whose devices are all in this process, for ALL_SHARDS, found {self}; "
                "ADDRESSABLE_SHARDS are those of this process"
            )

    def has_same_partitioning(self, other: Sharding) -> bool:
        """Whether both cut arrays in the same way, on whatever devices (``HasSamePartitioning``)."""
        return type(self) is type(other) and self._partitioning() == other._partitioning()

    @abc.abstractmethod
    def with_device_assignment(
        self, devices: DeviceList | Iterable[Device] | None = None, memory_kind: str | None = None
    ) -> Sharding:
        """Return the same partitioning on other devices or in another kind of memory (``WithDeviceAssignment``).

        Raises:
            InvalidArgumentError: the number of devices is another one.
        """

    @abc.abstractmethod
    def _partitioning(self) -> Any:
        """Return a value that is equal for shardings of this class that cut arrays alike."""

    def _moved(
        self, devices: DeviceList | Iterable[Device] | None, memory_kind: str | None
    ) -> tuple[DeviceList, str | None]:
        moved = self.devices if devices is None else DeviceList.of(devices)
        if len(moved) != len(self.devices):
            raise InvalidArgumentError(f"expected {len(self.devices)} devices for {self}, found {len(moved)}")
        return moved, self.memory_kind if memory_kind is None else memory_kind

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sharding):
            return NotImplemented
        if self is other:
            return True
        return (
            self.devices == other.devices
            and self.memory_kind == other.memory_kind
            and self.has_same_partitioning(other)
        )

    def __hash__(self) -> int:
        return hash((type(self), self.devices, self.memory_kind))


class SingleDeviceSharding(Sharding):
    """The whole array on one device (``xla::ifrt::SingleDeviceSharding``)."""

    __slots__ = ()

    def __init__(self, device: Device, memory_kind: str | None = None) -> None:
        super().__init__((device,), memory_kind)

    def __eq__(self, other: object) -> bool:
        # Every execution compares the shardings of its arguments, and mostly such ones.
        if type(other) is SingleDeviceSharding:
            return self.devices == other.devices and self.memory_kind == other.memory_kind
        return super().__eq__(other)

    __hash__ = Sharding.__hash__

    @property
    def is_fully_replicated(self) -> bool:
        return True

    def shard_shape(self, shape: Sequence[int]) -> Shape:
        return expect_shape(shape)

    def all_index_domains(self, shape: Sequence[int]) -> tuple[IndexDomain, ...]:
        return (IndexDomain.whole(expect_shape(shape)),)

    def with_device_assignment(
        self, devices: DeviceList | Iterable[Device] | None = None, memory_kind: str | None = None
    ) -> SingleDeviceSharding:
        (device,), kind = self._moved(devices, memory_kind)
        return SingleDeviceSharding(device, kind)

    def _partitioning(self) -> Any:
        return ()

    def __repr__(self) -> str:
        return f"SingleDeviceSharding({self.devices[0]}, {self.memory_kind})"


class OpaqueSharding(Sharding):
    """Shards of unknown shapes and places (``xla::ifrt::OpaqueSharding``)."""

    __slots__ = ()

    @property
    def is_fully_replicated(self) -> bool:
        return False

    def shard_shape(self, shape: Sequence[int]) -> Shape:
        raise self._unknown()

    def all_index_domains(self, shape: Sequence[int]) -> tuple[IndexDomain, ...]:
        raise self._unknown()

    def with_device_assignment(
        self, devices: DeviceList | Iterable[Device] | None = None, memory_kind: str | None = None
    ) -> OpaqueSharding:
        return OpaqueSharding(*self._moved(devices, memory_kind))

    def _unknown(self) -> UnimplementedError:
        return UnimplementedError(f"{self} does not know the shapes and places of its shards")

    def _partitioning(self) -> Any:
        return self.devices, self.memory_kind  # equal only to itself: nothing is known

    def __repr__(self) -> str:
        return f"OpaqueSharding({self.devices}, {self.memory_kind})"


class ConcreteSharding(Sharding):
    """Listed shards of an array of one shape (``xla::ifrt::ConcreteSharding``).

    Args:
        devices: the devices.
        shape: the shape of the whole array.
        shard_shapes: the shape of the shard on each device.
        index_domains: the index domain of each shard; ``None`` if they are unknown.
        memory_kind: the kind of memory; ``None`` is the devices' default.

    Attributes:
        shape: the shape of the whole array.
        shard_shapes: the shape of the shard on each device.
        domains: the index domain of the shard on each device; ``None`` if they are unknown.

    Raises:
        InvalidArgumentError: the numbers of shards and devices differ, a shard has another number of dimensions than
            the array, or a domain has another shape than its shard or is outside the array.
    """

    __slots__ = ("domains", "shape", "shard_shapes")

    def __init__(
        self,
        devices: DeviceList | Iterable[Device],
        shape: Sequence[int],
        shard_shapes: Sequence[Sequence[int]],
        index_domains: Sequence[IndexDomain] | None = None,
        memory_kind: str | None = None,
    ) -> None:
        super().__init__(devices, memory_kind)
        self.shape = expect_shape(shape)
        self.shard_shapes = tuple(expect_shape(each) for each in shard_shapes)
        if len(self.shard_shapes) != len(self.devices):
            raise InvalidArgumentError(
                f"expected a shard shape for each of {len(self.devices)} devices, found {len(self.shard_shapes)}"
            )
        if any(len(shard) != len(self.shape) for shard in self.shard_shapes):
            raise InvalidArgumentError(
                f"expected shard shapes of {len(self.shape)} dimensions, as {list(self.shape)} has, found "
                f"{self.shard_shapes}"
            )
        self.domains = None if index_domains is None else tuple(index_domains)
        if self.domains is not None:
            self._check_domains(self.domains)

    def _check_domains(self, domains: tuple[IndexDomain, ...]) -> None:
        if tuple(domain.shape for domain in domains) != self.shard_shapes:
            raise InvalidArgumentError(
                f"expected index domains of the shards' shapes {self.shard_shapes}, found "
                f"{[str(domain) for domain in domains]}"
            )
        for domain in domains:
            if any(s.stop > size for s, size in zip(domain.slices, self.shape, strict=True)):
                raise InvalidArgumentError(f"expected index domains inside {list(self.shape)}, found {domain}")

    @property
    def is_fully_replicated(self) -> bool:
        return all(shard == self.shape for shard in self.shard_shapes)

    def shard_shape(self, shape: Sequence[int]) -> Shape:
        self._check_shape(shape)
        if len(set(self.shard_shapes)) > 1:
            raise InvalidArgumentError(f"the shards of {self} differ in shape: {self.shard_shapes}")
        return self.shard_shapes[0]

    def all_index_domains(self, shape: Sequence[int]) -> tuple[IndexDomain, ...]:
        self._check_shape(shape)
        if self.domains is None:
            raise UnimplementedError(f"{self} does not know the index domains of its shards")
        return self.domains

    def disassemble(
        self,
        shape: Sequence[int],
        semantics: SingleDeviceShardSemantics = SingleDeviceShardSemantics.ADDRESSABLE_SHARDS,
    ) -> list[tuple[Shape, SingleDeviceSharding]]:
        self._check_shape(shape)
        every = semantics is SingleDeviceShardSemantics.ALL_SHARDS
        pairs = zip(self.shard_shapes, self.devices, strict=True)
        shapes = [shard for shard, device in pairs if every or device.is_addressable]
        return list(zip(shapes, self._single_device_shardings(semantics), strict=True))

    def with_device_assignment(
        self, devices: DeviceList | Iterable[Device] | None = None, memory_kind: str | None = None
    ) -> ConcreteSharding:
        moved, kind = self._moved(devices, memory_kind)
        return ConcreteSharding(moved, self.shape, self.shard_shapes, self.domains, kind)

    def _check_shape(self, shape: Sequence[int]) -> None:
        if tuple(shape) != self.shape:
            raise InvalidArgumentError(f"{self} is for arrays of shape {list(self.shape)}, found {list(shape)}")

    def _partitioning(self) -> Any:
        return self.shape, self.shard_shapes, self.domains

    def __repr__(self) -> str:
        return f"ConcreteSharding({list(self.shape)} on {self.devices}, {self.memory_kind})"


class ConcreteEvenSharding(Sharding):
    """Shards of one shape, at unknown places, of an array of one shape (``xla::ifrt::ConcreteEvenSharding``).

    Args:
        devices: the devices.
        shape: the shape of the whole array.
        shard_shape: the shape of every shard.
        memory_kind: the kind of memory; ``None`` is the devices' default.
        is_fully_replicated: whether every shard is the whole array.

    Raises:
        InvalidArgumentError: the shards have another number of dimensions than the array, or another shape where every
            shard is the whole array.
    """

    __slots__ = ("_is_fully_replicated", "_shard_shape", "shape")

    def __init__(
        self,
        devices: DeviceList | Iterable[Device],
        shape: Sequence[int],
        shard_shape: Sequence[int],
        memory_kind: str | None = None,
        *,
        is_fully_replicated: bool = False,
    ) -> None:
        super().__init__(devices, memory_kind)
        self.shape = expect_shape(shape)
        self._shard_shape = expect_shape(shard_shape)
        self._is_fully_replicated = is_fully_replicated
        if len(self.shape) != len(self._shard_shape):
            raise InvalidArgumentError(
                f"expected a shard shape of {len(self.shape)} dimensions, as {list(self.shape)} has, found "
                f"{list(shard_shape)}"
            )
        if is_fully_replicated and self.shape != self._shard_shape:
            raise InvalidArgumentError(
                f"expected shards of the whole shape {list(self.shape)} in a replicated array, found {shard_shape}"
            )

    @property
    def is_fully_replicated(self) -> bool:
        return self._is_fully_replicated

    def shard_shape(self, shape: Sequence[int]) -> Shape:
        if tuple(shape) != self.shape:
            raise InvalidArgumentError(f"{self} is for arrays of shape {list(self.shape)}, found {list(shape)}")
        return self._shard_shape

    def all_index_domains(self, shape: Sequence[int]) -> tuple[IndexDomain, ...]:
        whole = self.shard_shape(shape)
        if self._is_fully_replicated:
            return (IndexDomain.whole(whole),) * len(self.devices)
        raise UnimplementedError(f"{self} does not know the index domains of its shards")

    def disassemble(
        self,
        shape: Sequence[int],
        semantics: SingleDeviceShardSemantics = SingleDeviceShardSemantics.ADDRESSABLE_SHARDS,
    ) -> list[tuple[Shape, SingleDeviceSharding]]:
        shard = self.shard_shape(shape)
        return [(shard, sharding) for sharding in self._single_device_shardings(semantics)]

    def with_device_assignment(
        self, devices: DeviceList | Iterable[Device] | None = None, memory_kind: str | None = None
    ) -> ConcreteEvenSharding:
        moved, kind = self._moved(devices, memory_kind)
        return ConcreteEvenSharding(
            moved, self.shape, self._shard_shape, kind, is_fully_replicated=self._is_fully_replicated
        )

    def _partitioning(self) -> Any:
        return self.shape, self._shard_shape, self._is_fully_replicated

    def __repr__(self) -> str:
        return f"ConcreteEvenSharding({list(self.shape)} in {list(self._shard_shape)} on {self.devices})"
