"""A simulation of the control path of clusters by discrete events: processes, machines, messages and batches."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True)
class Costs:
    """The processor time of each part of the control path, in seconds.

    Attributes:
        step: a step at the controller, or at an inner node.
        request: a request to one member.
        device: a device of a request: its argument and its result, as objects of Python.
        message: a message that is sent, with one request or several.
        reception: a message that a worker or an inner node receives.
        handling: a request at an inner node, besides what the controller does for one.
        execution: a request at a worker.
        execution_device: a device of a request at a worker.
        window: a request that comes this soon after another one waits for more of them.
    """

    step: float
    request: float
    device: float
    message: float
    reception: float = 0.0
    handling: float = 0.0
    execution: float = 0.0
    execution_device: float = 0.0

    window: ClassVar[float] = 0.0003


@dataclass(frozen=True)
class Network:
    """The shape of a cluster.

    Attributes:
        hosts: the number of workers.
        devices: the devices of each.
        fan_out: the members of the controller and of each inner node at most; 0 for no tree.
        wire: the seconds from one process to another.
        shared_processors: the processors of the one machine on which all processes run; 0 for a machine each.
    """

    hosts: int
    devices: int = 1
    fan_out: int = 0
    wire: float = 0.0
    shared_processors: int = 0


@dataclass(frozen=True)
class Result:
    """The times of a simulated burst of steps, in seconds for a step.

    Attributes:
        enqueue: until the controller has enqueued a step.
        latency: from the beginning of a step alone to its start at the last worker.
        pipelined: for a step of the burst, until the last worker has started the last one.
        controller_cpu: the controller's processor time.
        inner_node_cpu: that of an inner node, on average.
        worker_cpu: that of a worker, on average.
    """

    enqueue: float
    latency: float
    pipelined: float
    controller_cpu: float
    inner_node_cpu: float
    worker_cpu: float


def simulate(network: Network, costs: Costs, steps: int) -> Result:
    """Return the times of a burst of steps on a cluster, and those of a step alone."""
    alone, burst = _Run(network, costs), _Run(network, costs)
    latency = alone.run(1)
    end = burst.run(steps)
    inner_nodes, workers = burst.inner_nodes, burst.workers
    return Result(
        enqueue=burst.root.enqueued / steps,
        latency=latency,
        pipelined=end / steps,
        controller_cpu=burst.root.used / steps,
        inner_node_cpu=sum(node.used for node in inner_nodes) / steps / len(inner_nodes) if inner_nodes else 0.0,
        worker_cpu=sum(worker.used for worker in workers) / steps / len(workers),
    )


class _Run:
    """One simulation: its clock, its events and its processes."""

    def __init__(self, network: Network, costs: Costs) -> None:
        self.costs = costs
        self.wire = network.wire
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        shared = _Machine(self, network.shared_processors) if network.shared_processors else None
        self.workers = [_Worker(self, shared, network.devices) for _ in range(network.hosts)]
        self.inner_nodes: list[_Controller] = []
        nodes: list[_Process] = list(self.workers)
        while network.fan_out and len(nodes) > network.fan_out:
            count = -(-len(nodes) // network.fan_out)
            bounds = [number * len(nodes) // count for number in range(count + 1)]
            groups = [nodes[begin:end] for begin, end in itertools.pairwise(bounds)]
            nodes = [group[0] if len(group) == 1 else _Controller(self, shared, group) for group in groups]
            self.inner_nodes += [
                node for node in nodes if isinstance(node, _Controller) and node not in self.inner_nodes
            ]
        self.root = _Controller(self, shared, nodes)

    def at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), action))

    def run(self, steps: int) -> float:
        """Enqueue steps, one after the other, and return the time at which the last worker has started the last."""
        self.root.enqueue(steps)
        while self._events:
            self.now, _, action = heapq.heappop(self._events)
            action()
        assert all(worker.started == steps for worker in self.workers)
        return max(worker.last_start for worker in self.workers)


class _Machine:
    """Processors that run processes in turns."""

    def __init__(self, run: _Run, processors: int) -> None:
        self._run = run
        self._free = processors
        self._waiting: deque[_Process] = deque()

    def start(self, process: _Process) -> None:
        self._waiting.append(process)
        self._start_next()

    def release(self) -> None:
        self._free += 1
        self._start_next()

    def _start_next(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            self._waiting.popleft().run_one()


@dataclass(eq=False)
class _Process:
    """A process, which does one thing at a time: Python's lock sees to that."""

    run: _Run
    machine: _Machine | None
    used: float = 0.0
    _work: deque[tuple[float, Callable[[], None]]] = field(default_factory=deque)
    _is_running: bool = False

    def __post_init__(self) -> None:
        if self.machine is None:
            self.machine = _Machine(self.run, 1)

    @property
    def devices(self) -> int:
        raise NotImplementedError

    def do(self, cost: float, action: Callable[[], None]) -> None:
        """Do something after all that is to be done before; the action is what others see of it, at its end."""
        self._work.append((cost, action))
        if not self._is_running:
            self._is_running = True
            self.machine.start(self)  # type: ignore[union-attr]

    def run_one(self) -> None:
        cost, action = self._work.popleft()
        self.used += cost
        self.run.at(self.run.now + cost, lambda: self._end(action))

    def _end(self, action: Callable[[], None]) -> None:
        action()
        self.machine.release()  # type: ignore[union-attr]
        self._is_running = bool(self._work)
        if self._is_running:
            self.machine.start(self)  # type: ignore[union-attr]

    def receive(self, requests: int) -> None:
        """Receive a message with requests."""
        self.do(self.run.costs.reception, lambda: None)
        for _ in range(requests):
            self.handle()

    def handle(self) -> None:
        raise NotImplementedError


