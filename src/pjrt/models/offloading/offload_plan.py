"""Plans of offloading: what runs in which stage, and the memory that it needs, human-readable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pjrt.api.printable import readable_bytes
from pjrt.models.offloading.schedule import Step


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage of an offloaded program.

    Attributes:
        operations: the names of its operations.
        location: the place of the first one in the source of the program; empty if unknown.
        weights: the names of the weights that it uses.
        weight_bytes: their bytes.
        live_bytes: the bytes of arguments and activations on the device while it runs, its results not counted.
        result_bytes: the bytes of its results that need new memory.
        temporary_bytes: the bytes that it needs while it runs.
        executable: the index of its executable; stages of equal operations share one.
    """

    operations: tuple[str, ...]
    location: str
    weights: tuple[str, ...]
    weight_bytes: int
    live_bytes: int
    result_bytes: int
    temporary_bytes: int
    executable: int


@dataclass(frozen=True, slots=True)
class OffloadPlan:
    """The stages of a program on a device that cannot hold its weights; ``str(plan)`` is a table.

    Attributes:
        stages: the stages, in the order in which they run.
        steps: when weights come and stages begin and end.
        memory_limit: the most bytes that may be on the device at one time.
        peak_bytes: the most bytes that are on the device at one time, by the sizes that the compiler states.
        weight_bytes: the bytes of all weights.
        resident_bytes: the bytes of the weights that stay on the device between calls.
    """

    stages: tuple[StagePlan, ...]
    steps: tuple[Step, ...]
    memory_limit: int
    peak_bytes: int
    weight_bytes: int
    resident_bytes: int

    @property
    def num_executables(self) -> int:
        """The number of programs that were compiled."""
        return len({stage.executable for stage in self.stages})

    @property
    def moved_bytes(self) -> int:
        """The bytes of weights that each call brings to the device."""
        return sum(stage.weight_bytes for stage in self.stages)

    @property
    def summary(self) -> str:
        """The numbers of stages and programs and the memory, in one line."""
        return (
            f"{_count(len(self.stages), 'stage')}, {_count(self.num_executables, 'compiled program')}; "
            f"weights {readable_bytes(self.weight_bytes)}, of which {readable_bytes(self.resident_bytes)} stay on the "
            f"device; at most {readable_bytes(self.peak_bytes)} of {readable_bytes(self.memory_limit)} in use"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the plan without its steps as numbers, texts, lists and dictionaries, such as JSON has."""
        facts = asdict(self)
        del facts["steps"]
        return facts

    def __str__(self) -> str:
        rows: list[Sequence[str]] = [
            ("stage", "program", "operations", "weights", "live", "results", "temporaries", "begins at")
        ]
        for index, stage in enumerate(self.stages):
            sizes = (stage.weight_bytes, stage.live_bytes, stage.result_bytes, stage.temporary_bytes)
            counts = (str(index), str(stage.executable), str(len(stage.operations)))
            rows.append((*counts, *map(readable_bytes, sizes), stage.location))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([self.summary, *lines])


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
