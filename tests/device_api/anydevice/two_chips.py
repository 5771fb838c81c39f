"""Two chips whose memory is simulated, and whose queues work only while somebody waits for a fence."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import pjrt
from anydevice.simulated_memory import SimulatedMemory
from pjrt.host import Enqueued

LIMIT = 100.0  # seconds, for what must not wait for ever


class Chips(SimulatedMemory):
    """Two chips whose queues work while somebody waits for a fence, once the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.RLock()
        self.gate = threading.Event()
        self.gate.set()
        self.events: list[str] = []
        self.homes: dict[int, int] = {}
        self.commands: list[list[Callable[[], object]]] = [[], []]
        self.done = [0, 0]
        self.errors: dict[tuple[int, int], str] = {}

    def put(self, chip: int, name: str, command: Callable[[], object]) -> Callable[[], None]:
        with self.lock:
            self.events.append(f"put {name} {chip}")
            self.commands[chip].append(lambda: (self.events.append(f"do {name} {chip}"), command()))
            number = len(self.commands[chip])
        return lambda: self.work_until(chip, number)

    def work_until(self, chip: int, number: int) -> None:
        assert self.gate.wait(LIMIT)
        with self.lock:
            while self.done[chip] < number:
                self.done[chip] += 1
                try:
                    self.commands[chip][self.done[chip] - 1]()
                except Exception as error:
                    self.errors[chip, self.done[chip]] = str(error)  # an error would hold frames
            if (chip, number) in self.errors:
                raise ValueError(self.errors[chip, number])

    def allocate(self, spec: pjrt.ShapeSpec, space: pjrt.MemorySpace) -> int:
        with self.lock:
            handle = super().allocate(spec, space)
            self.homes[handle] = space.devices[0].local_hardware_id
            return handle

    def write(self, handle: int, array: Any) -> None:
        SimulatedMemory.copy_in(self, handle, np.ascontiguousarray(array))

    def add(self, operation: Any, x: int, y: int) -> Any:
        chip = self.homes[x]
        with self.lock:
            result = SimulatedMemory.allocate(self, self.specs[x], None)  # type: ignore[arg-type]
            self.homes[result] = chip

        def work() -> None:
            total = self.read(x) + self.read(y)
            if total.min() < 0:
                raise ValueError(f"chip {chip} met a negative element")
            self.write(result, total)

        return Enqueued(result, self.put(chip, "add", work))

    def together(
        self, name: str, sources: Sequence[int], targets: Sequence[int], function: Callable[[list[Any]], Sequence[Any]]
    ) -> Any:
        ahead = [len(self.commands[self.homes[source]]) for source in sources]
        is_done = []

        def work() -> None:
            if is_done:
                return
            is_done.append(True)
            for source, number in zip(sources, ahead, strict=True):
                with contextlib.suppress(ValueError):  # its own fence says so
                    self.work_until(self.homes[source], number)
            for target, array in zip(targets, function([self.read(source) for source in sources]), strict=True):
                self.write(target, array)

        places = sources if len(sources) > 1 else [*sources, *targets]
        return [self.put(self.homes[place], name, work) for place in places]


class Collecting(Chips):
    """Chips that copy, and do collectives, in their queues."""

    def copy_from_peer(self, source: int, target: int, spec: pjrt.ShapeSpec) -> Any:
        return self.together("copy", [source], [target], lambda rows: rows)

    def all_reduce(self, sources: Any, targets: Any, spec: pjrt.ShapeSpec, reduction: str) -> Any:
        combine = {"add": np.add, "maximum": np.maximum}[reduction]
        return self.together("all_reduce", sources, targets, lambda rows: [combine.reduce(rows)] * len(rows))

    def all_gather(self, sources: Any, targets: Any, spec: pjrt.ShapeSpec, dimension: int) -> Any:
        return self.together("all_gather", sources, targets, lambda rows: [np.concatenate(rows, dimension)] * len(rows))

    def reduce_scatter(self, sources: Any, targets: Any, spec: pjrt.ShapeSpec, reduction: str, dimension: int) -> Any:
        return self.together(
            "reduce_scatter", sources, targets, lambda rows: np.split(np.add.reduce(rows), len(rows), dimension)
        )

    def all_to_all(
        self, sources: Any, targets: Any, spec: pjrt.ShapeSpec, split_dimension: int, concat_dimension: int
    ) -> Any:
        def exchange(rows: list[Any]) -> list[Any]:
            parts = [np.split(row, len(rows), split_dimension) for row in rows]
            return [np.concatenate(column, concat_dimension) for column in zip(*parts, strict=True)]

        return self.together("all_to_all", sources, targets, exchange)

    def broadcast(self, sources: Any, targets: Any, spec: pjrt.ShapeSpec) -> Any:
        return self.together("broadcast", sources, targets, lambda rows: [rows[0]] * len(rows))

    def permute(self, sources: Any, targets: Any, spec: pjrt.ShapeSpec, pairs: Any) -> Any:
        origin = {target: source for source, target in pairs}
        return self.together(
            "permute",
            sources,
            targets,
            lambda rows: [rows[origin[n]] if n in origin else np.zeros_like(rows[n]) for n in range(len(rows))],
        )


def client_of(memory: Chips, **options: Any) -> pjrt.Client:
    """Return a client of the chips: their kernel adds, and the interpreter does the rest."""
    kernels = {"stablehlo.add": memory.add}
    return pjrt.StableHloClient("chips", kernels=kernels, fallback="reference", memory=memory, num_devices=2, **options)
