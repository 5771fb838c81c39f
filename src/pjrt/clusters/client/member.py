"""Members of a cluster: for each worker, the client of its devices, and its place.

A branch is several workers behind one client, which an inner node of a tree of controllers serves.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from pjrt.api.client import Client
from pjrt.api.device import Device, DeviceDescription
from pjrt.api.errors import PjrtError, StatusCode

LOSS_CODES = frozenset((StatusCode.UNAVAILABLE, StatusCode.CANCELLED))
"""The codes with which the client of a lost worker fails."""


class Member:
    """One worker of a cluster.

    Args:
        client: the client of the worker's devices. It has the devices of all workers, and addresses those of this one.
        host: the name of the worker's host.
        process_index: the number of the worker among the processes of the cluster's job.
        end: called once with the reason when the worker is lost, so that everything that waits for it fails; by default
            the client is left as it is.

    Attributes:
        client: the client of the worker's devices.
        host: the name of the worker's host.
        process_index: the number of the worker among the processes of the cluster's job.
        loss: the error of everything that needs the worker, once it is lost; ``None`` before.
        workers: the workers that the client reaches: this one.
    """

    workers: Sequence[Member]

    def __init__(
        self,
        client: Client,
        host: str,
        process_index: int,
        *,
        end: Callable[[PjrtError], object] | None = None,
    ) -> None:
        self.client = client
        self.host = host
        self.process_index = process_index
        self.loss: PjrtError | None = None
        self.workers = (self,)
        self._end = end
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[Member], object]] = []

    def __str__(self) -> str:
        return f"process {self.process_index} on {self.host}"

    def __repr__(self) -> str:
        return f"<Member {self}>"

    @property
    def devices(self) -> Sequence[Device]:
        """The devices of the member's client that its worker has."""
        return self.client.addressable_devices

    def worker_of(self, description: DeviceDescription) -> Member:
        """Return the worker that has a device of the member's client."""
        return self

    def describe(self, description: DeviceDescription) -> str:
        """Return the text of a device of the member's client, with its host and its process."""
        return f"{description} ({self})"

    # Its loss.

    def lose(self, error: PjrtError) -> None:
        """Note that the worker is lost: what needs it fails with an error from now on. Later calls do nothing."""
        with self._lock:
            if self.loss is not None:
                return
            self.loss = error
            callbacks, self._callbacks = self._callbacks, []
        if self._end is not None:
            self._end(error)
        for callback in callbacks:
            callback(self)

    def add_loss_callback(self, callback: Callable[[Member], object]) -> None:
        """Have ``callback(member)`` called once when the worker is lost, at once if it is."""
        with self._lock:
            if self.loss is None:
                self._callbacks.append(callback)
                return
        callback(self)

    def check(self) -> None:
        """Raise the error of the worker's loss, if it is lost."""
        if self.loss is not None:
            raise self.copy_of_loss()

    def copy_of_loss(self) -> PjrtError:
        """Return the error of the loss as an object of its own: tracebacks of several threads must not mix."""
        assert self.loss is not None
        return type(self.loss)(self.loss.message, code=self.loss.code, payloads=self.loss.payloads)

    def is_loss(self, error: PjrtError) -> bool:
        """Whether an error of the member's client comes from the worker's loss."""
        return self.loss is not None and error.code in LOSS_CODES

    # Errors with the place where they come from.

    def named(self, error: PjrtError, place: object = None) -> PjrtError:
        """Return an error of the member's client with the name of its host; the loss, where it comes from that.

        Args:
            error: the error.
            place: the device that the error is about; the member as a whole is the default.
        """
        if self.is_loss(error):
            return self.copy_of_loss()
        message = f"{error.message.rstrip()} [{place or self}]"
        named = type(error)(message, code=error.code, payloads=error.payloads)
        named.__cause__ = error.__cause__
        return named

    def fail(self, error: PjrtError, place: object = None) -> NoReturn:
        """Raise an error of the member's client as ``named`` returns it."""
        raise self.named(error, place) from None


def member_of(client: Any, workers: Sequence[tuple[str, int]], *, is_inner_node: bool) -> Member:
    """Return the member that a worker or an inner node is in the cluster above it.

    Args:
        client: a ``RemoteClient`` of it.
        workers: the host and the process of each worker that the client reaches.
        is_inner_node: whether it is an inner node.
    """
    end = client.connection.end
    return Branch(client, workers, end=end) if is_inner_node else Member(client, *workers[0], end=end)


def check_all(members: Iterable[Member]) -> None:
    """Raise the error of the first of these members that is lost, if one is."""
    for member in members:
        if member.loss is not None:
            member.check()


def combined(failures: Iterable[tuple[Member, PjrtError]], action: str) -> PjrtError:
    """Return one error for those of several members: equal ones are reported once, with the names of all their hosts.

    Args:
        failures: the members, and the error of each; at least one.
        action: a phrase for the failed operation, such as ``compile 'main'``.
    """
    groups: dict[tuple[StatusCode, str], list[Member]] = {}
    payloads: dict[str, bytes] = {}
    for member, error in failures:
        if member.loss is not None and member.is_loss(error):
            error = member.loss
        groups.setdefault((error.code, error.message), []).append(member)
        payloads.update(error.payloads)
    (code, message), members = next(iter(groups.items()))
    if len(groups) == 1:
        return PjrtError.of(code, f"{message.rstrip()} [{names(members)}]", payloads)
    parts = "; ".join(f"{names(members)}: {code.name}: {message}" for (code, message), members in groups.items())
    return PjrtError.of(code, f"{action} failed in {sum(map(len, groups.values()))} processes: {parts}", payloads)


def names(members: Sequence[Member]) -> str:
    """Return the names of members; of many, those of the first three."""
    every = list(map(str, members))
    return ", ".join(every) if len(every) <= 4 else f"{', '.join(every[:3])} and {len(every) - 3} others"


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


# gRPC's errors for a ping without an answer, and the system's for data without one.
_SIGNS_OF_SILENCE = "ping timeout", "keepalive", os.strerror(errno.ETIMEDOUT)


def reason_of(error: PjrtError, heartbeat_timeout: float) -> str:
    """Return why a connection has ended.

    Args:
        error: the error of its client.
        heartbeat_timeout: the seconds without a sign of life after which a worker is lost.
    """
    if any(sign in error.message for sign in _SIGNS_OF_SILENCE):
        return f"it gave no sign of life for {heartbeat_timeout:g} s"
    if error.code is StatusCode.UNAVAILABLE:
        return "its process ended, or its connection was lost"
    return error.message
