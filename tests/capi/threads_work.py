"""Eight threads at once on one client of the tiny plugin: one kind of work each run, in a subprocess that may crash.

Usage: ``python threads_work.py LIBRARY WORK``.
"""

from __future__ import annotations

import contextlib
import gc
import random
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "plugins"))

from many_threads import THREADS, TIMEOUT, at_once
from tiny import TinyProgram
from tiny.control import Control
from tiny.everything import SPEC, X, everything

import pjrt


def adder() -> pjrt.Program:
    """Return a program that adds two arrays of four floats."""
    program = TinyProgram("adder")
    x, y = program.parameter("f32[4]"), program.parameter("f32[4]")
    return pjrt.Program(program.result(program.let("add", x, y)).code, format="tiny")


def execute(plugin: pjrt.Plugin, times: int = 200) -> None:
    """Execute one program with shared arguments and with results of another thread."""
    client = plugin.client(num_devices=2)
    exe, x = client.compile(adder()), client.buffer_from_host(X)
    results: list[Any] = [x] * THREADS

    def work(number: int) -> None:
        for _ in range(times):
            neighbour = results[(number + 1) % THREADS]
            (results[number],) = exe(x, neighbour if number % 2 else x)

    at_once(work)
    assert all((np.asarray(result) % 1 == 0).all() for result in results)
    client.close()


def buffers(plugin: pjrt.Plugin, times: int = 200) -> None:
    """Make, copy, delete and drop buffers."""
    client = plugin.client(num_devices=2)
    shared: list[Any] = [None] * THREADS

    def work(number: int) -> None:
        for turn in range(times):
            buffer = client.buffer_from_host(X + turn)
            shared[number] = buffer
            other = shared[(number + 3) % THREADS]
            if turn % 3 == 0:
                buffer.delete()
            elif turn % 3 == 1:
                assert np.array_equal(np.asarray(buffer.copy_to(client.devices[1])), X + turn)
            if other is not None and turn % 5 == 0:
                shared[(number + 3) % THREADS] = None

    at_once(work)
    shared.clear()
    client.close()


def metadata(plugin: pjrt.Plugin, times: int = 60) -> None:
    """Read what is found out once of objects that no thread has asked before."""
    client = plugin.client(num_devices=2)
    for _ in range(times):
        exe, buffer = client.compile(adder()), client.buffer_from_host(X)
        answers: list[Any] = [None] * THREADS

        def work(number: int, exe: Any = exe, buffer: Any = buffer, answers: list[Any] = answers) -> None:
            answers[number] = (
                buffer.shape, buffer.element_type, buffer.layout, buffer.device, buffer.memory_space,
                buffer.on_device_size, buffer.dynamic_dimensions,
                exe.addressable_devices, exe.executable, exe.name, exe.output_shapes, exe.fingerprint(),
                client.topology.device_descriptions, client.topology.attributes, client.devices[1].attributes,
                plugin.attributes,
            )  # fmt: skip

        at_once(work)
        assert all(each[:5] == answers[0][:5] for each in answers)
        assert all(each[7] == answers[0][7] and each[8] is answers[0][8] for each in answers)
    client.close()


def futures(plugin: pjrt.Plugin, times: int = 40) -> None:
    """Wait for the same futures, and add callbacks to them."""
    control = Control(plugin.path)
    client = plugin.client(num_devices=2)
    buffer = client.buffer_from_host(X)
    for turn in range(times):
        calls: list[int] = []
        with control.held():
            shared = [buffer.to_host() for _ in range(4)]
            arrived = threading.Barrier(THREADS + 1)

            def work(number: int, shared: list[Any] = shared, calls: list[int] = calls, arrived: Any = arrived) -> None:
                for future in shared:
                    future.done()
                    if number % 2:
                        future.add_done_callback(lambda _: calls.append(number))
                arrived.wait(TIMEOUT)
                for future in shared:
                    assert np.array_equal(future.result(TIMEOUT), X)

            workers = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
            for worker in workers:
                worker.start()
            arrived.wait(TIMEOUT)
        for worker in workers:
            worker.join(TIMEOUT)
            assert not worker.is_alive(), f"a thread hangs in turn {turn}"
        assert sorted(calls) == sorted(number for number in range(1, THREADS, 2) for _ in shared)
    client.close()


