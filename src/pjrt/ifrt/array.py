"""Arrays spread over devices (``xla::ifrt::Array``), and one array of those of single devices."""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pjrt.api.buffer import ArrayValue, Buffer
from pjrt.api.device import Device
from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError
from pjrt.api.future import Future
from pjrt.api.shape_spec import Layout, expect_shape, format_shape
from pjrt.ifrt.hlo_sharding import HloSharding
from pjrt.ifrt.sharding import IndexDomain, Shape, Sharding, SingleDeviceSharding, SingleDeviceShardSemantics
from pjrt.stablehlo.ir.sharding import REDUCE

if TYPE_CHECKING:
    from pjrt.ifrt.client import Client


class ArrayCopySemantics(enum.Enum):
    """The rule for the memory of an operation's input (``xla::ifrt::ArrayCopySemantics``)."""

    ALWAYS_COPY = "always_copy"
    """The output has memory of its own."""
    REUSE_INPUT = "reuse_input"
    """The output may share the input's memory; deleting one deletes what they share."""
    DONATE_INPUT = "donate_input"
    """The output may take the input's memory; the input is deleted."""


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """An array without its data (``xla::ifrt::ArraySpec``).

    Attributes:
        shape: the shape of the whole array.
        element_type: the type of its elements; a numpy dtype is taken too.
        sharding: the devices and the part of each.
        layout: the layout of each shard; ``None`` is the devices' default.
    """

    shape: Shape
    element_type: ElementType
    sharding: Sharding
    layout: Layout | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", expect_shape(self.shape))
        object.__setattr__(self, "element_type", ElementType.of(self.element_type))

    def __str__(self) -> str:
        return f"{format_shape(self.element_type, self.shape)} with {self.sharding!r}"


class Shard(NamedTuple):
    """One device's part of an array.

    Attributes:
        device: the device.
        domain: the indices of the whole array that it has.
        buffer: the values; a short tile of an uneven sharding is padded at its end.
    """

    device: Device
    domain: IndexDomain
    buffer: Buffer


