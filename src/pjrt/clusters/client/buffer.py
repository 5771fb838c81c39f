"""Buffers of a cluster: each is a buffer of one member, on one of its devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.buffer import Buffer
from pjrt.api.checks import unexpected
from pjrt.api.device import Device, MemorySpace
from pjrt.api.element_type import ElementType
from pjrt.api.errors import PjrtError
from pjrt.api.future import Future
from pjrt.api.shape_spec import Layout
from pjrt.clusters.client.member_future import MemberFuture

if TYPE_CHECKING:
    from pjrt.clusters.client.client import ClusterClient
    from pjrt.clusters.client.device import ClusterDevice
    from pjrt.clusters.client.memory_space import ClusterMemorySpace


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
