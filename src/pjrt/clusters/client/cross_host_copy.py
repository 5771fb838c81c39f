"""Copies between hosts: a small program on both devices moves the value, which never passes the controller."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError, UnimplementedError
from pjrt.api.shape_spec import TiledLayout
from pjrt.clusters.client.buffer import ClusterBuffer
from pjrt.stablehlo.types import TensorType

if TYPE_CHECKING:
    from pjrt.api.loaded_executable import LoadedExecutable
    from pjrt.clusters.client.client import ClusterClient
    from pjrt.clusters.client.device import ClusterDevice
    from pjrt.clusters.client.memory_space import ClusterMemorySpace

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
