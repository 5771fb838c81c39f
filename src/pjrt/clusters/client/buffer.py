"""Buffers of a cluster, each one of a member on one of its devices; transfers to them, and copies between hosts."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from pjrt.api.buffer import AsyncHostToDeviceTransferManager, Buffer
from pjrt.api.checks import unexpected
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.device import Attributes, Device, MemorySpace
from pjrt.api.element_type import ElementType
from pjrt.api.errors import DeadlineExceededError, FailedPreconditionError, PjrtError, UnimplementedError
from pjrt.api.future import Future
from pjrt.api.shape_spec import Layout, TiledLayout
from pjrt.stablehlo.ir.types import TensorType

if TYPE_CHECKING:
    from pjrt.api.loaded_executable import LoadedExecutable
    from pjrt.clusters.client.client import ClusterClient
    from pjrt.clusters.client.device import ClusterDevice, ClusterMemorySpace


T = TypeVar("T")


class MemberFuture(Future[T]):
    """A result of a member's client, whose error gets the name of the device.

    Args:
        inner: the member's future.
        device: the device that it is about.
    """

    __slots__ = ("_device", "_inner")

    def __init__(self, inner: Future[T], device: ClusterDevice) -> None:
        super().__init__()
        self._inner = inner
        self._device = device
        self.need(inner)

    def _poll(self) -> None:
        if self._inner.done():
            self._settle(self._inner)

    def _block(self, timeout: float | None) -> None:
        with contextlib.suppress(DeadlineExceededError):
            self._inner.exception(timeout)
        self._poll()

    def _watch(self) -> None:
        self._inner.add_done_callback(self._settle)

    def _settle(self, inner: Future[Any]) -> None:
        error = inner.exception()
        if error is None:
            self._complete(inner.result())
        else:
            self._complete(None, self._device.named(error))


class ClusterBuffer(Buffer):
    """An array on one device of a cluster.

    Args:
        inner: the buffer of the member's client.
        device: the device.

    Attributes:
        inner: the buffer of the member's client.
    """

    __slots__ = ("device", "inner")

    device: ClusterDevice

    def __init__(self, inner: Buffer, device: ClusterDevice) -> None:
        self.inner = inner
        self.device = device

    # Its metadata.

    @property
    def client(self) -> ClusterClient:
        return self.device.client

    @property
    def shape(self) -> tuple[int, ...]:
        return self.inner.shape

    @property
    def element_type(self) -> ElementType:
        return self.inner.element_type

    @property
    def layout(self) -> Layout:
        return self.inner.layout

    @property
    def dynamic_dimensions(self) -> tuple[int, ...]:
        return self.inner.dynamic_dimensions

    @property
    def unpadded_shape(self) -> tuple[int, ...]:
        return self.inner.unpadded_shape

    @property
    def on_device_size(self) -> int:
        return self.inner.on_device_size

    @property
    def memory_space(self) -> ClusterMemorySpace:
        return self.device.spaces[self.inner.memory_space]

    @property
    def is_on_cpu(self) -> bool:
        return False  # its memory is in another process

    # Its lifetime.

    @property
    def is_deleted(self) -> bool:
        return self.inner.is_deleted

    def delete(self) -> None:
        self.inner.delete()

    def ready(self) -> Future[None]:
        try:
            return MemberFuture(self.inner.ready(), self.device)
        except PjrtError as error:
            self.device.fail(error)

    # To the host.

    def to_host(
        self, out: np.ndarray[Any, Any] | None = None, *, layout: Layout | None = None
    ) -> Future[np.ndarray[Any, Any]]:
        try:
            return MemberFuture(self.inner.to_host(out, layout=layout), self.device)
        except PjrtError as error:
            self.device.fail(error)

    def copy_raw_to_host(self, out: Any, offset: int = 0, size: int | None = None) -> Future[None]:
        try:
            return MemberFuture(self.inner.copy_raw_to_host(out, offset, size), self.device)
        except PjrtError as error:
            self.device.fail(error)

    def copy_raw_to_host_future(self, out: Future[Any], offset: int = 0, size: int | None = None) -> Future[None]:
        try:
            return MemberFuture(self.inner.copy_raw_to_host_future(out, offset, size), self.device)
        except PjrtError as error:
            self.device.fail(error)

    # Copies elsewhere.

    def copy_to(self, destination: Device | MemorySpace) -> Buffer:
        client = self.client
        if isinstance(destination, MemorySpace):
            # The device stays where it can: other devices may share the memory space.
            same = self.device if self.device in destination.devices else None
            device, space = client.place(same, destination)
        elif isinstance(destination, Device):
            device, space = client.place(destination, None)
        else:
            raise unexpected(destination, "a device or a memory space of this client as the destination")
        if device.member is not self.device.member:
            return client.copier.copy(self, device, space)
        try:
            target = device.inner if isinstance(destination, Device) else space.inner
            return ClusterBuffer(self.inner.copy_to(target), device)
        except PjrtError as error:
            self.device.fail(error)

    def bitcast(self, element_type: ElementType, shape: Sequence[int], layout: Layout | None = None) -> Buffer:
        try:
            return ClusterBuffer(self.inner.bitcast(element_type, shape, layout), self.device)
        except PjrtError as error:
            self.device.fail(error)

    def donate_with_control_dependency(self, dependency: Future[Any]) -> Buffer:
        try:
            return ClusterBuffer(self.inner.donate_with_control_dependency(dependency), self.device)
        except PjrtError as error:
            self.device.fail(error)


class ClusterTransferManager(AsyncHostToDeviceTransferManager):
    """Fills new buffers of one device in pieces.

    Args:
        inner: the manager of the member's client.
        device: the device.
    """

    __slots__ = ("_device", "_inner")

    def __init__(self, inner: AsyncHostToDeviceTransferManager, device: ClusterDevice) -> None:
        self._inner = inner
        self._device = device

    @property
    def device(self) -> ClusterDevice:
        return self._device

    @property
    def buffer_count(self) -> int:
        return self._inner.buffer_count

    def buffer_size(self, index: int) -> int:
        return self._inner.buffer_size(index)

    def retrieve_buffer(self, index: int) -> ClusterBuffer:
        return ClusterBuffer(self._inner.retrieve_buffer(index), self._device)

    def transfer_data(self, index: int, data: Any, offset: int = 0, *, is_last_transfer: bool = True) -> Future[None]:
        try:
            future = self._inner.transfer_data(index, data, offset, is_last_transfer=is_last_transfer)
        except PjrtError as error:
            self._device.fail(error)
        return MemberFuture(future, self._device)

    def transfer_literal(self, index: int, array: Any) -> Future[None]:
        try:
            return MemberFuture(self._inner.transfer_literal(index, array), self._device)
        except PjrtError as error:
            self._device.fail(error)

    def set_buffer_error(self, index: int, error: PjrtError) -> None:
        self._inner.set_buffer_error(index, error)

    def add_metadata(self, metadata: Attributes) -> None:
        self._inner.add_metadata(metadata)

    def close(self) -> None:
        self._inner.close()


_PROGRAMS_KEPT = 256
"""The number of programs that a client keeps; the one that was not used for the longest time goes first."""

_Key = tuple[int, int, TensorType, str]


@dataclass(slots=True)
class _Programs:
    """The programs of one copy, compiled when they are first needed, by the thread that has the lock.

    Attributes:
        permutation: sends the value from the first replica to the second.
        zeros: makes the argument of the second replica, whose value does not matter.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    permutation: LoadedExecutable | None = None
    zeros: LoadedExecutable | None = None


