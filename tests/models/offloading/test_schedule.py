"""Schedules: in every order of transfers and stages the memory stays under its limit, and all stages run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pjrt.models.offloading.stages import Action, Demand, Memory, Schedule, Step, resident_weights

LOAD, RUN, FINISH = Action.LOAD, Action.RUN, Action.FINISH
SIZES = st.integers(0, 20)
DEMANDS = st.lists(
    st.builds(Demand, st.dictionaries(st.integers(0, 6), st.just(7), max_size=3), SIZES, SIZES, SIZES),
    min_size=1,
    max_size=8,
)


def needed(demands: Sequence[Demand], initial: int) -> int:
    memory = Memory(demands, initial)
    return max(memory.alone(stage) for stage in range(len(demands)))


def simulated_peak(steps: Sequence[Step], demands: Sequence[Demand], initial: int, resident: frozenset[Any]) -> int:
    """Follow the steps as a run does, with counts of its own."""
    sizes = {weight: size for demand in demands for weight, size in demand.weights.items()}
    on_device = set(resident)
    work: dict[int, int] = {}
    loaded = finished = -1
    live = peak = initial
    for action, stage in steps:
        demand = demands[stage]
        if action is LOAD:
            assert stage == loaded + 1
            loaded = stage
            on_device |= demand.weights.keys()
        elif action is RUN:
            assert demand.weights.keys() <= on_device, "a stage starts without its weights"
            work[stage] = demand.results + demand.temporaries
        else:
            assert stage == finished + 1
            finished = stage
            del work[stage]
            live = demand.live
            later = {weight for each in demands[stage + 1 : loaded + 1] for weight in each.weights}
            on_device &= later | resident
        peak = max(peak, live + sum(work.values()) + sum(sizes[weight] for weight in on_device))
    assert finished == len(demands) - 1
    assert not work
    return peak


@given(DEMANDS, SIZES, st.integers(0, 60), st.booleans())
def test_the_memory_stays_under_its_limit(demands: list[Demand], initial: int, spare: int, prefetch: bool) -> None:
    limit = needed(demands, initial) + spare
    resident = resident_weights(demands, initial, limit)
    schedule = Schedule.of(Memory(demands, initial, resident), limit, prefetch=prefetch)
    assert simulated_peak(schedule.steps, demands, initial, resident) == schedule.peak <= limit


@given(DEMANDS, SIZES)
def test_weights_come_early_where_there_is_room(demands: list[Demand], initial: int) -> None:
    schedule = Schedule.of(Memory(demands, initial), 10_000)
    order = {step: index for index, step in enumerate(schedule.steps)}
    for stage in range(1, len(demands)):
        assert order[Step(LOAD, stage)] < order[Step(FINISH, stage - 1)]
        assert order[Step(RUN, stage)] < order[Step(FINISH, stage - 1)]


LAYERS = [Demand({layer: 100}, 1, 0, 1) for layer in range(4)]


def test_two_layers_fit_and_the_next_one_comes_while_one_runs() -> None:
    schedule = Schedule.of(Memory(LAYERS, 1), 205)
    assert schedule.steps == (
        Step(LOAD, 0), Step(RUN, 0), Step(LOAD, 1), Step(RUN, 1), Step(FINISH, 0),
        Step(LOAD, 2), Step(RUN, 2), Step(FINISH, 1), Step(LOAD, 3), Step(RUN, 3), Step(FINISH, 2), Step(FINISH, 3),
    )  # fmt: skip


@pytest.mark.parametrize(("limit", "prefetch"), [(105, True), (10_000, False)])
def test_without_room_or_prefetch_each_layer_waits(limit: int, prefetch: bool) -> None:
    schedule = Schedule.of(Memory(LAYERS, 1), limit, prefetch=prefetch)
    assert schedule.steps == tuple(Step(action, layer) for layer in range(4) for action in (LOAD, RUN, FINISH))


def test_weights_stay_where_there_is_room() -> None:
    assert resident_weights(LAYERS, 1, 204) == frozenset()
    # Beside those of the first and the third layer there is room for one more, which is never used with another.
    assert resident_weights(LAYERS, 1, 305) == {0, 2}
    assert resident_weights(LAYERS, 1, 10_000) == {0, 1, 2, 3}
