"""Launches: collectives by rendezvous, failures that nobody waits behind, order among launches."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import toys

import pjrt
from pjrt.host import HostClient, RunContext
from pjrt.host.launch import Launch


def with_context(run: Any, num_devices: int, **options: Any) -> HostClient:
    return toys.client(run, num_devices=num_devices, facts={"takes_context": True}, **options)


def rows(client: HostClient, *values: float) -> list[list[pjrt.Buffer]]:
    """One argument a device."""
    return [
        [client.buffer_from_host(toys.floats(v, v, v, v), device=device)]
        for v, device in zip(values, client.devices, strict=False)
    ]


def test_all_devices_of_a_launch_meet() -> None:
    with toys.collective(4) as client:
        exe = client.compile("program", toys.replicas(4))
        for _ in range(20):
            outs = exe.execute(rows(client, 1, 2, 3, 4))
            assert [float(np.asarray(out)[0]) for (out,) in outs] == [10] * 4


def test_devices_that_are_run_one_by_one_are_one_launch() -> None:
    run_ids: dict[int, list[int]] = {0: [], 1: []}

    def run(context: RunContext, x: np.ndarray) -> np.ndarray:
        run_ids[context.device.id].append(context.run_id)
        return np.sum(context.rendezvous("all_reduce", x), axis=0, dtype=x.dtype)

    with with_context(run, 2) as client:
        exe = client.compile("program", toys.replicas(2))
        outs = []
        for n in range(3):
            for row, device in zip(rows(client, n, 10), client.devices, strict=True):
                outs += exe.execute_sharded(row, device)
        assert [float(np.asarray(out)[0]) for out in outs] == [10, 10, 11, 11, 12, 12]
    assert run_ids[0] == run_ids[1]
    assert len(set(run_ids[0])) == 3


def test_launches_that_lack_devices_for_ever_do_not_pile_up() -> None:
    with toys.negate(num_devices=2) as client:
        exe = client.compile("program", toys.replicas(2))
        (arguments, _) = rows(client, 1, 2)
        for _ in range(1100):
            (out,) = exe.execute_sharded(arguments, client.devices[0])
        out.ready().result(toys.TIMEOUT)
        assert len(exe._launches) <= 1024


def test_shares_from_many_threads() -> None:
    with toys.collective(3) as client:
        exe = client.compile("program", toys.replicas(3))
        found: dict[int, list[float]] = {}

        def drive(place: int) -> None:
            device = client.devices[place]
            x = client.buffer_from_host(toys.floats(place, 0, 0, 0), device=device)
            found[place] = [float(np.asarray(exe.execute_sharded([x], device)[0])[0]) for _ in range(20)]

        threads = [threading.Thread(target=drive, args=(place,)) for place in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(toys.TIMEOUT)
        assert found == {place: [3.0] * 20 for place in range(3)}


def test_what_a_context_says() -> None:
    seen: dict[int, tuple[Any, ...]] = {}
    run_ids: list[int] = []

    def run(context: RunContext, x: np.ndarray) -> np.ndarray:
        facts = (context.replica_id, context.partition_id, context.logical_id, context.launch_id)
        seen[context.device.id] = facts
        run_ids.append(context.run_id)
        assert context.device_assignment.device_ids == ((3, 2), (1, 0))
        return x

    with with_context(run, 4) as client:
        options = pjrt.CompileOptions(
            num_replicas=2, num_partitions=2, device_assignment=pjrt.DeviceAssignment(((3, 2), (1, 0)))
        )
        exe = client.compile("program", options)
        args = [[client.buffer_from_host(toys.floats(), device=d)] for d in exe.addressable_devices]
        for _ in range(2):
            for (out,) in exe.execute(args, pjrt.ExecuteOptions(launch_id=42)):
                out.ready().result(toys.TIMEOUT)
    assert seen == {3: (0, 0, (0, 0), 42), 2: (0, 1, (0, 1), 42), 1: (1, 0, (1, 0), 42), 0: (1, 1, (1, 1), 42)}
    assert len(set(run_ids)) == 2
    assert sorted(run_ids).count(run_ids[0]) == 4


def test_groups_meet_apart_and_keys_can_be_used_again() -> None:
    def run(context: RunContext, x: np.ndarray) -> np.ndarray:
        group = [(r, 0) for r in range(4) if r % 2 == context.replica_id % 2]
        for _ in range(3):
            x = np.sum(context.rendezvous("sum", x, participants=group), axis=0, dtype=x.dtype)
        return x

    with with_context(run, 4) as client:
        outs = client.compile("program", toys.replicas(4)).execute(rows(client, 1, 10, 2, 20))
        assert [float(np.asarray(out)[0]) for (out,) in outs] == [12, 120, 12, 120]


def test_a_collective_that_cannot_complete_is_an_error() -> None:
    with toys.collective(2, collective_timeout=0.05) as client:
        exe = client.compile("program", toys.replicas(2))
        (out,) = exe.execute_sharded(rows(client, 1)[0], client.devices[0])
        with pytest.raises(pjrt.DeadlineExceededError, match="1 of 2 participants came"):
            np.asarray(out)


def test_a_share_that_fails_fails_the_others_at_once() -> None:
    def run(context: RunContext, x: np.ndarray) -> np.ndarray:
        if context.replica_id == 1:
            raise ValueError("out of paper")
        context.rendezvous("meet", x)
        return x

    with with_context(run, 3, collective_timeout=1000) as client:
        outs = client.compile("program", toys.replicas(3)).execute(rows(client, 1, 2, 3))
        errors = [out.ready().exception(toys.TIMEOUT) for (out,) in outs]
        assert [type(error) for error in errors] == [pjrt.AbortedError, pjrt.InvalidArgumentError, pjrt.AbortedError]
        assert "out of paper" in str(errors[0])


def test_a_share_whose_argument_failed_fails_the_others_at_once() -> None:
    with toys.collective(2, collective_timeout=1000) as client:
        bad = client.create_error_buffer(
            pjrt.DataLossError("gone"), toys.spec("f32[4]"), memory_space=client.devices[1].default_memory_space
        )
        outs = client.compile("program", toys.replicas(2)).execute([rows(client, 1)[0], [bad]])
        assert isinstance(outs[0][0].ready().exception(toys.TIMEOUT), pjrt.AbortedError)
        assert isinstance(outs[1][0].ready().exception(toys.TIMEOUT), pjrt.DataLossError)


def test_poison_on_one_device_ends_the_wait_of_the_others() -> None:
    def run(context: RunContext, x: np.ndarray) -> np.ndarray:
        if context.replica_id == 0:
            gate.entered.release()
            context.rendezvous("never", x)
        else:
            gate(x)
        return x

    gate = toys.Gate()
    client = with_context(run, 2, collective_timeout=1000)
    outs = client.compile("program", toys.replicas(2)).execute(rows(client, 1, 2), pjrt.ExecuteOptions(launch_id=3))
    gate.wait_entered()
    gate.wait_entered()
    assert client.devices[1].poison_execution(3, pjrt.UnavailableError("unplugged"))
    with pytest.raises(pjrt.AbortedError, match="unplugged"):
        outs[0][0].ready().result(toys.TIMEOUT)
    with pytest.raises(pjrt.UnavailableError, match="unplugged"):
        outs[1][0].ready().result(toys.TIMEOUT)
    gate.open()
    client.close()


def test_launches_from_two_threads_do_not_wait_for_each_other_in_a_circle() -> None:
    with toys.collective(2, collective_timeout=toys.TIMEOUT) as client:
        executables = [client.compile("a", toys.replicas(2)), client.compile("b", toys.replicas(2))]
        arguments = rows(client, 1, 2)
        failures: list[BaseException] = []

        def drive(exe: pjrt.LoadedExecutable) -> None:
            try:
                for _ in range(50):
                    for (out,) in exe.execute(arguments):
                        assert float(np.asarray(out)[0]) == 3
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=drive, args=(exe,)) for exe in executables]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * toys.TIMEOUT)
        assert not failures


def test_posts_are_taken_in_order_without_waiting() -> None:
    def run(context: RunContext, x: np.ndarray) -> np.ndarray:
        other = 1 - context.replica_id
        context.post(("to", other), x)
        context.post(("to", other), x + 1)
        first, second = (context.take(("to", context.replica_id)) for _ in range(2))
        return first * 10 + second

    with with_context(run, 2) as client:
        outs = client.compile("program", toys.replicas(2)).execute(rows(client, 1, 2))
        assert [float(np.asarray(out)[0]) for (out,) in outs] == [23, 12]


def test_taking_what_nobody_posts_is_an_error() -> None:
    def run(context: RunContext, x: np.ndarray) -> np.ndarray:
        context.take("nothing", timeout=0.01)
        return x

    with with_context(run, 1) as client:
        with pytest.raises(pjrt.DeadlineExceededError, match="'nothing'"):
            np.asarray(client.compile("program")(toys.floats())[0])


def test_a_rendezvous_refuses_strangers_and_those_who_come_twice() -> None:
    launch = Launch()
    with pytest.raises(pjrt.InvalidArgumentError, match="not one of the participants"):
        launch.rendezvous("k", 3, (1, 2), None, 1)
    with pytest.raises(pjrt.DeadlineExceededError):
        launch.rendezvous("k", 1, (1, 2), None, 0)
    with pytest.raises(pjrt.InvalidArgumentError, match="twice"):
        launch.rendezvous("k", 1, (1, 2), None, 0)
    assert Launch().run_id != launch.run_id