class Array(ArrayValue):
    """An array whose parts are buffers on the devices of its sharding.

    Clients make arrays, with ``make_array`` and others. The values may come later: ``ready`` tells when all are there,
    and fails with the error of a shard that failed. Arrays are immutable and may be used by several threads.
    """

    __slots__ = ("__weakref__", "_buffers", "_client", "_deleted", "spec")

    def __init__(self, client: Client, spec: ArraySpec, buffers: Sequence[Buffer]) -> None:
        self.spec = spec
        self._client = client
        self._buffers = tuple(buffers)
        self._deleted = False

    @property
    def client(self) -> Client:
        """The client that the array belongs to."""
        return self._client

    @property
    def shape(self) -> Shape:
        """The shape of the whole array."""
        return self.spec.shape

    @property
    def element_type(self) -> ElementType:
        """The type of the elements."""
        return self.spec.element_type

    @property
    def sharding(self) -> Sharding:
        """The devices and the part of each."""
        return self.spec.sharding

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The buffer of each addressable device, in the sharding's order.

        Raises:
            FailedPreconditionError: the array was deleted or donated.
        """
        if self._deleted:
            raise FailedPreconditionError(f"the array {self.spec} was deleted or donated")
        return self._buffers

    def _check_alive(self) -> None:
        """Raise an error if the array, or one of its shards, was deleted.

        Raises:
            FailedPreconditionError: the array was deleted or donated, or an array that shares a shard's memory was.
        """
        for buffer in self.buffers:
            if buffer.is_deleted:
                raise FailedPreconditionError(
                    f"the shard on {buffer.device} of the array {self.spec} was deleted or donated"
                )

    @property
    def layout(self) -> Layout:
        """The layout of each shard; where no shard is in this process, the one that the array was made with."""
        if not self.buffers:
            return self.spec.layout or self._client.default_layout(self.spec)
        return self.buffers[0].layout

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The shards of this process, in the sharding's order."""
        domains = self.sharding.index_domains(self.shape)
        devices = self.sharding.devices.addressable_devices
        return tuple(map(Shard, devices, domains, self.buffers))

    def ready(self) -> Future[None]:
        """Return a future that is done when all shards have their values (``GetReadyFuture``)."""
        self._check_alive()
        if len(self._buffers) == 1:  # most arrays: no future of several is made
            return self._buffers[0].ready()
        return Future.all([buffer.ready() for buffer in self._buffers])

    @property
    def is_deleted(self) -> bool:
        """Whether the array was deleted or donated."""
        return self._deleted or any(buffer.is_deleted for buffer in self._buffers)

    def delete(self) -> None:
        """Free the memory of all shards (``Delete``); work that uses it ends first. May be called again."""
        if self._deleted:  # the shards of a donated array are another array's
            return
        self._deleted = True
        for buffer in self._buffers:
            buffer.delete()

    def to_host(self) -> Future[np.ndarray[Any, Any]]:
        """Return a future of the whole array on the host (``CopyToHostBuffer``).

        An array that one shard has whole is not copied where the device's memory is the host's.

        Raises:
            InvalidArgumentError: other processes have parts of the array that no shard here has too.
            UnimplementedError: the sharding does not know the places of its shards.
            FailedPreconditionError: the array was deleted or donated.
        """
        self._check_alive()
        sharding, shards = self.sharding, self.shards
        reduction = reduction_of(sharding)
        whole = next((s for s in shards if s.domain.shape == self.shape and reduction is None), None)
        if whole is not None and whole.buffer.shape == self.shape:
            return whole.buffer.to_host()
        parts_of_devices = contents(self.spec)
        here = [part for part, device in zip(parts_of_devices, sharding.devices, strict=True) if device.is_addressable]
        if missing := {part for part in parts_of_devices if part.domain.size} - set(here):
            domains = ", ".join(sorted({str(part.domain) for part in missing}))
            raise InvalidArgumentError(
                f"expected all parts of the array {self.spec} in this process, found {domains} only in others; read "
                "array.shards, or reshard the array"
            )
        distinct = list(dict(zip(here, shards, strict=True)).values())
        parts = [shard.buffer.to_host() for shard in distinct]
        shape, dtype = self.shape, self.dtype

        def assemble(_: None) -> np.ndarray[Any, Any]:
            array, begun = np.empty(shape, dtype), set()
            for shard, part in zip(distinct, parts, strict=True):
                tile = part.result()[tuple(slice(0, size) for size in shard.domain.shape)]
                if shard.domain in begun:
                    tile = REDUCE[reduction](array[shard.domain.slices], tile)
                array[shard.domain.slices] = tile
                begun.add(shard.domain)
            return array

        return Future.all(parts).then(assemble)

    def disassemble(
        self,
        semantics: ArrayCopySemantics = ArrayCopySemantics.REUSE_INPUT,
        shard_semantics: SingleDeviceShardSemantics = SingleDeviceShardSemantics.ADDRESSABLE_SHARDS,
    ) -> list[Array]:
        """Return the shards as arrays of one device each (``DisassembleIntoSingleDeviceArrays``).

        A short tile of an uneven sharding is copied, without its padding.

        Raises:
            InvalidArgumentError: all shards are asked for, and other processes have some.
        """
        self.sharding.check_shards(shard_semantics)
        parts = self.sharding.disassemble(self.shape)
        arrays = []
        for buffer, (shape, sharding) in zip(self._taken(semantics), parts, strict=True):
            buffer = reshaped(buffer, self.element_type, shape)
            arrays.append(Array(self._client, ArraySpec(shape, self.element_type, sharding), [buffer]))
        return arrays

    def fully_replicated_shard(self, semantics: ArrayCopySemantics = ArrayCopySemantics.REUSE_INPUT) -> Array:
        """Return a shard of a replicated array as an array of one device (``FullyReplicatedShard``).

        Raises:
            InvalidArgumentError: the array is not fully replicated, or no shard is in this process.
        """
        if not self.sharding.is_fully_replicated:
            raise InvalidArgumentError(f"expected a fully replicated array, found {self.spec}")
        if not self.buffers:
            raise InvalidArgumentError(f"expected a shard in this process, found the array {self.spec}")
        buffer = self._taken(semantics)[0]
        sharding = SingleDeviceSharding(self.sharding.devices.addressable_devices[0], self.sharding.memory_kind)
        return Array(self._client, ArraySpec(self.shape, self.element_type, sharding), [buffer])

    def _donate(self, kept: Collection[Buffer] = ()) -> None:
        """Delete the array as an operation that takes its memory does; buffers in ``kept`` live on elsewhere."""
        self._deleted = True
        for buffer in self._buffers:
            if not any(buffer is other for other in kept):
                buffer.delete()

    def _taken(self, semantics: ArrayCopySemantics) -> tuple[Buffer, ...]:
        """Return the shards' buffers as the output of an operation has them; a donated array loses its own."""
        self._check_alive()
        buffers = self._buffers
        if semantics is ArrayCopySemantics.ALWAYS_COPY:
            return tuple(buffer.copy_to(buffer.memory_space) for buffer in buffers)
        if semantics is ArrayCopySemantics.DONATE_INPUT:
            self._deleted = True
        return buffers

    def __repr__(self) -> str:
        state = " deleted" if self.is_deleted else ""
        return f"<Array {self.spec}{state}>"


