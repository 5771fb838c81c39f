"""Shardings: how an array is spread over devices (``xla::ifrt::Sharding``).

A sharding names devices, a kind of memory, and the part of an array that each device has. This module has the base
class and the two simplest kinds; ``concrete_sharding`` has those that list their parts, ``hlo_sharding`` and
``sharding_param`` those that cut an array of any size by a rule.
"""

from __future__ import annotations

import abc
import enum
import functools
from collections.abc import Iterable, Sequence
from typing import Any

from pjrt.api.device import Device, MemorySpace
from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.api.shape_spec import expect_shape
from pjrt.ifrt.device_list import DeviceList
from pjrt.ifrt.index_domain import IndexDomain

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
        return tuple(
            device.default_memory_space if self.memory_kind is None else device.memory_space(self.memory_kind)
            for device in self.devices.addressable_devices
        )

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
                domains = tuple(domain for domain, device in pairs if device.is_addressable)
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
        return tuple(sharding for sharding, device in pairs if device.is_addressable)

    @functools.cached_property
    def _shardings_of_shards(self) -> tuple[SingleDeviceSharding, ...]:
        return tuple(SingleDeviceSharding(device, self.memory_kind) for device in self.devices)

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
