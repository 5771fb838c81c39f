"""Workers that are killed, hang or cannot be ended: named by errors within seconds, and everything else goes on."""

from __future__ import annotations

import ctypes
import math
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from slow_network import SlowNetwork
from waiting import wait_until

import pjrt
from pjrt.clusters.client.member import Member
from pjrt.clusters.launchers import WorkerHandle, WorkerStart
from pjrt.clusters.launchers.launcher import LocalLauncher
from pjrt.clusters.workers.workers import Workers

pytestmark = pytest.mark.full

SECONDS = 120.0
"""After these, what waits for a loss counts as hanging."""

HEARTBEAT = 6.0


def all_reduce(count: int) -> str:
    """Return a program that sums its argument over a number of devices."""
    return f"""func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
      %0 = "stablehlo.all_reduce"(%x) ({{
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          %c = stablehlo.add %a, %b : tensor<f32>
          stablehlo.return %c : tensor<f32>
      }}) {{replica_groups = dense<{[list(range(count))]}> : tensor<1x{count}xi64>,
           channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>}} : (tensor<4xf32>) -> tensor<4xf32>
      return %0 : tensor<4xf32>
    }}"""


def sum_over(client: pjrt.Client, devices: Sequence[pjrt.Device]) -> pjrt.LoadedExecutable:
    assignment = pjrt.DeviceAssignment(tuple((device.id,) for device in devices))
    options = pjrt.CompileOptions(num_replicas=len(devices), device_assignment=assignment)
    return client.compile(all_reduce(len(devices)), options)


def put(client: pjrt.Client, devices: Sequence[pjrt.Device]) -> list[list[pjrt.Buffer]]:
    return [[client.buffer_from_host(np.full(4, device.id, np.float32), device=device)] for device in devices]


def first(rows: Sequence[Sequence[pjrt.Buffer]]) -> list[float]:
    return [float(row[0].to_host().result(SECONDS)[0]) for row in rows]


def run(executable: pjrt.LoadedExecutable) -> list[float]:
    return first(start(executable))


def start(executable: pjrt.LoadedExecutable) -> list[list[pjrt.Buffer]]:
    return executable.execute(put(executable.client, executable.addressable_devices))


def pids(client: Any) -> list[int]:
    """Return the processes of the workers."""
    return [worker.pid for worker in client._close.__self__.members]


@contextmanager
def cluster(hosts: int, **options: Any) -> Iterator[Any]:
    with pjrt.cluster(hosts, logs="hide", progress=False, heartbeat_timeout=HEARTBEAT, **options) as client:
        processes = pids(client)
        yield client
    for pid in processes:
        await_end(pid)


def is_gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as file:
            # Of a zombie, its parent was killed, and nobody waits for it.
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True


def await_end(pid: int) -> None:
    wait_until(lambda: is_gone(pid), f"the end of the worker {pid}")


def error_of(function: Callable[[], object]) -> str:
    with pytest.raises(pjrt.UnavailableError) as raised:
        function()
    return raised.value.message


def test_what_depends_on_a_lost_worker_fails_and_the_rest_goes_on() -> None:
    with cluster(3, num_devices=2) as client:
        losses: queue.SimpleQueue[Member] = queue.SimpleQueue()
        client.on_worker_lost(losses.put)
        devices = client.devices
        of_all, of_two, of_one = (sum_over(client, devices[:count]) for count in (6, 4, 2))
        assert run(of_all) == [12291.0] * 6
        assert run(of_two) == [4098.0] * 4
        assert run(of_one) == [1.0] * 2
        kept = put(client, devices)

        # Killed, while the others wait for it.
        victim = pids(client)[2]
        os.kill(victim, signal.SIGSTOP)
        waiting = [start(of_all) for _ in range(2)]
        os.kill(victim, signal.SIGKILL)
        message = error_of(lambda: first([waiting[1][5]]))
        assert message.startswith(f"worker 2 on local2 (pid {victim}), with the devices cpu:4096, cpu:4097, was lost: ")
        assert "SIGKILL" in message
        lost = losses.get(timeout=SECONDS)
        assert (lost.host, lost.process_index, str(lost.loss)) == ("local2", 2, f"UNAVAILABLE: {message}")
        for rows in waiting:
            derived = of_two.execute(rows[:4])
            for row in (*rows[:4], *derived):
                assert f"process 2 (pid {victim} on " in error_of(lambda row=row: first([row]))  # type: ignore[misc]
        assert message == error_of(lambda: first(kept[4:]))
        assert message == error_of(lambda: start(of_all))
        assert message == error_of(lambda: sum_over(client, devices))
        assert message == error_of(lambda: client.buffer_from_host(np.zeros(4), device=devices[4]))
        assert "lost: process 2 on local2" in repr(client)
        assert "lost" in str(devices[4])
        assert "lost" not in str(devices[3])

        assert first(kept[:4]) == [0.0, 1.0, 2048.0, 2049.0]
        assert run(of_one) == [1.0] * 2
        assert run(of_two) == [4098.0] * 4
        assert run(sum_over(client, [devices[3], devices[0]])) == [2049.0] * 2

        # Hung.
        victim = pids(client)[1]
        os.kill(victim, signal.SIGSTOP)
        stuck = start(of_two)
        message = error_of(lambda: first(stuck[2:]))
        assert f"worker 1 on local1 (pid {victim})" in message
        assert f"it gave no sign of life for {HEARTBEAT:g} s" in message
        assert f"process 1 (pid {victim} on " in error_of(lambda: first(stuck[:1]))
        assert losses.get(timeout=SECONDS).process_index == 1
        await_end(victim)
        assert run(of_one) == [1.0] * 2
        assert [member.process_index for member in client.lost_members] == [1, 2]


