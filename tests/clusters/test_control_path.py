"""The simulation of the control path of clusters: times that can be computed by hand, conservation, and the fit."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[2]))  # the benchmarks are no part of the package

from benchmarks.cluster import Point
from benchmarks.cluster_simulation import fit
from benchmarks.control_path import Costs, Network, simulate

COSTS = Costs(step=1.0, request=2.0, device=0.5, message=3.0, reception=4.0, handling=5.0, execution=6.0)
WIRE = 10.0


def test_a_step_of_one_worker_takes_the_sum_of_its_parts() -> None:
    result = simulate(Network(1, wire=WIRE), COSTS, 1)
    assert result.enqueue == 1 + 2 + 0.5, "the message is finished later"
    assert result.latency == 1 + 2 + 0.5 + WIRE + 4 + 6
    assert (result.controller_cpu, result.inner_node_cpu, result.worker_cpu) == (6.5, 0, 10)


def test_the_last_of_several_workers_starts_after_the_requests_to_all_others() -> None:
    result = simulate(Network(3, devices=2, wire=WIRE), COSTS, 1)
    # The messages are finished after the requests, because these were there first.
    assert result.latency == 1 + 3 * (2 + 2 * 0.5) + WIRE + 4 + 6


def test_an_inner_node_adds_its_handling_and_a_wire() -> None:
    result = simulate(Network(4, fan_out=2, wire=WIRE), COSTS, 1)
    at_root = 1 + 2 * (2 + 2 * 0.5)
    at_inner_node = 4 + 5 + 1 + 2 * (2 + 0.5)
    assert result.latency == at_root + WIRE + at_inner_node + WIRE + 4 + 6
    assert result.inner_node_cpu == at_inner_node + 2 * 3


def test_processes_of_one_machine_wait_for_its_processor() -> None:
    apart = simulate(Network(4), COSTS, 10).pipelined
    together = simulate(Network(4, shared_processors=1), COSTS, 10)
    assert together.pipelined > apart
    # All but the end of the last messages is done before the last start.
    work = together.controller_cpu + 4 * together.worker_cpu
    assert work - 4 * COSTS.message / 10 <= together.pipelined <= work


def test_requests_that_come_soon_share_a_message() -> None:
    quick = dataclasses.replace(COSTS, step=0.0, request=Costs.window / 100, device=0.0, message=Costs.window / 2)
    many = simulate(Network(1), quick, 1000)
    assert many.controller_cpu < quick.request + quick.message / 10
    slow = dataclasses.replace(quick, request=2 * Costs.window)
    assert simulate(Network(1), slow, 1000).controller_cpu == pytest.approx(slow.request + slow.message)


@given(st.integers(1, 40), st.integers(1, 4), st.integers(2, 9), st.integers(1, 5))
def test_every_worker_starts_every_step_in_any_tree(hosts: int, devices: int, fan_out: int, steps: int) -> None:
    tree = simulate(Network(hosts, devices, fan_out), COSTS, steps)  # it checks the number of starts itself
    flat = simulate(Network(hosts, devices), COSTS, steps)
    assert tree.worker_cpu == flat.worker_cpu
    assert tree.controller_cpu <= flat.controller_cpu
    assert (tree.inner_node_cpu > 0) == (hosts > fan_out)


def test_the_costs_of_measured_points_are_found_again() -> None:
    true = Costs(step=20e-6, request=30e-6, device=4e-6, message=0.0, handling=50e-6, execution=40e-6)
    points = []
    for hosts, devices, fan_out in ((1, 1, 0), (2, 1, 0), (8, 1, 0), (2, 2, 0), (2, 8, 0), (4, 1, 2)):
        result = simulate(Network(hosts, devices, fan_out), true, 1)
        times = {name: getattr(result, name) for name in ("controller_cpu", "inner_node_cpu", "worker_cpu", "enqueue")}
        points.append(Point(hosts, devices, fan_out, **times))
    found = fit(points)
    for name in ("step", "request", "device", "handling", "execution"):
        assert getattr(found, name) == pytest.approx(getattr(true, name), rel=1e-6), name
