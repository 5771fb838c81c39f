"""Schedules: when to bring the weights of each stage, when to run it, and when to release what it leaves.

A schedule is made once, from sizes alone: before the first run it is known that the memory is enough.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

MOST_STARTED = 2
"""The most stages that are started and not finished: the device goes on with the second one without a break."""

MOST_LOADED = 4
"""The most stages whose weights come before they start."""

Weight = TypeVar("Weight", bound=Hashable)


class Action(enum.Enum):
    """One kind of step."""

    LOAD = "load"
    """Bring the weights of a stage that are not on the device."""
    RUN = "run"
    """Start a stage."""
    FINISH = "finish"
    """Wait for the end of a stage; release the values and weights that no later stage uses."""


class Step(NamedTuple):
    """One step of a schedule.

    Attributes:
        action: the action.
        stage: the index of the stage.
    """

    action: Action
    stage: int


@dataclass(frozen=True, slots=True)
class Demand(Generic[Weight]):
    """The memory that one stage needs, in bytes.

    Attributes:
        weights: the bytes of each weight that it uses.
        results: the bytes of its results.
        temporaries: the bytes that it needs while it runs.
        live: the bytes of arguments and activations on the device after it.
    """

    weights: Mapping[Weight, int]
    results: int
    temporaries: int
    live: int


class Memory(Generic[Weight]):
    """The bytes on a device while stages run.

    Args:
        demands: the stages.
        initial: the bytes of the arguments, which are on the device before the first stage.
        resident: the weights that stay on the device between runs.
    """

    def __init__(
        self, demands: Sequence[Demand[Weight]], initial: int, resident: AbstractSet[Weight] = frozenset()
    ) -> None:
        self._demands = demands
        self._live = [initial, *(demand.live for demand in demands)]
        self._resident = {
            weight: size for demand in demands for weight, size in demand.weights.items() if weight in resident
        }

    @property
    def num_stages(self) -> int:
        """The number of stages."""
        return len(self._demands)

    @property
    def resident_bytes(self) -> int:
        """The bytes of the weights that stay on the device."""
        return sum(self._resident.values())

    def live_before(self, stage: int) -> int:
        """Return the bytes of arguments and activations on the device before a stage runs."""
        return self._live[stage]

    def in_use(self, finished: int, started: int, loaded: int) -> int:
        """Return the bytes in use when these are the last stages that are finished, started and loaded; −1 is none."""
        weights = dict(self._resident)
        for demand in self._demands[finished + 1 : loaded + 1]:
            weights.update(demand.weights)
        running = self._demands[finished + 1 : started + 1]
        work = sum(demand.results + demand.temporaries for demand in running)
        return self._live[finished + 1] + work + sum(weights.values())

    def alone(self, stage: int) -> int:
        """Return the bytes in use while a stage runs and nothing comes."""
        return self.in_use(stage - 1, stage, stage)

    def with_next(self, stage: int) -> int:
        """Return the bytes in use while a stage runs and the weights of the next one come."""
        return self.in_use(stage - 1, stage, stage + 1)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The steps of one run, and the memory that they need.

    Attributes:
        steps: the steps.
        peak: the most bytes in use at one time.
    """

    steps: tuple[Step, ...]
    peak: int

    @staticmethod
    def of(memory: Memory[Any], limit: int, *, prefetch: bool = True) -> Schedule:
        """Return the schedule that brings weights as early as the limit allows.

        Args:
            memory: the stages; each fits ``alone``.
            limit: the most bytes in use at one time.
            prefetch: whether to bring weights while earlier stages run.
        """
        steps: list[Step] = []
        finished = started = loaded = -1
        peak = memory.in_use(finished, started, loaded)
        last = memory.num_stages - 1
        most_started, most_loaded = (MOST_STARTED, MOST_LOADED) if prefetch else (1, 1)

        def may_load(stage: int) -> bool:
            """Whether the weights of a stage can come now, and each stage before it still runs beside them."""
            if stage > last or stage - (started if prefetch else finished) > most_loaded:
                return False
            states = [(finished, started), *((each - 1, each) for each in range(started + 1, stage + 1))]
            return all(memory.in_use(*state, stage) <= limit for state in states)

        while finished < last:
            can_start = started < loaded and started - finished < most_started
            if can_start and memory.in_use(finished, started + 1, loaded) <= limit:
                started += 1
                steps.append(Step(Action.RUN, started))
            elif may_load(loaded + 1):
                loaded += 1
                steps.append(Step(Action.LOAD, loaded))
            else:
                assert finished < started, "a stage does not fit alone"
                finished += 1
                steps.append(Step(Action.FINISH, finished))
            peak = max(peak, memory.in_use(finished, started, loaded))
        return Schedule(tuple(steps), peak)


def resident_weights(demands: Sequence[Demand[Weight]], initial: int, limit: int) -> frozenset[Weight]:
    """Return the weights that can stay on the device, beside those that come and go.

    Those of the first stages stay, so that a run begins at once, and of as many stages as there is room for while the
    weights of each other stage come during the stage before it.
    """
    stays: frozenset[Weight] = frozenset()
    for demand in demands:
        more = stays | demand.weights.keys()
        memory = Memory(demands, initial, more)
        if all(memory.with_next(stage) <= limit for stage in range(len(demands))):
            stays = more
    return stays