def closing(plugin: pjrt.Plugin, times: int = 30) -> None:
    """Close a client in two threads while the others use everything of it."""
    program = adder()
    for _ in range(times):
        client = plugin.client(num_devices=2)
        exe, x = client.compile(program), client.buffer_from_host(X)

        def work(number: int, client: Any = client, exe: Any = exe, x: Any = x) -> None:
            try:
                if number < 2:
                    np.asarray(exe(x, x)[0])
                    client.close()
                    return
                while True:
                    (out,) = exe(x, x)
                    out.to_host().result(TIMEOUT)
                    client.create_execute_context().close()
                    reference = out.external_reference()
                    manager = client.create_buffers_for_async_host_to_device([SPEC])
                    manager.retrieve_buffer(0)
                    manager.close()
                    reference.release()
                    out.raw().release()
                    repr(exe.executable)
            except pjrt.FailedPreconditionError:
                pass

        at_once(work)
        assert client.is_closed


def by_hand(plugin: pjrt.Plugin, times: int = 60) -> None:
    """Free an object by hand in some threads while the others call it."""
    client = plugin.client(num_devices=2)
    for _ in range(times):
        context = client.create_execute_context()
        manager = client.create_buffers_for_async_host_to_device([SPEC])
        alias, fulfillment = client.create_alias_buffer(SPEC)
        buffer = client.buffer_from_host(X)
        reference, raw = buffer.external_reference(), buffer.raw()
        fulfilled: list[int] = []

        def work(
            number: int, context: Any = context, manager: Any = manager, fulfillment: Any = fulfillment,
            buffer: Any = buffer, reference: Any = reference, raw: Any = raw, fulfilled: list[int] = fulfilled,
        ) -> None:  # fmt: skip
            for use in (
                lambda: raw.on_device_size, lambda: manager.buffer_size(0), lambda: context.add_user_data(1, 2),
            ):  # fmt: skip
                with contextlib.suppress(pjrt.PjrtError):
                    use()
            try:
                fulfillment.fulfill(buffer)
                fulfilled.append(number)
            except pjrt.FailedPreconditionError:
                pass
            for free in (raw.release, manager.close, context.close, reference.release):
                free()

        at_once(work)
        assert len(fulfilled) == 1
        assert np.array_equal(np.asarray(alias), X)
    client.close()


def dropping(plugin: pjrt.Plugin, times: int = 12) -> None:
    """Drop everything of a client, and collect garbage, while another thread closes it."""
    program = adder()
    for _ in range(times):
        things: list[dict[str, Any]] = [everything(plugin, program) for _ in range(2)]
        clients = [each.pop("client") for each in things]

        def work(number: int, things: list[Any] = things, clients: list[Any] = clients) -> None:
            if number < 2:
                clients[number].close()
                return
            mine = things[number % 2]
            names = sorted(mine)
            random.Random(number).shuffle(names)
            for name in names:
                mine.pop(name, None)
            gc.collect()

        at_once(work)


WORKS = {each.__name__: each for each in (execute, buffers, metadata, futures, closing, by_hand, dropping)}

if __name__ == "__main__":
    sys.setswitchinterval(1e-5)  # with the GIL, threads change places more often
    loaded = pjrt.load_plugin(sys.argv[1])
    control = Control(loaded.path)
    before = control.live()
    WORKS[sys.argv[2]](loaded)
    gc.collect()
    assert control.left_over(before) == {}, control.left_over(before)
    assert not control.violations, control.last_violation
    print("finished")
