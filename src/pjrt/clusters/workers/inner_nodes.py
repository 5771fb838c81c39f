"""The inner nodes of a tree of controllers, as the controller at its root sees them: their places, start and end."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pjrt.api.errors import DeadlineExceededError, PjrtError, StatusCode
from pjrt.clusters.settings import ClusterSettings
from pjrt.clusters.workers.bootstrap import Bootstrap
from pjrt.clusters.workers.inner_node_assignment import Child, InnerNodeAssignment
from pjrt.clusters.workers.place import Place
from pjrt.clusters.workers.worker_state import SERVING, WorkerState
from pjrt.distributed.messages import Message

_TICK_SECONDS = 0.1


@dataclass(eq=False)
class InnerNodeState:
    """One inner node, as the controller knows it.

    Attributes:
        index: its number; those of the workers come before.
        children: the workers and inner nodes below it.
        state: its state, human-readable.
        address: where it serves; empty until it does.
        pid: its process on its host; 0 until it has connected.
        error: why it has failed; ``None`` before.
        workers: the workers whose devices it serves.
    """

    index: int
    children: list[Node]
    state: str = "starting its process"
    address: str = ""
    pid: int = 0
    error: PjrtError | None = None
    workers: list[WorkerState] = field(init=False)

    def __post_init__(self) -> None:
        self.workers = [worker for child in self.children for worker in workers_of(child)]

    def __str__(self) -> str:
        return f"the inner node of the workers {self.workers[0].index} to {self.workers[-1].index} on {self.host}"

    @property
    def host(self) -> str:
        """Its host: that of the first worker below it."""
        return self.workers[0].host


Node = WorkerState | InnerNodeState
"""A worker or an inner node: something that serves devices."""


def workers_of(node: Node) -> list[WorkerState]:
    """Return the workers whose devices a worker or an inner node serves."""
    return [node] if isinstance(node, WorkerState) else node.workers


class InnerNodes:
    """The inner nodes of one cluster.

    Args:
        workers: the workers.
        fan_out: the number of workers or inner nodes below each inner node, and below the controller, at most.
        settings: the settings of the cluster.
        place: where the processes of the cluster listen.
        send: sends a message to the worker or inner node with a number.
        bootstrap: returns the bootstrap of the inner node with a number.

    Attributes:
        top: the workers and inner nodes to which the controller connects.
    """

    def __init__(
        self,
        workers: Sequence[WorkerState],
        fan_out: int,
        settings: ClusterSettings,
        place: Place,
        send: Callable[[int, Message], None],
        bootstrap: Callable[[int], Bootstrap],
    ) -> None:
        self._settings = settings
        self._place = place
        self._send = send
        self._bootstrap = bootstrap
        self._changed = threading.Condition()
        self._levels: list[list[InnerNodeState]] = []
        self.top: list[Node] = list(workers)
        number = len(workers)
        while len(self.top) > fan_out:
            level: list[InnerNodeState] = []
            above: list[Node] = []
            for children in even_groups(self.top, fan_out):
                if len(children) == 1:
                    above += children
                    continue
                level.append(InnerNodeState(number, children))
                above.append(level[-1])
                number += 1
            self._levels.append(level)
            self.top = above
        self._by_index = {node.index: node for level in self._levels for node in level}

    def start(self, deadline: float) -> None:
        """Start the inner nodes, those next to the workers first, and wait until they serve.

        Args:
            deadline: the time until which they must, on the clock of ``time.monotonic``.

        Raises:
            PjrtError: one could not start.
        """
        for level in self._levels:
            for node in level:
                bootstrap = self._bootstrap(node.index).to_json().decode()
                self._send(node.workers[0].index, {"type": "start inner node", "bootstrap": bootstrap})
            with self._changed:
                while waiting := [node for node in level if node.state != SERVING]:
                    for node in level:
                        if node.error is not None:
                            raise node.error
                    if time.monotonic() > deadline:
                        states = "".join(f"\n- {node}: {node.state}" for node in waiting)
                        raise DeadlineExceededError(
                            f"{len(waiting)} inner nodes of the cluster have not started in time; waiting for:{states}"
                        )
                    self._changed.wait(_TICK_SECONDS)

    @property
    def pids(self) -> list[int]:
        """The processes of the inner nodes, on their hosts."""
        return [node.pid for node in self._by_index.values()]

    def has(self, index: Any) -> bool:
        """Whether a number is that of an inner node."""
        return index in self._by_index

    def assign(self, index: int, pid: int) -> tuple[int, dict[str, Any]]:
        """Return the number and the assignment of a connected inner node; this runs in the server's thread."""
        self._by_index[index].pid = pid
        children = [self._child(child) for child in self._by_index[index].children]
        assignment = InnerNodeAssignment(
            index, children, self._settings.heartbeat_timeout, **self._place.serving(index)
        )
        return index, assignment.fields()

    def _child(self, node: Node) -> Child:
        name = self._place.connecting(node.index).get("server_name", "")
        workers = [(worker.host, worker.index) for worker in workers_of(node)]
        return Child(node.address, name, workers, isinstance(node, InnerNodeState))

    def notice(self, index: int, message: Message) -> None:
        """Take note of a message of an inner node; this runs in the thread of the server."""
        node = self._by_index[index]
        with self._changed:
            match message["type"]:
                case "state":
                    node.state = message["state"]
                case "serving":
                    node.state, node.address = SERVING, message["address"]
                case "failed":
                    node.error = PjrtError.of(
                        StatusCode[message["code"]], f"{node} could not start: {message['message']}"
                    )
                case "gone" if node.error is None:
                    node.error = PjrtError.of(StatusCode.UNAVAILABLE, f"{node} was lost: its process ended")
            self._changed.notify_all()

    def report_loss(self, index: int, error: PjrtError) -> None:
        """Report the loss of a worker to the inner nodes above it."""
        for node in self._by_index.values():
            if any(worker.index == index for worker in node.workers):
                self._send(
                    node.index, {"type": "lost", "index": index, "code": error.code.name, "message": error.message}
                )

    def end(self) -> None:
        """Ask all inner nodes to end."""
        for index in self._by_index:
            self._send(index, {"type": "end"})


def even_groups(nodes: Sequence[Node], most: int) -> list[list[Node]]:
    """Return nodes in groups of at most so many, which differ by one at most."""
    count = -(-len(nodes) // most)
    bounds = [number * len(nodes) // count for number in range(count + 1)]
    return [list(nodes[begin:end]) for begin, end in itertools.pairwise(bounds)]
