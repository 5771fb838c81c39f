"""The workers of a cluster, as its controller sees them: their start, their addresses, their loss and their end.

With a fan-out there are inner nodes of a tree of controllers between them and the controller.
"""

from __future__ import annotations

import atexit
import itertools
import os
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pjrt import system
from pjrt.api.errors import DeadlineExceededError, PjrtError, StatusCode, UnavailableError
from pjrt.api.printable import printable
from pjrt.clusters.launchers import Launcher, WorkerHandle, WorkerOutput, WorkerStart
from pjrt.clusters.settings import HIDDEN, ClusterSettings
from pjrt.clusters.workers.control_server import ControlServer, Place, Refusal
from pjrt.clusters.workers.handshake import Assignment, Bootstrap, Child, InnerNodeAssignment
from pjrt.distributed.leader import Coordinator
from pjrt.distributed.messages import Message
from pjrt.distributed.settings import Reminder
from pjrt.system import TemporaryFolder

STARTING, SERVING = "starting its process", "serving"

CAUSE_SECONDS = 1.0
"""The longest time from the end of a worker's connection to that of its process, if its process ended first."""

_POLL_SECONDS = 0.01


@dataclass(eq=False)
class WorkerState:
    """One worker, as its controller knows it.

    Attributes:
        index: its number.
        host: its host; empty while it is unknown.
        output: its output.
        handle: the launcher's handle; ``None`` before it is started.
        state: its state, human-readable.
        address: where it serves; empty until it does.
        pid: its process on its host; 0 until it has connected.
        error: why it has failed or is lost; ``None`` while it is there.
        has_reported: whether the error is its own report.
        is_gone: whether its connection has ended.
    """

    index: int
    host: str
    output: WorkerOutput
    handle: WorkerHandle | None = None
    state: str = STARTING
    address: str = ""
    pid: int = 0
    error: PjrtError | None = None
    has_reported: bool = False
    is_gone: bool = False

    def __str__(self) -> str:
        place = f" on {self.host}" if self.host else ""
        return f"worker {self.index}{place}" + (f" (pid {self.pid})" if self.pid else "")

    @property
    def end(self) -> str | None:
        """The way in which its process ended, such as ``exit code 1``; ``None`` while it runs."""
        return None if self.handle is None else self.handle.poll()

    def end_within(self, seconds: float) -> str | None:
        """Return how its process ended, or ends within a time; ``None`` if it goes on, or this is unknown."""
        deadline = time.monotonic() + seconds
        while (end := self.end) is None and self.handle is not None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return end

    @property
    def end_of_output(self) -> str:
        """The last lines of its output, for an error message."""
        tail = "".join(f"\n  {line}" for line in self.output.tail)
        return f"; the end of its output:{tail}" if tail else ""


def worker_output(hosts: Sequence[str], index: int, logs: str | Path) -> WorkerOutput:
    """Return the output of a worker.

    Args:
        hosts: the host of each worker.
        index: the number of this worker.
        logs: as ``ClusterSettings.logs``.
    """
    host = hosts[index]
    label = (host if hosts.count(host) == 1 else f"{host}/{index}") if host else f"worker {index}"
    if isinstance(logs, Path):
        return WorkerOutput(label, path=logs / f"worker-{index}{f'-{host}' if host else ''}.log")
    return WorkerOutput(label, shown=logs != HIDDEN)


_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class StartProgress:
    """The progress of the start of a cluster.

    Attributes:
        workers: the host of each worker, with its number if the host has several.
        states: the state of each worker, human-readable, such as ``starting the device cpu``; ``serving`` at last.
        seconds: the time since the beginning.
    """

    workers: Sequence[str]
    states: Sequence[str]
    seconds: float

    @property
    def ready(self) -> int:
        """The number of workers that serve."""
        return sum(state == SERVING for state in self.states)

    @property
    def awaited(self) -> Sequence[str]:
        """The names of the workers that do not serve yet."""
        return [worker for worker, state in zip(self.workers, self.states, strict=True) if state != SERVING]

    def __str__(self) -> str:
        awaited = [
            f"{worker} ({state})" for worker, state in zip(self.workers, self.states, strict=True) if state != SERVING
        ]
        further = f" and {len(awaited) - _MOST_NAMED} more" if len(awaited) > _MOST_NAMED else ""
        waiting = f"; waiting for {', '.join(awaited[:_MOST_NAMED])}{further}" if awaited else ""
        return f"starting a cluster: {self.ready} of {len(self.workers)} workers serve{waiting}"


OnProgress = Callable[[StartProgress], object]


