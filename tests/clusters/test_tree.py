"""Trees of controllers: their shape, programs over their branches, and what is lost with a worker or an inner node."""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_lost_workers import HEARTBEAT, SECONDS, await_end, error_of, first, put, run, start, sum_over

import pjrt
from pjrt.clusters.launchers import WorkerOutput
from pjrt.clusters.launchers.launcher import LocalLauncher
from pjrt.clusters.settings import ClusterSettings
from pjrt.clusters.workers.control_server import Place
from pjrt.clusters.workers.workers import InnerNodes, InnerNodeState, Node, WorkerState, workers_of


class ElsewhereLauncher(LocalLauncher):
    """Starts workers on this machine, which find their controller and each other as those of other machines do."""

    is_local = False


@contextmanager
def tree(hosts: int, fan_out: int, **options: Any) -> Iterator[tuple[Any, list[int], list[int]]]:
    """A cluster with a tree over TLS, its workers and its inner nodes; none of its processes is left at the end."""
    with pjrt.cluster(
        launcher=ElsewhereLauncher(hosts, {}),
        logs="hide",
        progress=False,
        heartbeat_timeout=HEARTBEAT,
        controller_address="127.0.0.1",
        fan_out=fan_out,
        **options,
    ) as client:
        workers = client._close.__self__
        pids, inner_pids = [worker.pid for worker in workers.members], workers.inner_nodes.pids
        yield client, pids, inner_pids
    for pid in (*pids, *inner_pids):
        await_end(pid)


def check_functions_on_hosts(client: Any, pids: Sequence[int]) -> None:
    """Functions go to the workers by way of the inner nodes, and the values of buffers do not."""
    assert client.call_on_hosts("os:getpid") == pids
    # Those below one inner node run at the same time, too.
    client.call_on_hosts("pjrt.distributed:barrier", "functions", 60.0, tuple(range(len(pids))))
    devices = client.devices
    parts = [row[0] for row in put(client, devices)]
    values = client.call_on_hosts(lambda parts: [None if part is None else part.tolist() for part in parts], parts)
    assert [[part and part[0] for part in of_host] for of_host in values] == [
        [float(device.id) if device.attributes["process"] == process else None for device in devices]
        for process in range(len(pids))
    ]

    def load(number: int) -> Any:
        import os

        return np.array([number, os.getpid(), 0, 0], np.int64)

    spec = pjrt.ShapeSpec((4,), pjrt.ElementType.S64)
    made = [np.asarray(b).tolist() for b in client.buffers_from_hosts(load, spec, [(n,) for n in range(len(devices))])]
    assert made == [[n, pids[device.attributes["process"]], 0, 0] for n, device in enumerate(devices)]

    def fail() -> None:
        raise KeyError("no such weights")

    some = ", ".join(f"process {n} on local{n}" for n in range(3))
    with pytest.raises(pjrt.InternalError, match=rf"KeyError: 'no such.*\[{some}"):
        client.call_on_hosts(fail)
    (wrong,) = client.buffers_from_hosts(lambda: np.zeros(3), spec, [()], devices[-1:])
    with pytest.raises(pjrt.InvalidArgumentError, match=rf"expected s64\[4\] of the function.*process {len(pids) - 1}"):
        wrong.ready().result(SECONDS)
    with pytest.raises(pjrt.InvalidArgumentError, match="process index of a worker below this one, found 99"):
        client.pass_on_call(99, b"", (), ())


def inner_nodes_of(count: int, fan_out: int) -> InnerNodes:
    workers = [WorkerState(index, f"host{index}", WorkerOutput("", shown=False)) for index in range(count)]
    place = Place.of(LocalLauncher(1, {}), "", Path("folder"))
    return InnerNodes(workers, fan_out, ClusterSettings(), place, lambda index, message: None, lambda index: None)  # type: ignore[arg-type, return-value]