class CrossHostCopier:
    """Copies buffers between the hosts of a cluster.

    Args:
        client: the client of the cluster.
    """

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._kept: OrderedDict[_Key, _Programs] = OrderedDict()

    def copy(self, buffer: ClusterBuffer, device: ClusterDevice, space: ClusterMemorySpace) -> ClusterBuffer:
        """Return a copy of a buffer on a device of another host.

        Raises:
            FailedPreconditionError: the buffer was deleted or donated.
            UnimplementedError: the devices have no collectives.
        """
        if buffer.is_deleted:
            raise FailedPreconditionError(f"{buffer!r} was deleted or donated; its value is gone")
        source = buffer.device
        default = source.default_memory_space
        if buffer.memory_space is not default:
            buffer = ClusterBuffer(buffer.inner.copy_to(default.inner), source)
        permutation, zeros = self._programs(buffer, device)
        (argument,) = zeros.execute([[]])
        _, (result,) = permutation.execute([[buffer], argument])
        assert isinstance(result, ClusterBuffer)
        if space is device.default_memory_space:
            return result
        return ClusterBuffer(result.inner.copy_to(space.inner), device)

    def _programs(self, buffer: ClusterBuffer, target: ClusterDevice) -> tuple[LoadedExecutable, LoadedExecutable]:
        """Return the programs of the permutation and of the zeros for a copy of a buffer to a device."""
        tensor, attributes = TensorType(buffer.shape, buffer.element_type), _layout_attributes(buffer)
        key = (buffer.device.id, target.id, tensor, attributes)
        with self._lock:
            programs = self._kept.setdefault(key, _Programs())
            self._kept.move_to_end(key)
            if len(self._kept) > _PROGRAMS_KEPT:
                self._kept.popitem(last=False)
        with programs.lock:
            if programs.permutation is None or programs.zeros is None:
                client, both = self._client, DeviceAssignment(((buffer.device.id,), (target.id,)))
                try:
                    programs.zeros = client.compile(
                        _zeros(tensor, attributes),
                        CompileOptions(device_assignment=DeviceAssignment(((target.id,),))),
                    )
                    programs.permutation = client.compile(
                        _permutation(tensor, attributes), CompileOptions(device_assignment=both)
                    )
                except UnimplementedError as error:
                    raise UnimplementedError(
                        f"expected devices with collectives for a copy from {buffer.device} to {target}, found that "
                        f"they lack some: {error.message}; copy the value to the host, and put it on the other device"
                    ) from error
            return programs.permutation, programs.zeros


