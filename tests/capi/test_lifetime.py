"""Objects end in any order, at any time, on any thread: no crash, no leak, and clear errors for who comes too late."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from tiny import TinyProgram
from tiny.control import Control
from tiny.everything import X, everything

import pjrt
from pjrt.api.client import Client

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.full
@pytest.mark.parametrize("seed", range(12))
def test_dropping_in_any_order(plugin: pjrt.Plugin, adder: pjrt.Program, tiny_control: Control, seed: int) -> None:
    gc.collect()
    before, violations = tiny_control.live(), tiny_control.violations
    things = everything(plugin, adder)
    names = list(things)
    random.Random(seed).shuffle(names)
    for name in names:
        del things[name]
        if seed % 3 == 0:
            gc.collect()
    assert tiny_control.left_over(before) == {}
    assert tiny_control.violations == violations, tiny_control.last_violation


def test_dropping_in_one_garbage_cycle(plugin: pjrt.Plugin, adder: pjrt.Program, tiny_control: Control) -> None:
    gc.collect()
    before, violations = tiny_control.live(), tiny_control.violations
    for _ in range(5):
        things = everything(plugin, adder)
        things["itself"] = things
        things["callback"] = things["ready"].add_done_callback(lambda _, things=things: things)  # type: ignore[attr-defined, misc]
        del things
        assert tiny_control.left_over(before) == {}
    assert tiny_control.violations == violations, tiny_control.last_violation


@pytest.mark.parametrize("first", ["buffer", "loaded", "client", "manager", "nothing"])
def test_closing_a_client_ends_everything_it_made(
    plugin: pjrt.Plugin, adder: pjrt.Program, tiny_control: Control, first: str
) -> None:
    gc.collect()
    before, violations = tiny_control.live(), tiny_control.violations
    things = everything(plugin, adder)
    client = things["client"]
    assert isinstance(client, Client)
    del (
        things["future"],
        things["ready"],
        things["abi"],
        things[first if first in ("buffer", "loaded", "manager") else "raw"],
    )
    client.close()
    client.close()
    assert tiny_control.left_over(before) == {}
    assert tiny_control.violations == violations, tiny_control.last_violation
    assert client.is_closed
    assert "closed" in repr(client)
    for thing in things.values():
        repr(thing)


def test_using_what_belongs_to_a_closed_client(plugin: pjrt.Plugin, adder: pjrt.Program) -> None:
    client = plugin.client()
    loaded, buffer, device = client.compile(adder), client.buffer_from_host(X), client.devices[0]
    context = client.create_execute_context()
    client.close()
    for use in (
        lambda: client.buffer_from_host(X),
        lambda: client.compile(adder),
        lambda: client.topology.attributes,
        lambda: loaded.execute_sharded([buffer, buffer], device),
        lambda: loaded(X, X),
        lambda: loaded.executable.name,
        lambda: buffer.to_host(),
        lambda: buffer.copy_to(device),
        lambda: device.memory_stats(),
        lambda: context.add_user_data(1, 2),
    ):
        with pytest.raises(pjrt.FailedPreconditionError):
            use()
    assert buffer.is_deleted
    assert loaded.is_deleted
    buffer.delete()
    loaded.delete()
    context.close()
    assert client.platform_name == "tiny"
    assert device.id == 0


def test_futures_outlive_their_client(plugin: pjrt.Plugin) -> None:
    client = plugin.client()
    future = client.buffer_from_host(X).to_host()
    client.close()
    np.testing.assert_array_equal(future.result(60), X)


def work_until_closed(client: Client, adder: pjrt.Program, started: threading.Barrier, errors: list[Exception]) -> None:
    """Uses a client in every way until somebody closes it."""
    loaded, device = client.compile(adder), client.devices[0]
    started.wait(60)
    try:
        while True:
            (out,) = loaded(X, X)
            out.to_host().result(60)
            out.copy_to(client.devices[1]).ready().result(60)
            device.memory_stats()
    except pjrt.FailedPreconditionError:
        pass
    except Exception as error:
        errors.append(error)


def test_closing_while_other_threads_work(plugin: pjrt.Plugin, adder: pjrt.Program, tiny_control: Control) -> None:
    violations = tiny_control.violations
    for _ in range(5):
        client = plugin.client(num_devices=2)
        errors: list[Exception] = []
        started = threading.Barrier(5)
        threads = [threading.Thread(target=work_until_closed, args=(client, adder, started, errors)) for _ in range(4)]
        for thread in threads:
            thread.start()
        started.wait(60)
        client.buffer_from_host(X).to_host().result(60)
        client.close()
        for thread in threads:
            thread.join(60)
        assert not errors
    gc.collect()
    assert tiny_control.violations == violations, tiny_control.last_violation


def test_dropping_on_many_threads(plugin: pjrt.Plugin, adder: pjrt.Program, tiny_control: Control) -> None:
    gc.collect()
    before, violations = tiny_control.live(), tiny_control.violations

    def work(seed: int) -> None:
        things = everything(plugin, adder)
        names = list(things)
        random.Random(seed).shuffle(names)
        for name in names:
            del things[name]

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert tiny_control.left_over(before) == {}
    assert tiny_control.violations == violations, tiny_control.last_violation


EXITS = {
    "everything alive": "",
    "a pending execution": "kept = [slow(X) for _ in range(10)]",
    "a watched future": "f = slow(X)[0].to_host(); f.add_done_callback(lambda _: print('late', flush=True))",
    "a thread that waits": "f = slow(X)[0].to_host(); threading.Thread(target=f.result, daemon=True).start()",
    "a cycle of everything": "things['itself'] = things; things['f'] = slow(X)[0].ready(); del things",
    "a borrowed array": "b = client.buffer_from_host(np.ones(1000), semantics=pjrt.HostBufferSemantics(2),"
    " on_done_with_host_buffer=lambda: print('done', flush=True))",
    "a callback at exit": "import atexit; atexit.register(lambda: print(np.asarray(slow(X)[0]).shape, flush=True))",
    "an exception": "raise SystemExit(0)",
    "threads that execute": "for _ in range(4): threading.Thread(target=forever, daemon=True).start()",
    "a sending program": "keep = sender.execute_sharded([client.buffer_from_host(X)], client.devices[0],"
    " pjrt.ExecuteOptions(send_callbacks=[[pjrt.SendCallback(7, lambda *a: None)]]))",
}

SCRIPT = """
import sys, threading
import numpy as np, pjrt
sys.path.insert(0, {tests!r} + "/plugins")
from tiny import TinyProgram
from tiny.everything import X, everything
def compiled(client, *statements):
    program = TinyProgram("p")
    x = program.parameter("f32[4]")
    for statement in statements:
        program.do(*statement, *([x] if statement[0] == "send" else []))
    return client.compile(pjrt.Program(program.result(program.let("neg", x)).code, format="tiny"))
