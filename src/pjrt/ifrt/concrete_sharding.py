"""Concrete shardings: listed shards of an array of one shape (``xla::ifrt::ConcreteSharding`` and its kin)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pjrt.api.device import Device
from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.api.shape_spec import expect_shape
from pjrt.ifrt.device_list import DeviceList
from pjrt.ifrt.index_domain import IndexDomain
from pjrt.ifrt.sharding import Shape, Sharding, SingleDeviceSharding, SingleDeviceShardSemantics


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
