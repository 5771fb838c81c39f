"""Branches of a cluster: several workers behind one client, which an inner node of a tree of controllers serves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pjrt.api.client import Client
from pjrt.api.device import Device, DeviceDescription
from pjrt.api.errors import PjrtError
from pjrt.clusters.client.member import Member, names


class Branch(Member):
    """The workers below an inner node, which the cluster's client uses as one member.

    Args:
        client: the client of the inner node, which has the devices of all its workers.
        workers: the host and the process of each worker below.
        end: as that of ``Member``.
    """

    def __init__(
        self,
        client: Client,
        workers: Sequence[tuple[str, int]],
        *,
        end: Callable[[PjrtError], object] | None = None,
    ) -> None:
        super().__init__(client, *workers[0], end=end)
        self.workers = tuple(BranchWorker(client, host, index) for host, index in workers)
        self._by_process = {worker.process_index: worker for worker in self.workers}

    def __str__(self) -> str:
        return f"the inner node of {names(self.workers)}"

    def worker_of(self, description: DeviceDescription) -> Member:
        """Return the worker that has a device, by the inner node's description of it."""
        return self._by_process[description.attributes["process"]]  # type: ignore[index]  # an integer

    def describe(self, description: DeviceDescription) -> str:
        return str(description)  # the inner node has named the host and the process

    def named(self, error: PjrtError, place: object = None) -> PjrtError:
        is_named = any(str(worker) in error.message for worker in self.workers)
        return error if is_named and not self.is_loss(error) else super().named(error, place)


class BranchWorker(Member):
    """One worker below an inner node: its place, and its loss."""

    @property
    def devices(self) -> Sequence[Device]:
        return [
            device
            for device in self.client.addressable_devices
            if device.attributes.get("process") == self.process_index
        ]

    def named(self, error: PjrtError, place: object = None) -> PjrtError:
        # The inner node has named the place in all errors but those of calls of functions, which it passes on.
        return error if str(self) in error.message and not self.is_loss(error) else super().named(error, place)
