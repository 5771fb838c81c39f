"""Compute what a step costs on clusters of up to 4,096 hosts, from the costs that ``benchmarks.cluster`` has measured.

``python -m benchmarks.cluster_simulation`` fits the costs of the control path to some of the measured points, compares
the simulation with the other points, and then simulates larger clusters, flat and as trees. Nothing about more than 16
hosts is measured.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import numpy as np

from benchmarks.cluster import BURST, POINTS, Point
from benchmarks.control_path import Costs, Network, Result, simulate
from benchmarks.side_by_side import Report, duration, main, table

FITTED = {(1, 1, 0), (2, 1, 0), (8, 1, 0), (2, 2, 0), (2, 8, 0), (4, 1, 2)}
"""The hosts, devices of each and fan-out of the points from which the costs are taken; the others check them."""

HOSTS = (16, 64, 256, 1024, 4096)
FAN_OUTS = (0, 8, 16, 64)
DEVICES = 8
"""The devices of a host of the computed clusters."""

STEPS = 24
WIRE_SECONDS = 50e-6
"""The time of a message from one host to another in a data center."""

LOOPBACK_SECONDS = 20e-6
_LEAST_SHARE = 0.25


def fit(points: Sequence[Point]) -> Costs:
    """Return the costs that fit measured points best, by least squares of relative errors.

    The processor time of a controller is that of a step, of each member's request, of each device, and of each message.
    That of an inner node has the handling of a request in addition, and that of a worker is an execution and the
    reception of a message. A burst of steps puts several requests in a message: ``messages`` estimates how many.
    """
    flat = [point for point in points if not point.fan_out]
    rows = [[1.0, point.hosts, point.hosts * point.devices, point.hosts * _messages(point)] for point in flat]
    step, request, device, message = _non_negative(rows, [point.controller_cpu for point in flat])
    rows = [[1.0, point.devices, _messages(point)] for point in flat]
    execution, own_device, reception = _non_negative(rows, [point.worker_cpu for point in flat])
    trees = [point for point in points if point.fan_out]
    handling = [
        point.inner_node_cpu - step - _below(point) * (request + device * point.devices + message * _messages(point))
        for point in trees
    ]
    return Costs(
        step=step,
        request=request,
        device=device,
        message=message,
        reception=reception,
        handling=max(0.0, float(np.mean(handling))) if trees else 0.0,
        execution=execution,
        execution_device=own_device,
    )


def _below(point: Point) -> float:
    """Return the mean number of workers below an inner node of a tree of two levels."""
    return point.hosts / -(-point.hosts // point.fan_out)


def _messages(point: Point) -> float:
    """Return the messages for each request to a worker in a burst, at most 1."""
    return min(1.0, max(point.enqueue, point.controller_cpu) / Costs.window)


def _non_negative(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Return the factors of the columns that fit the values best, none of them negative (least relative squares)."""
    weights = 1 / np.asarray(values)
    matrix, target = np.asarray(rows) * weights[:, None], np.ones(len(values))
    used = list(range(matrix.shape[1]))
    while True:
        solution, *_ = np.linalg.lstsq(matrix[:, used], target, rcond=None)
        if (solution >= 0).all():
            break
        used.pop(int(np.argmin(solution)))
    factors = [0.0] * matrix.shape[1]
    for column, factor in zip(used, solution, strict=True):
        factors[column] = float(factor)
    return factors


def compared(point: Point, costs: Costs, processors: int) -> dict[str, tuple[float, float]]:
    """Return measured and simulated times of a point, by their names: all of its processes share a machine.

    Times on the clock are longer where other processes use the machine, too.
    """
    share = max(_LEAST_SHARE, 1 - point.others / processors)
    network = Network(point.hosts, point.devices, point.fan_out, wire=LOOPBACK_SECONDS, shared_processors=processors)
    result = simulate(network, costs, BURST)
    times = {
        "controller": (point.controller_cpu, result.controller_cpu),
        "inner node": (point.inner_node_cpu, result.inner_node_cpu),
        "worker": (point.worker_cpu, result.worker_cpu),
        "a step": (point.pipelined, result.pipelined / share),
    }
    return {name: pair for name, pair in times.items() if pair[0]}


def limit(network: Network, costs: Costs, result: Result) -> str:
    """Return what limits the steps in a second, human-readable."""
    shares = {
        "devices at the controller": costs.device * network.hosts * network.devices,
        "messages of the controller": result.controller_cpu - costs.device * network.hosts * network.devices,
        "inner nodes": result.inner_node_cpu,
        "workers": result.worker_cpu,
    }
    return max(shares, key=lambda name: shares[name])


def measure(quick: bool) -> Report:
    """Check the simulation against measured points, and compute larger clusters."""
    data = json.loads(POINTS.read_text())
    points = [Point(**fields) for fields in data["points"]]
    costs = fit([point for point in points if _key(point) in FITTED])
    report = Report(
        "Clusters of up to 4,096 hosts: computed",
        "A simulation of the control path: the processes that enqueue, pass on and start the programs of a step, each "
        "of which does one thing at a time, their messages, and the batches in which they are sent. Its costs come "
        "from measured points of at most 16 workers, by least squares. All other processes of the machine are left "
        f"out of the times on the clock. Computed clusters have {DEVICES} devices on each host, a machine for each "
        f"process, and {WIRE_SECONDS * 1e6:.0f} µs from one host to another.",
    )
    fields = [(name, duration(value)) for name, value in dataclasses.asdict(costs).items() if value]
    report.tables += ["Costs, each in processor time:", table(["cost", "time"], fields)]
    rows, errors = [], []
    for point in points:
        for name, (measured, simulated) in compared(point, costs, data["processors"]).items():
            fitted = _key(point) in FITTED
            error = simulated / measured - 1
            if not fitted:
                errors.append(abs(error))
            rows.append([_name(point), name, duration(measured), duration(simulated), f"{error:+.0%}", "yes" * fitted])
    report.tables += [
        f"Measured and simulated times for a step. Of those that were not used for the costs, half are off by at most "
        f"{np.median(errors):.0%}, and all by at most {max(errors):.0%}.",
        table(["cluster", "time", "measured", "simulated", "error", "used for the costs"], rows),
    ]
    rows = []
    for hosts in HOSTS[:2] if quick else HOSTS:
        for fan_out in FAN_OUTS:
            if fan_out >= hosts:
                continue
            network = Network(hosts, DEVICES, fan_out, wire=WIRE_SECONDS)
            result = simulate(network, costs, STEPS)
            cells = [duration(result.enqueue), duration(result.latency), f"{1 / result.pipelined:.0f}"]
            rows.append([f"{hosts:,}", str(fan_out or "none"), *cells, limit(network, costs, result)])
    header = ["hosts", "fan-out", "enqueue a step", "to the last host's start", "steps/s", "limited by"]
    report.tables += ["Computed:", table(header, rows)]
    return report


def _key(point: Point) -> tuple[int, int, int]:
    return point.hosts, point.devices, point.fan_out


def _name(point: Point) -> str:
    shape = f"{point.hosts} × {point.devices}"
    return f"{shape}, fan-out {point.fan_out}" if point.fan_out else shape


if __name__ == "__main__":
    main(measure)