plugin = pjrt.load_plugin({library!r})
adder = TinyProgram("adder")
x, y = adder.parameter("f32[4]"), adder.parameter("f32[4]")
things = everything(plugin, pjrt.Program(adder.result(adder.let("add", x, y)).code, format="tiny"))
client = plugin.client(num_devices=2)
slow, sender = compiled(client, ("sleep", 30)), compiled(client, ("send", 7))
def forever():
    try:
        while True:
            np.asarray(slow(X)[0])
    except pjrt.FailedPreconditionError:
        pass  # the client was closed at exit
{body}
print("end of script", flush=True)
"""


@pytest.mark.full
@pytest.mark.parametrize("how", EXITS)
def test_the_process_ends_well(tiny_library: Path, how: str) -> None:
    script = SCRIPT.format(tests=str(TESTS), library=str(tiny_library), body=EXITS[how])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    assert done.stderr == ""
    if how != "an exception":
        assert "end of script" in done.stdout


@pytest.mark.full
def test_an_exit_in_the_midst_of_a_call_that_does_not_return(tiny_library: Path) -> None:
    """A client that a daemon thread is inside of is left alone: the process does not wait for it."""
    body = (
        "sys.path.insert(0, '')\nfrom tiny.control import Control\ncontrol = Control(plugin.path)\n"
        "control._library.tiny_plugin_hold(True)\nf = slow(X)[0].ready()\n"
        "threading.Thread(target=lambda: f.result(), daemon=True).start()"
    )
    script = (
        SCRIPT.format(tests=str(TESTS), library=str(tiny_library), body=body)
        + "\ncontrol._library.tiny_plugin_hold(False)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)


def test_a_program_of_two_devices_runs_on_both(client: Client) -> None:
    program = TinyProgram("summing")
    x = program.parameter("f32[4]")
    code = program.result(program.let("all_reduce", x)).code
    options = pjrt.CompileOptions(num_replicas=2)
    executable = client.compile(pjrt.Program(code, format="tiny"), options)
    futures: list[pjrt.Future[None]] = []
    arguments = [[client.buffer_from_host(X, device=d)] for d in executable.addressable_devices]
    rows = executable.execute(arguments, returned_futures=futures)
    assert [np.asarray(row[0]).tolist() for row in rows] == [(X + X).tolist()] * 2
    assert [future.result(60) for future in futures] == [None, None]
    with pytest.raises(pjrt.InvalidArgumentError, match="2 devices"):
        executable.execute(arguments[:1])
    with pytest.raises(pjrt.InvalidArgumentError, match="same number"):
        executable.execute([arguments[0], []])
    with pytest.raises(pjrt.InvalidArgumentError, match="argument 0 of device 0 must be a buffer"):
        executable.execute_sharded([X], client.devices[0])  # type: ignore[list-item]
