"""Time the control path of clusters: one controller, and up to 16 workers of this machine, with and without a tree.

The programs are tiny, so that the times are those of the messages. The rivals are one thread for each connection, and
the calls of Ray's actors where Ray is installed. The measured points go to ``cluster_points.json``, from which
``benchmarks.cluster_simulation`` takes its constants.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib.util
import json
import logging
import os
import queue
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import pjrt
from benchmarks.process_usage import busy_seconds, children, processor_seconds, proportional_bytes, resident_bytes
from benchmarks.side_by_side import Report, duration, main, table

POINTS = Path(__file__).with_name("cluster_points.json")
FLAT = ((1, 1), (2, 1), (4, 1), (8, 1), (16, 1))
"""The workers, and the devices of each, of clusters whose controller connects to all workers."""

WIDE = ((2, 2), (2, 4), (2, 8))
"""The same with several devices for each worker: their costs tell those of a device from those of a message."""

TREES = ((4, 2), (8, 4), (16, 4))
"""The workers and the fan-out of clusters with inner nodes."""

BURST = 100
"""The steps in a row that are enqueued before one waits for the last."""

TINY = """func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.tanh %x : tensor<8xf32>
  return %0 : tensor<8xf32>
}"""
THREADS = "a thread for each worker"


@dataclasses.dataclass
class Point:
    """The measurements of one cluster; times are seconds for a step, and medians of rounds.

    Attributes:
        hosts: the number of workers.
        devices: the devices of each worker.
        fan_out: the fan-out of a tree; 0 without one.
        start: the seconds until the cluster was there.
        compile: the seconds for a new program.
        enqueue: until a step is enqueued, and nobody waits for it.
        pipelined: for a step of many that are enqueued in a row, until the last one has ended.
        waiting: for a step until all of its results are there.
        controller_cpu: the processor time of the controller for a pipelined step.
        inner_node_cpu: that of an inner node, on average; 0 without a tree.
        worker_cpu: that of a worker, on average.
        others: the processors that other processes of the machine use meanwhile, on average.
        controller_memory: what the controller's memory has grown by, in bytes.
        inner_node_memory: the memory of an inner node (PSS), in bytes.
        worker_memory: the memory of a worker (PSS), in bytes.
    """

    hosts: int
    devices: int
    fan_out: int
    start: float = 0.0
    compile: float = 0.0
    enqueue: float = 0.0
    pipelined: float = 0.0
    waiting: float = 0.0
    controller_cpu: float = 0.0
    inner_node_cpu: float = 0.0
    worker_cpu: float = 0.0
    others: float = 0.0
    controller_memory: int = 0
    inner_node_memory: int = 0
    worker_memory: int = 0


class Cluster:
    """One cluster as a contestant.

    Args:
        point: its shape; the constructor notes how it started.
    """

    def __init__(self, point: Point) -> None:
        self.point = point
        memory = resident_bytes(os.getpid())
        others = set(children(os.getpid()))
        begin = time.perf_counter()
        self.client = pjrt.cluster(
            point.hosts,
            "cpu",
            num_devices=point.devices,
            fan_out=point.fan_out or None,
            logs="hide",
            progress=False,
        )
        point.start = time.perf_counter() - begin
        self.workers = [pid for pid in children(os.getpid()) if pid not in others]
        self.inner_nodes = [pid for worker in self.workers for pid in children(worker)]
        devices = self.client.addressable_devices
        begin = time.perf_counter()
        self.executable = self.client.compile(TINY, pjrt.CompileOptions(num_replicas=len(devices)))
        point.compile = time.perf_counter() - begin
        x = np.arange(8, dtype=np.float32)
        self.rows = [[self.client.buffer_from_host(x, device=device)] for device in devices]
        for row in self.step():
            np.testing.assert_allclose(np.asarray(row[0]), np.tanh(x), rtol=1e-5)
        point.controller_memory = resident_bytes(os.getpid()) - memory
        point.worker_memory = round(statistics.mean(map(proportional_bytes, self.workers)))
        point.inner_node_memory = (
            round(statistics.mean(map(proportional_bytes, self.inner_nodes))) if self.inner_nodes else 0
        )

    def step(self) -> list[list[pjrt.Buffer]]:
        """Enqueue a step."""
        return self.executable.execute(self.rows)

    def close(self) -> None:
        """End the cluster."""
        self.client.close()


class Threads:
    """The rival with a thread for each worker, which enqueues on its connection alone.

    Args:
        cluster: a cluster without a tree, whose connections it uses.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._queues: list[queue.SimpleQueue[Callable[[], object] | None]] = []
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._calls: list[Callable[[], None]] = []
        for member in cluster.client.members:
            client = member.client
            executable = client.compile(TINY, pjrt.CompileOptions(num_replicas=len(client.addressable_devices)))
            x = np.arange(8, dtype=np.float32)
            rows = [[client.buffer_from_host(x, device=device)] for device in client.addressable_devices]
            self._calls.append(lambda executable=executable, rows=rows: self._done.put(executable.execute(rows)))
            self._queues.append(queue.SimpleQueue())
            threading.Thread(target=self._run, args=(self._queues[-1],), daemon=True).start()

    @staticmethod
    def _run(calls: queue.SimpleQueue[Callable[[], object] | None]) -> None:
        while (call := calls.get()) is not None:
            call()

    def step(self) -> list[list[pjrt.Buffer]]:
        """Enqueue a step: each thread has enqueued its part."""
        for calls, call in zip(self._queues, self._calls, strict=True):
            calls.put(call)
        return [row for _ in self._calls for row in self._done.get()]

    def close(self) -> None:
        """End the threads."""
        for calls in self._queues:
            calls.put(None)