class Tuple:
    """Several values as one (``xla::ifrt::Tuple``).

    Args:
        values: arrays and tuples.
    """

    __slots__ = ("__weakref__", "values")

    def __init__(self, values: Sequence[Value]) -> None:
        self.values = tuple(values)

    @property
    def arity(self) -> int:
        """The number of values (``Arity``)."""
        return len(self.values)

    def ready(self) -> Future[None]:
        """Return a future that is done when all values are ready."""
        return Future.all([value.ready() for value in self.values])

    @property
    def is_deleted(self) -> bool:
        """Whether one of the values was deleted."""
        return any(value.is_deleted for value in self.values)

    def delete(self) -> None:
        """Delete all values; may be called again."""
        for value in self.values:
            value.delete()

    def unpack(self) -> tuple[Value, ...]:
        """Return the values (``Unpack``)."""
        return self.values

    def __repr__(self) -> str:
        return f"<Tuple of {len(self.values)} values>"


Value = Array | Tuple
"""A value of IFRT's operations (``xla::ifrt::Value``)."""


def reduction_of(sharding: Sharding) -> str | None:
    """Return how the shards make the array if they are terms (``unreduced``): ``sum``, ``max`` or ``min``."""
    return sharding.tiling.reduction if isinstance(sharding, HloSharding) and sharding.tiling.terms else None


def reshaped(buffer: Buffer, element_type: ElementType, shape: Shape) -> Buffer:
    """Return a buffer of this shape: the buffer itself, or a copy that is cut or padded with zeros at its end.

    A token has no shape. Frameworks begin a chain of tokens with an empty array, which a program may hand on.
    """
    if buffer.shape == shape or element_type is ElementType.TOKEN:
        return buffer
    part = np.asarray(buffer)[tuple(slice(0, size) for size in shape)]
    return buffer.client.buffer_from_host(padded(part, shape), memory_space=buffer.memory_space)


def padded(array: np.ndarray[Any, Any], shape: Shape) -> np.ndarray[Any, Any]:
    """Return an array with zeros at its end up to a shape; the array itself if it has that shape."""
    if array.shape == shape:
        return array
    whole = np.zeros(shape, array.dtype)
    whole[tuple(slice(0, size) for size in array.shape)] = array
    return whole


class Part(NamedTuple):
    """The contents of a shard: shards of equal parts have equal values.

    Attributes:
        domain: the indices of the whole array.
        term: the number of the term, where the array is a sum; else 0.
    """

    domain: IndexDomain
    term: int


def contents(spec: ArraySpec) -> list[Part]:
    """Return the part of an array that each device has, addressable or not.

    Raises:
        UnimplementedError: the sharding does not know the places of its shards.
    """
    domains = spec.sharding.index_domains(spec.shape, SingleDeviceShardSemantics.ALL_SHARDS)
    terms = spec.sharding.tiling.terms if isinstance(spec.sharding, HloSharding) else ()
    return list(map(Part, domains, terms or (0,) * len(domains)))


def assembled(
    shape: Sequence[int],
    sharding: Sharding,
    shards: Sequence[Array],
    element_type: ElementType | None,
    semantics: SingleDeviceShardSemantics,
) -> ArraySpec:
    """Return the array that shards make, without its data.

    Raises:
        InvalidArgumentError: shards are missing, are on other devices or in another memory, differ in element type, or
            have other shapes than the sharding says.
    """
    sharding.check_shards(semantics)
    parts = sharding.disassemble(shape, semantics)
    if len(parts) != len(shards):
        raise InvalidArgumentError(f"expected {len(parts)} shards for {sharding!r}, found {len(shards)}")
    types = {shard.element_type for shard in shards} | ({element_type} if element_type is not None else set())
    if len(types) != 1:
        raise InvalidArgumentError(
            f"expected shards of one element type, found {sorted(t.name for t in types)}"
            if types
            else f"expected an element_type, because this process has no shard of {sharding!r}"
        )
    for number, (shard, (part, single)) in enumerate(zip(shards, parts, strict=True)):
        place = shard.sharding
        fits = shard.shape == part or shard.element_type is ElementType.TOKEN
        if not fits or (place.devices, place.memory_kind) != (single.devices, single.memory_kind):
            raise InvalidArgumentError(
                f"expected shard {number} of {list(shape)} with {sharding!r} to be {list(part)} on "
                f"{single.devices[0]} in {single.memory_kind}, found {shard.spec}"
            )
    return ArraySpec(tuple(shape), types.pop(), sharding)