class ProgressLine:
    """A line on the terminal with the progress; nothing where the error stream is no terminal."""

    def __init__(self) -> None:
        self._is_shown = False

    def __call__(self, progress: StartProgress) -> None:
        """Show the progress."""
        if not _is_terminal():
            return
        self._is_shown = True
        columns = shutil.get_terminal_size().columns
        print(f"\r\x1b[2K{printable(str(progress))[: columns - 1]}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Remove the line."""
        if self._is_shown:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
            self._is_shown = False


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # a program without a console, or a closed stream
        return False


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
    state: str = STARTING
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


_running_lock = threading.Lock()
_running: list[Workers] = []


def _add_running(workers: Workers) -> None:
    """Add workers that this process ends at its own end."""
    with _running_lock:
        _running.append(workers)


def _remove_running(workers: Workers) -> None:
    """Remove workers that have ended."""
    with _running_lock:
        if workers in _running:
            _running.remove(workers)


@atexit.register
def _close_running() -> None:
    for workers in reversed(_running[:]):
        workers.close()


def _forget_running() -> None:
    """Leave the workers to the parent process, in the child of a fork."""
    global _running_lock
    _running_lock = threading.Lock()
    for workers in _running:
        workers.forget()
    _running.clear()


system.after_fork_in_child(_forget_running)


_PAUSE_SECONDS = 0.01
_END_SECONDS = 8.0
_SHUTDOWN_SECONDS = 5.0

_PATIENCE = 3
"""The number of heartbeat timeouts in which the leader of the job waits for signs of life. Python sends them, and a
long call that keeps its lock delays them."""

_CONTROLLER_SECONDS = 600.0
"""The time in which the controller's Python may stand still: a program may keep its lock, or a debugger stop it. A
controller that ends, or whose host fails, is noticed by its connections."""


class Workers:
    """The workers of a cluster. The constructor waits until all of them serve their devices.

    Args:
        launcher: starts them; it is closed with them.
        settings: the settings of the cluster.
        on_progress: is called with the progress of the start, in this thread.
        fan_out: the number of workers, or inner nodes, to which a process connects in a tree; 0 without a tree.

    Attributes:
        members: the workers, in order.
        inner_nodes: the inner nodes between the controller and the workers; ``None`` without a tree.

    Raises:
        PjrtError: a worker could not start, with the code of its error; the message names its host, and has the end
            of its output.
        DeadlineExceededError: a worker did not serve in time.
    """

    def __init__(
        self,
        launcher: Launcher,
        settings: ClusterSettings,
        on_progress: OnProgress = lambda progress: None,
        *,
        fan_out: int = 0,
    ) -> None:
        self._launcher = launcher
        self._settings = settings
        self._on_progress = on_progress
        self._begin = time.monotonic()
        self._changed = threading.Condition()
        self._ended = threading.Event()
        self._is_closing = False
        self._failures: list[WorkerState] = []
        self._on_lost: Callable[[int, str], object] | None = None
        self._on_call: Callable[[int, Message], object] = lambda index, message: None
        self._folder = TemporaryFolder("cluster")
        self._server: ControlServer | None = None
        self.inner_nodes: InnerNodes | None = None
        self._coordinator: Coordinator | None = None
        self.members: list[WorkerState] = []
        _add_running(self)
        try:
            self.members = [
                WorkerState(index, host, worker_output(launcher.hosts, index, settings.logs))
                for index, host in enumerate(launcher.hosts)
            ]
            self._place = Place.of(launcher, settings.controller_address, self._folder.path)
            self._coordinator = Coordinator(
                len(self.members),
                self._place.hosts,
                bind_host=self._place.bind_host,
                heartbeat_timeout=_PATIENCE * settings.heartbeat_timeout,
                leader_timeout=max(_CONTROLLER_SECONDS, _PATIENCE * settings.heartbeat_timeout),
                on_lost=self._lose,
                protection=self._place.protection,
            )
            self._token = launcher.token or secrets.token_hex(32)
            self._server = ControlServer(self._token, self._place, self._assign, self._notice)
            self._start()
            if fan_out:
                self.inner_nodes = InnerNodes(
                    self.members, fan_out, settings, self._place, self._server.send, self._bootstrap
                )
                self.inner_nodes.start(self._begin + settings.start_timeout)
        except BaseException:
            self._kill_all()
            self.close()
            raise

    # The beginning.

    def _start(self) -> None:
        settings = self._settings
        starts = []
        for worker in self.members:
            bootstrap = self._bootstrap(worker.index, os.getpid() if self._launcher.is_local else 0)
            starts.append(
                WorkerStart(
                    worker.index,
                    worker.host,
                    bootstrap.to_json(),
                    settings.environment,
                    settings.working_directory,
                    worker.output,
                )
            )
        for worker, handle, host in zip(self.members, self._launcher.start(starts), self._launcher.hosts, strict=True):
            worker.handle, worker.host = handle, host or worker.host
        self._await_all()

    def _bootstrap(self, index: int, parent: int = 0) -> Bootstrap:
        assert self._server is not None
        settings = self._settings
        return Bootstrap(
            [f"{host}:{self._server.port}" for host in self._place.hosts],
            self._token,
            index,
            encrypted=self._place.is_encrypted,
            timeout=settings.start_timeout,
            parent=parent,
            environment=settings.environment,
            working_directory="" if settings.working_directory is None else str(settings.working_directory),
        )

    def _await_all(self) -> None:
        deadline = self._begin + self._settings.start_timeout
        reported: list[str] = []
        reminder = Reminder()
        while True:
            with self._changed:
                states = [worker.state for worker in self.members]
                if states == reported:
                    self._changed.wait(_TICK_SECONDS)
                self._check_start(deadline)
            labels = [worker.output.label for worker in self.members]
            progress = StartProgress(labels, states, time.monotonic() - self._begin)
            if states != reported:
                self._on_progress(progress)
                reported = states
            reminder.remind(lambda progress=progress: str(progress))  # type: ignore[misc]  # mypy cannot tell the type of a lambda's default
            if all(state == SERVING for state in states):
                return

    def _check_start(self, deadline: float) -> None:
        """Raise an error if the workers cannot start any more."""
        # One that has ended without a report may be the reason why others have failed, and have reported it first.
        for worker in self.members:
            if not worker.has_reported and (end := worker.end) is not None:
                raise _failed(worker, StatusCode.UNAVAILABLE, f"its process ended: {end}")
        if self._failures:
            worker = self._failures[0]
            assert worker.error is not None
            if not worker.has_reported and (end := worker.end_within(CAUSE_SECONDS)) is not None:
                raise _failed(worker, StatusCode.UNAVAILABLE, f"its process ended: {end}")
            raise _failed(worker, worker.error.code, worker.error.message)
        if time.monotonic() > deadline:
            late = [worker for worker in self.members if worker.state != SERVING]
            states = "".join(f"\n- {worker}: {worker.state}{worker.end_of_output}" for worker in late)
            raise DeadlineExceededError(
                f"{len(late)} of {len(self.members)} workers have not started within "
                f"{self._settings.start_timeout:g} s; waiting for:{states}\n"
                "Give pjrt.cluster() a longer start_timeout if they only need more time"
            )

    def _assign(self, facts: Mapping[str, Any]) -> tuple[int, dict[str, Any]] | Refusal:
        """Return the assignment of a worker that has connected; this runs in the thread of the server."""
        assert self._coordinator is not None
        index = facts.get("index")
        if self.inner_nodes is not None and isinstance(index, int) and self.inner_nodes.has(index):
            return self.inner_nodes.assign(index, int(facts["pid"]))
        if index is None:
            index = next((worker.index for worker in self.members if not worker.pid), -1)
        if not isinstance(index, int) or not 0 <= index < len(self.members):
            numbers = f"expected a worker with a number from 0 to {len(self.members) - 1}"
            number = "a further one" if index == -1 else f"the number {index!r}"
            return StatusCode.INVALID_ARGUMENT, f"{numbers}, found {number} on {facts.get('host')}"
        worker = self.members[index]
        if worker.pid:
            return StatusCode.ALREADY_EXISTS, f"{worker} is there already; give each worker a number of its own"
        worker.pid, worker.host = int(facts["pid"]), worker.host or str(facts["host"])
        job = self._coordinator.settings_of(
            index, initialization_timeout=self._settings.start_timeout, shutdown_timeout=_SHUTDOWN_SECONDS
        )
        assignment = Assignment(
            index,
            worker.host,
            job,
            self._settings.device,
            self._settings.options,
            heartbeat_timeout=self._settings.heartbeat_timeout,
            **self._place.serving(index),
        )
        return index, assignment.fields()

    def _notice(self, index: int, message: Message) -> None:
        """Take note of a message of a worker; this runs in the thread of the server."""
        if self.inner_nodes is not None and self.inner_nodes.has(index):
            if message["type"] == "lost below":
                self._lose(message["index"], message["reason"])
            self.inner_nodes.notice(index, message)
            return
        if message["type"] in ("call", "gone"):
            self._on_call(index, message)
        if message["type"] == "call":
            return
        worker = self.members[index]
        with self._changed:
            match message["type"]:
                case "state":
                    worker.state = message["state"]
                case "serving":
                    worker.state, worker.address = SERVING, message["address"]
                case "failed":
                    worker.error = PjrtError.of(StatusCode[message["code"]], message["message"])
                    worker.has_reported = True
                    self._failures.append(worker)
                case "gone":
                    worker.is_gone = True
            self._changed.notify_all()
        if message["type"] == "gone":
            self._lose(index, "its process ended, or its connection was lost")

    @property
    def children(self) -> Sequence[Node]:
        """The workers to which the controller connects, or the inner nodes of a tree."""
        return self.members if self.inner_nodes is None else self.inner_nodes.top

    def connection_options(self, node: Node) -> dict[str, Any]:
        """Return the options with which the device ``remote`` connects to a worker or an inner node."""
        return {
            "address": node.address,
            "heartbeat_timeout": self._settings.heartbeat_timeout,
            **self._place.connecting(node.index),
        }

    # Calls of functions of this process.

    def on_call(self, callback: Callable[[int, Message], object]) -> None:
        """Have a function called with the number of a worker and each message of its calls; it must not wait."""
        self._on_call = callback

    def send(self, index: int, message: Message) -> None:
        """Send a message to a worker; nothing happens if it is gone."""
        if self._server is not None:
            self._server.send(index, message)

    # Losses.

    @property
    def heartbeat_timeout(self) -> float:
        """The seconds without a sign of life after which a worker is lost."""
        return self._settings.heartbeat_timeout

    def on_lost(self, callback: Callable[[int, str], object]) -> None:
        """Have a function called with the number of each worker that is lost, and the reason; it must not wait."""
        with self._changed:
            self._on_lost = callback
            losses = [(worker.index, worker.error.message) for worker in self.members if worker.error is not None]
        for index, reason in losses:
            callback(index, reason)

    def _lose(self, index: int, reason: str) -> None:
        with self._changed:
            if self._is_closing:
                return
            if self._on_lost is None:
                worker = self.members[index]
                if worker.error is None:
                    worker.error = UnavailableError(reason)
                    self._failures.append(worker)
                self._changed.notify_all()
        if self._on_lost is not None:
            self._on_lost(index, reason)

    def report_loss(self, index: int, reason: str) -> None:
        """Report to the other workers that one is lost, so that they do not wait for it; do not wait."""
        if self._coordinator is not None and not self._is_closing:  # then they end, and connections with them
            self._coordinator.give_up(index, reason)

    def end_lost(self, index: int, error: PjrtError) -> None:
        """End a worker that is lost, if it can be, and report it to the inner nodes above."""
        if self.inner_nodes is not None:
            self.inner_nodes.report_loss(index, error)
        worker = self.members[index]
        worker.error = error
        if self._server is not None:
            self._server.end(index)
        if worker.handle is not None and worker.handle.poll() is None:
            worker.handle.kill()

    # The end.

    def close(self) -> None:
        """End all workers, and wait until they have ended. May be called again."""
        with self._changed:
            first, self._is_closing = not self._is_closing, True
        if not first:
            self._ended.wait()
            return
        try:
            self._end_all()
        finally:
            self._kill_all()
            if self._server is not None:
                self._server.close()
            if self._coordinator is not None:
                self._coordinator.close()
            self._launcher.close()
            for worker in self.members:
                worker.output.close()
            self._folder.close()
            _remove_running(self)
            self._ended.set()

    def _end_all(self) -> None:
        """Ask all workers to end, and wait for those that answer."""
        if self._server is None:
            return
        if self.inner_nodes is not None:
            self.inner_nodes.end()
        for worker in self.members:
            self._server.end(worker.index)
        deadline = time.monotonic() + _END_SECONDS
        waiting = [worker for worker in self.members if worker.pid and worker.error is None]
        while waiting and time.monotonic() < deadline:
            time.sleep(_PAUSE_SECONDS)
            waiting = [worker for worker in waiting if worker.end is None and not self._has_left(worker)]

    def _has_left(self, worker: WorkerState) -> bool:
        """Whether a worker that others have started has ended, as far as this process knows."""
        return worker.is_gone and not self._launcher.starts_workers

    def _kill_all(self) -> None:
        for worker in self.members:
            if worker.handle is not None and worker.handle.poll() is None:
                worker.handle.kill()

    def forget(self) -> None:
        """Leave the workers to the parent process, in the child of a fork."""
        self._is_closing = True
        self._ended.set()
        for part in (self._server, self._coordinator):
            if part is not None:
                part.forget()


def _failed(worker: WorkerState, code: StatusCode, reason: str) -> PjrtError:
    return PjrtError.of(code, f"{worker} could not start: {reason}{worker.end_of_output}")
