"""Transfers of shards between processes, in operations that all processes of a job call alike."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

import pjrt.api.client
from pjrt.api.buffer import Buffer
from pjrt.api.device import Device, MemorySpace
from pjrt.api.element_type import ElementType
from pjrt.api.shape_spec import ShapeSpec

_FIRST_KEY = 1 << 62
"""The first of the keys of these transfers; smaller ones are the callers' own."""


class ProcessTransfers:
    """The transfers of one client's shards.

    Transfers from one device to another have keys in the order in which they are made, which is the same in both
    processes.

    Args:
        client: the client below.
    """

    __slots__ = ("_client", "_counts", "_lock")

    def __init__(self, client: pjrt.api.client.Client) -> None:
        self._client = client
        self._counts: Counter[tuple[int, int]] = Counter()
        self._lock = threading.Lock()

    def send(self, buffer: Buffer, device: Device) -> None:
        """Send a buffer to a device of another process, which receives it. The buffer may be deleted at once.

        Raises:
            UnimplementedError: the devices have no transfers between processes.
        """
        (source,) = buffer.memory_space.devices[:1]
        self._client.cross_host_send_buffers([buffer], [device.id], [self._key(source.id, device.id)])

    def receive(self, source: Device, space: MemorySpace, shape: Sequence[int], element_type: ElementType) -> Buffer:
        """Return the buffer that the process of another device sends.

        Raises:
            UnimplementedError: the devices have no transfers between processes.
        """
        device = space.devices[0]
        key = self._key(source.id, device.id)
        spec = ShapeSpec(tuple(shape), element_type)
        (buffer,) = self._client.cross_host_receive_buffers([spec], device, [source.id], [key])
        return buffer if space is buffer.memory_space else buffer.copy_to(space)

    def _key(self, source_id: int, device_id: int) -> int:
        with self._lock:
            self._counts[source_id, device_id] += 1
            return _FIRST_KEY + self._counts[source_id, device_id]