class _Unreachable(WorkerHandle):
    """A worker that its launcher can neither see nor end, as on a host that is cut off."""

    def poll(self) -> str | None:
        return None

    def end(self) -> None: ...

    def kill(self) -> None: ...


class _PowerlessLauncher(LocalLauncher):
    """A launcher that cannot end its last worker until it is closed."""

    def start(self, starts: Sequence[WorkerStart]) -> Sequence[WorkerHandle]:
        *handles, self._last = super().start(starts)
        return [*handles, _Unreachable()]

    def close(self) -> None:
        self._last.kill()
        super().close()


def test_a_hung_worker_that_cannot_be_ended_holds_nobody_up() -> None:
    with cluster(None, launcher=_PowerlessLauncher(2, {}), num_devices=1) as client:  # type: ignore[arg-type]
        of_all = sum_over(client, client.devices)
        alone = sum_over(client, client.devices[:1])
        assert run(of_all) == [2048.0] * 2
        victim = pids(client)[1]
        os.kill(victim, signal.SIGSTOP)
        stuck, later = start(of_all), start(alone)
        assert "no sign of life" in error_of(lambda: first(stuck[:1]))
        assert first(later) == [0.0]
        os.kill(victim, signal.SIGCONT)  # it learns that it was given up, and ends
        await_end(victim)


class _FarLauncher(LocalLauncher):
    """A launcher whose workers are reached as on other machines: over TCP, with TLS."""

    is_local = False


def test_a_worker_whose_connection_is_cut_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection stays open, but nothing comes through, as when a cable is pulled."""
    networks: list[SlowNetwork] = []
    direct = Workers.connection_options

    def connection_options(workers: Workers, worker: Any) -> dict[str, Any]:
        options = direct(workers, worker)
        if worker.index == 1:
            scheme, _, address = options["address"].partition("://")
            host, _, port = address.rpartition(":")
            networks.append(SlowNetwork((host.strip("[]"), int(port))))
            options["address"] = f"{scheme}://{networks[0].address}"
        return options

    monkeypatch.setattr(Workers, "connection_options", connection_options)
    try:
        with cluster(None, launcher=_FarLauncher(2, {}), num_devices=1) as client:  # type: ignore[arg-type]
            of_all, alone = sum_over(client, client.devices), sum_over(client, client.devices[:1])
            assert run(of_all) == [2048.0] * 2
            (kept,) = put(client, client.devices[1:])
            victim = pids(client)[1]
            networks[0].stall()
            stuck = start(of_all)  # the other worker waits for the one that does not get the program
            message = error_of(lambda: first([kept]))
            assert f"worker 1 on local1 (pid {victim})" in message
            assert f"no sign of life for {HEARTBEAT:g} s" in message
            assert f"process 1 (pid {victim} on " in error_of(lambda: first(stuck[:1]))
            assert run(alone) == [0.0]
            await_end(victim)
    finally:
        for network in networks:
            network.close()


def keep_python(pid: int, seconds: int) -> None:
    """Keep Python's lock in the worker that is this process, as long calls of some libraries do."""
    if os.getpid() == pid:
        ctypes.PyDLL(None).sleep(seconds)


def test_python_that_stands_still_is_a_loss_only_after_a_while() -> None:
    function, errors = "test_lost_workers:keep_python", queue.SimpleQueue[str]()
    with cluster(2, num_devices=1) as client:
        of_all, alone = sum_over(client, client.devices), sum_over(client, client.devices[:1])
        victim = pids(client)[1]
        client.call_on_hosts(function, victim, math.ceil(1.5 * HEARTBEAT))
        assert not client.lost_members
        assert run(of_all) == [2048.0] * 2

        call = threading.Thread(
            target=lambda: errors.put(error_of(lambda: client.call_on_hosts(function, victim, 1000)))
        )
        call.start()
        message = errors.get(timeout=SECONDS)
        assert f"worker 1 on local1 (pid {victim})" in message
        assert "no sign of life" in message
        await_end(victim)
        assert run(alone) == [0.0]
