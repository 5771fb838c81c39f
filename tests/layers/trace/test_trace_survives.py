"""Traces of processes that die, fork, or use many threads: what was recorded is there."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from traced import run_traced


@pytest.mark.parametrize(
    ("death", "code"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("import ctypes; ctypes.string_at(0)", -signal.SIGSEGV),
        ("os._exit(3)", 3),
    ],
)
def test_a_process_that_dies(death: str, code: int, tiny_library: Path, tmp_path: Path) -> None:
    run = run_traced(f"client.compile(program('last'))\n{death}\n", tiny_library, tmp_path)
    assert run.returncode == code, run.output
    names = [call.function.name for call in run.trace.calls]
    assert "PJRT_Client_Create" in names
    assert "PJRT_Client_Compile" in names
    assert not run.trace.finished
    assert not run.trace.problems


def test_a_call_that_never_returns_is_there_with_its_arguments(tiny_library: Path, tmp_path: Path) -> None:
    """The process dies inside of a call: in a callback of the plugin."""
    code = """
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

class Store(pjrt.KeyValueStore):
    put = get = try_get = die

plugin.client(num_devices=1, kv_exercise=True, key_value_store=Store())
"""
    run = run_traced(code, tiny_library, tmp_path)
    assert run.returncode == -signal.SIGKILL, run.output
    open_calls = [call for call in run.trace.calls if call.end is None]
    assert [call.function.name for call in open_calls] == ["PJRT_Client_Create", "PJRT_KeyValuePutCallback"]
    create, put = open_calls
    assert (put.parent, put.depth) == (create.number, 1)
    assert put.origin is not None
    assert put.origin.name == "PJRT_Client_Create"
    assert b"kv_exercise" in b"".join(value.data for value in create.values)


def test_the_end_of_a_process_is_in_order(tiny_library: Path, tmp_path: Path) -> None:
    run = run_traced("client.close()\n", tiny_library, tmp_path)
    assert run.returncode == 0, run.output
    assert run.trace.finished
    assert run.trace.calls[-1].function.name in ("PJRT_Client_Destroy", "PJRT_Error_Destroy")


def test_many_threads(tiny_library: Path, tmp_path: Path) -> None:
    """Each thread's calls are complete, and in their order."""
    code = """
def work(number):
    for i in range(200):
        client.buffer_from_host(np.full(number + 1, i, np.float32)).delete()

threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    run = run_traced(code, tiny_library, tmp_path, "ring=16m")
    assert run.returncode == 0, run.output
    assert run.trace.overwritten == run.trace.dropped == 0
    sizes: dict[int, list[int]] = {}
    for call in run.trace.calls:
        if call.function.name == "PJRT_Client_BufferFromHostBuffer":
            dims = call.value("dims")
            assert dims is not None
            sizes.setdefault(call.thread.index, []).append(dims.numbers()[0])
    assert sorted(sizes.values()) == [[number + 1] * 200 for number in range(8)]
    for thread in sizes:
        calls = [call for call in run.trace.calls if call.thread.index == thread]
        assert [call.number for call in calls] == list(range(1, len(calls) + 1))


def test_a_forked_process_has_a_trace_of_its_own(tiny_library: Path, tmp_path: Path) -> None:
    code = """
before = client.process_index
child = os.fork()
if child == 0:
    [memory.kind for memory in client.memory_spaces]
    client.devices[0].memory_stats()
    os._exit(0)
os.waitpid(child, 0)
client.buffer_from_host(X).delete()
"""
    run = run_traced(code, tiny_library, tmp_path)
    assert run.returncode == 0, run.output
    parent, child = run.traces
    assert child.process != parent.process
    names = {call.function.name for call in child.calls}
    assert "PJRT_Device_MemoryStats" in names
    assert "PJRT_Client_Create" not in names
    assert "PJRT_Device_MemoryStats" not in {call.function.name for call in parent.calls}
    assert "PJRT_Client_BufferFromHostBuffer" in {call.function.name for call in parent.calls}


@pytest.mark.parametrize("keep", ["first", "last"])
def test_a_full_ring(keep: str, tiny_library: Path, tmp_path: Path) -> None:
    code = "for i in range(8000): client.devices[0].memory_stats()\nclient.compile(program('last'))\n"
    run = run_traced(code, tiny_library, tmp_path, f"keep={keep},ring=256k")
    assert run.returncode == 0, run.output
    names = {call.function.name for call in run.trace.calls}
    assert ("PJRT_Client_Create" in names) == (keep == "first")
    assert ("PJRT_Client_Compile" in names) == (keep == "last")
    assert bool(run.trace.overwritten) == (keep == "last")
    assert run.trace.plugins == [str(tiny_library)]


def test_a_traced_plugin_that_calls_another_traced_plugin(tiny_library: Path, tmp_path: Path) -> None:
    """Even while the layer asks the first one for an error's code: both write to the same file on the same thread."""
    code = """
import pjrt.layers

options = dict(pair.split("=", 1) for pair in os.environ["PJRT_TRACE"].split(","))
outer = pjrt.layers.wrap(plugin, ["trace"], trace={**options, "text": 100}).client(num_devices=1)
broken = outer.compile(program("broken", statements=[("fail", 13, "no luck")]))
for _ in range(30):
    (y,) = broken(outer.buffer_from_host(X))
    try:
        y.ready().result()
    except pjrt.PjrtError:
        pass
outer.close()
"""
    run = run_traced(code, tiny_library, tmp_path, "ready=buffers")
    assert run.returncode == 0, run.output
    assert run.trace.problems == []
    assert len(run.trace.plugins) == 2
    inner = [call for call in run.trace.calls if call.function.name == "PJRT_LoadedExecutable_Execute"]
    assert [call.depth for call in inner] == [0, 1] * 30