def wait(results: list[list[pjrt.Buffer]]) -> None:
    """Wait for all results of a step; all questions are on their way before the first answer is waited for."""
    futures = [row[0].ready() for row in results]
    for future in futures:
        future.done()
    for future in futures:
        future.result()


@dataclasses.dataclass
class Rounds:
    """The times of the rounds of one contestant, in seconds."""

    enqueue: list[float] = dataclasses.field(default_factory=list)
    pipelined: list[float] = dataclasses.field(default_factory=list)
    waiting: list[float] = dataclasses.field(default_factory=list)
    controller_cpu: list[float] = dataclasses.field(default_factory=list)
    inner_node_cpu: list[float] = dataclasses.field(default_factory=list)
    worker_cpu: list[float] = dataclasses.field(default_factory=list)
    others: list[float] = dataclasses.field(default_factory=list)


def time_round(contestant: Any, noted: Rounds) -> None:
    """Time a burst of steps that nobody waits for, and some that are waited for."""
    workers, inner_nodes = getattr(contestant, "workers", []), getattr(contestant, "inner_nodes", [])
    wait(contestant.step())
    processor = [processor_seconds(pids) for pids in ([os.getpid()], inner_nodes, workers)]
    busy = busy_seconds()
    begin = time.perf_counter()
    for _ in range(BURST):
        results = contestant.step()
    enqueued = time.perf_counter()
    wait(results)
    ended = time.perf_counter()
    used = [processor_seconds(pids) for pids in ([os.getpid()], inner_nodes, workers)]
    own = sum(after - before for before, after in zip(processor, used, strict=True))
    noted.others.append(max(0.0, busy_seconds() - busy - own) / (ended - begin))
    noted.enqueue.append((enqueued - begin) / BURST)
    noted.pipelined.append((ended - begin) / BURST)
    for name, before, after, count in zip(
        ("controller_cpu", "inner_node_cpu", "worker_cpu"),
        processor,
        used,
        (1, len(inner_nodes), len(workers)),
        strict=True,
    ):
        getattr(noted, name).append((after - before) / BURST / max(count, 1))
    begin = time.perf_counter()
    for _ in range(BURST // 8):
        wait(contestant.step())
    noted.waiting.append((time.perf_counter() - begin) / (BURST // 8))


def take_turns(contestants: dict[str, Any], rounds: int) -> dict[str, Rounds]:
    """Time contestants in turns; the first round warms up and is not counted."""
    noted = {name: Rounds() for name in contestants}
    chance = random.Random(0)
    for number in range(rounds + 1):
        for name in chance.sample(list(contestants), len(contestants)):
            gc.collect()
            gc.disable()
            try:
                time_round(contestants[name], noted[name] if number else Rounds())
            finally:
                gc.enable()
    return noted


def measure_points(points: list[Point], rounds: int) -> dict[str, Rounds]:
    """Measure clusters of as many workers, in turns, and note the medians; return the rounds of the thread rival."""
    with contextlib.ExitStack() as stack:
        contestants: dict[str, Any] = {}
        for point in points:
            cluster = Cluster(point)
            stack.callback(cluster.close)
            contestants[f"{point.devices} {point.fan_out}"] = cluster
            if not point.fan_out and point.devices == 1:
                contestants[THREADS] = Threads(cluster)
                stack.callback(contestants[THREADS].close)
        noted = take_turns(contestants, rounds)
        for point in points:
            rows = noted[f"{point.devices} {point.fan_out}"]
            for field in dataclasses.fields(Rounds):
                setattr(point, field.name, statistics.median(getattr(rows, field.name)))
    return noted


# The rival Ray.


@contextlib.contextmanager
def ray_actors() -> Iterator[Callable[[int], Any]]:
    """Run Ray on this machine; the value makes a contestant of so many actors, whose calls do nothing."""
    import ray

    ray.init(num_cpus=1, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)

    @ray.remote(num_cpus=0)
    class Actor:
        def step(self, value: float) -> float:
            return value

    class Actors:
        def __init__(self, count: int) -> None:
            self._actors = [Actor.remote() for _ in range(count)]
            ray.get([actor.step.remote(1.0) for actor in self._actors])

        def time(self) -> tuple[float, float, float]:
            """Return the seconds for a step: enqueued, pipelined and waited for."""
            begin = time.perf_counter()
            for _ in range(BURST):
                values = [actor.step.remote(1.0) for actor in self._actors]
            enqueued = time.perf_counter()
            ray.get(values)
            ended = time.perf_counter()
            for _ in range(BURST // 8):
                ray.get([actor.step.remote(1.0) for actor in self._actors])
            waited = time.perf_counter()
            return (enqueued - begin) / BURST, (ended - begin) / BURST, (waited - ended) / (BURST // 8)

        def close(self) -> None:
            for actor in self._actors:
                ray.kill(actor)

    try:
        yield Actors
    finally:
        ray.shutdown()


def ray_rows(hosts: list[int], rounds: int) -> list[list[str]]:
    """Return the rows of Ray's actors; none where Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        return []
    rows = []
    with ray_actors() as make:
        for count in hosts:
            actors = make(count)
            actors.time()
            times = [statistics.median(column) for column in zip(*(actors.time() for _ in range(rounds)), strict=True)]
            actors.close()
            rows.append([f"{count} actors of Ray", *step_cells(count, *times)])
    return rows


# The report.


def step_cells(hosts: int, enqueue: float, pipelined: float, waiting: float) -> list[str]:
    """Return the cells of the times of a step."""
    return [duration(enqueue), duration(enqueue / hosts), f"{1 / pipelined:.0f}", duration(waiting)]


def point_row(point: Point) -> list[str]:
    """Return the row of a cluster in the table of steps."""
    name = f"{point.hosts} workers" if point.hosts > 1 else "1 worker"
    name += f", fan-out {point.fan_out}" if point.fan_out else ""
    cells = step_cells(point.hosts, point.enqueue, point.pipelined, point.waiting)
    return [name, *cells, duration(point.controller_cpu / point.hosts)]


def size_row(point: Point) -> list[str]:
    """Return the row of a cluster in the table of what it needs."""
    megabytes = [
        f"{size / 1e6:.0f} MB" for size in (point.worker_memory, point.inner_node_memory, point.controller_memory)
    ]
    if not point.fan_out:
        megabytes[1] = ""
    return [point_row(point)[0], duration(point.start), duration(point.compile), *megabytes]


def measure(quick: bool) -> Report:
    """Time steps of tiny programs on clusters of up to 16 workers of this machine."""
    rounds = 3 if quick else 9
    flat, wide, trees = (FLAT[:2], WIDE[:1], TREES[:1]) if quick else (FLAT, WIDE, TREES)
    points = [Point(hosts, devices, 0) for hosts, devices in (*flat, *wide)]
    points += [Point(hosts, 1, fan_out) for hosts, fan_out in trees]
    report = Report(
        "Clusters: one controller and many workers on one machine",
        "A cluster of `local` workers, all on this machine, and a program that computes eight numbers on each device, "
        f"one device for each worker. *Enqueue* is a step that nobody waits for, {BURST} in a row; *steps/s* counts "
        "such steps until the last one has ended; *waiting* is a step alone, until all results are there. The workers "
        "share this machine's processors with the controller, so their work is in the last two. *Processor time* is "
        "that of the controller for a worker and a step. With a *fan-out* the controller connects to inner nodes.",
    )
    rivals = []
    for hosts in sorted({point.hosts for point in points}):
        group = [point for point in points if point.hosts == hosts]
        noted = measure_points(group, rounds)
        if THREADS in noted:
            rows = noted[THREADS]
            times = [statistics.median(values) for values in (rows.enqueue, rows.pipelined, rows.waiting)]
            processor = duration(statistics.median(rows.controller_cpu) / hosts)
            rivals.append([f"{hosts} workers, {THREADS}", *step_cells(hosts, *times), processor])
    header = ["", "enqueue a step", "a worker and step", "steps/s", "waiting", "processor time"]
    narrow = [point for point in points if point.devices == 1]
    ray = [[*row, ""] for row in ray_rows([hosts for hosts, _ in flat], rounds)]
    report.tables.append(table(header, [*map(point_row, narrow), *rivals, *ray]))
    header = ["", "start", "compile", "memory of a worker", "of an inner node", "of the controller, more"]
    report.tables.append(table(header, map(size_row, narrow)))
    if not quick:
        data = {
            "processors": len(os.sched_getaffinity(0)),
            "points": [dataclasses.asdict(point) for point in points],
        }
        POINTS.write_text(json.dumps(data, indent=1) + "\n")
    return report


if __name__ == "__main__":
    main(measure)