@given(st.integers(1, 400), st.integers(2, 20))
def test_a_tree_has_each_worker_once_and_no_node_with_too_many_below(count: int, fan_out: int) -> None:
    def check(nodes: Sequence[Node]) -> int:
        assert len(nodes) <= fan_out
        return 1 + max(check(node.children) if isinstance(node, InnerNodeState) else 0 for node in nodes)

    top = inner_nodes_of(count, fan_out).top
    assert [worker.index for node in top for worker in workers_of(node)] == list(range(count))
    depth = check(top)
    assert fan_out ** (depth - 1) < count or depth == 1, "no level more than it takes"


@pytest.mark.parametrize("fan_out", [1, 0, True, 2.5, "4"])
def test_a_wrong_fan_out_is_an_error(fan_out: object) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match="expected fan_out as a number of workers, at least 2"):
        pjrt.cluster(2, fan_out=fan_out)


@pytest.mark.full
def test_a_tree_computes_as_one_machine_and_names_what_is_lost() -> None:
    with tree(3, 2, num_devices=2) as (client, pids, inner_pids):
        losses: queue.SimpleQueue[Any] = queue.SimpleQueue()
        client.on_worker_lost(losses.put)
        assert len(client.members) == 2, "a worker, and an inner node of two"
        assert len(inner_pids) == 1
        devices = client.devices
        assert [str(device) for device in devices[1:4]] == [
            "cpu:1 (process 0 on local0)",
            "cpu:2048 (process 1 on local1)",
            "cpu:2049 (process 1 on local1)",
        ]
        assert [device.attributes["host"] for device in devices[::2]] == ["local0", "local1", "local2"]

        # Over the root, over the inner node alone, and on one worker below it.
        of_all, of_branch, of_one = (sum_over(client, part) for part in (devices, devices[2:], devices[2:4]))
        assert run(of_all) == [12291.0] * 6
        assert run(of_branch) == [12290.0] * 4
        assert run(of_one) == [4097.0] * 2
        (value,) = put(client, devices[5:])[0]
        for target in (devices[0], devices[2], devices[4]):  # another branch, another worker, the same one
            copy = value.copy_to(target)
            assert copy.device is target
            np.testing.assert_array_equal(np.asarray(copy), np.full(4, 4097, np.float32))
        with pytest.raises(pjrt.InvalidArgumentError):
            client.compile("func.func @main() { nonsense }")
        check_functions_on_hosts(client, pids)

        # A worker below the inner node.
        kept = put(client, devices)
        os.kill(pids[2], signal.SIGKILL)
        lost = losses.get(timeout=SECONDS)
        assert (lost.host, lost.process_index) == ("local2", 2)
        message = lost.loss.message
        assert message.startswith(f"worker 2 on local2 (pid {pids[2]}), with the devices cpu:4096, cpu:4097, was")
        assert "SIGKILL" in message
        assert error_of(lambda: first(kept[4:])) == message
        assert error_of(lambda: start(of_all)) == message
        assert error_of(lambda: client.buffer_from_host(np.zeros(4), device=devices[4])) == message
        assert "lost" in str(devices[4])
        assert "lost" not in str(devices[3])
        assert first(kept[:4]) == [0.0, 1.0, 2048.0, 2049.0]
        assert run(of_one) == [4097.0] * 2
        assert run(sum_over(client, devices[:4])) == [4098.0] * 4

        # The inner node, and with it the other worker below.
        os.kill(inner_pids[0], signal.SIGKILL)
        lost = losses.get(timeout=SECONDS)
        assert (lost.host, lost.process_index) == ("local1", 1)
        message = error_of(lambda: start(of_one))
        assert "worker 1 on local1" in message
        assert "the inner node of process 1 on local1, process 2 on local2 was lost" in message
        assert [member.process_index for member in client.lost_members] == [1, 2]
        assert run(sum_over(client, devices[:2])) == [1.0] * 2