def _permutation(tensor: TensorType, attributes: str) -> str:
    # Without a channel the pairs are numbers of replicas; with one they would be numbers of partitions.
    return f"""module @copy_between_hosts attributes {{mhlo.num_replicas = 2 : i32}} {{
  func.func public @main(%value: {tensor}{attributes}) -> ({tensor}{attributes}) {{
    %result = "stablehlo.collective_permute"(%value) {{
      source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>
    }} : ({tensor}) -> {tensor}
    return %result : {tensor}
  }}
}}"""


def _zeros(tensor: TensorType, attributes: str) -> str:
    # Converted from a number that every type has.
    number = "i8" if tensor.element is not ElementType.S8 else "i16"
    return f"""module @zeros {{
  func.func public @main() -> ({tensor}{attributes}) {{
    %zero = stablehlo.constant dense<0> : tensor<{number}>
    %converted = stablehlo.convert %zero : (tensor<{number}>) -> tensor<{tensor.element.mlir}>
    %result = "stablehlo.broadcast_in_dim"(%converted) {{broadcast_dimensions = array<i64>}}
      : (tensor<{tensor.element.mlir}>) -> {tensor}
    return %result : {tensor}
  }}
}}"""


def _layout_attributes(buffer: ClusterBuffer) -> str:
    """Return the attributes of a value of a program that has the buffer's layout; empty for the default one."""
    layout = buffer.layout
    if not isinstance(layout, TiledLayout) or layout == TiledLayout.row_major(len(buffer.shape)):
        return ""
    order = ",".join(map(str, layout.minor_to_major))
    return f' {{mhlo.layout_mode = "{{{order}}}"}}'