@dataclass(eq=False)
class _Worker(_Process):
    """A worker: it starts programs."""

    count: int = 1
    started: int = 0
    last_start: float = 0.0

    def __init__(self, run: _Run, machine: _Machine | None, count: int) -> None:
        super().__init__(run, machine)
        self.count = count

    @property
    def devices(self) -> int:
        return self.count

    def handle(self) -> None:
        self.do(self.run.costs.execution + self.run.costs.execution_device * self.count, self._start)

    def _start(self) -> None:
        self.started += 1
        self.last_start = self.run.now


class _Controller(_Process):
    """The controller, or an inner node: it passes each step on to its members."""

    def __init__(self, run: _Run, machine: _Machine | None, members: list[_Process]) -> None:
        super().__init__(run, machine)
        self.enqueued = 0.0
        self._links = [_Link(self, member) for member in members]
        self._devices = sum(member.devices for member in members)

    @property
    def devices(self) -> int:
        return self._devices

    def handle(self) -> None:
        self.do(self.run.costs.handling, self.pass_on)

    def pass_on(self) -> None:
        """Do a step: a request to each member."""
        costs = self.run.costs
        self.do(costs.step, lambda: None)
        for link in self._links:
            self.do(costs.request + costs.device * link.member.devices, link.send)

    def enqueue(self, steps: int) -> None:
        """Do steps one after the other; what is to be done for their messages comes in between."""
        self.enqueued = self.run.now
        if steps:
            self.pass_on()
            self.do(0.0, lambda: self.enqueue(steps - 1))


class _Link:
    """A connection to a member, with the requests that wait for others."""

    def __init__(self, owner: _Controller, member: _Process) -> None:
        self.member = member
        self._owner = owner
        self._last_sent = -1.0
        self._held = 0

    def send(self) -> None:
        """Send a request at once, or with others if one was sent a moment ago."""
        now, window = self._owner.run.now, self._owner.run.costs.window
        if self._held or now - self._last_sent < window:
            self._held += 1
            if self._held == 1:
                self._owner.run.at(now + window, self._flush)
            return
        self._held = 1
        self._flush()

    def _flush(self) -> None:
        run = self._owner.run
        requests, self._held, self._last_sent = self._held, 0, run.now
        # The message is written by the one who sends it, and the reader of the connection does the rest later.
        run.at(run.now + run.wire, lambda: self.member.receive(requests))
        self._owner.do(run.costs.message, lambda: None)
