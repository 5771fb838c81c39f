"""Bad luck, each in a process of its own: threads, many clients, ends with work in flight, forks, leaks, and no jax."""

from __future__ import annotations

import importlib.util
import itertools
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from pjrt.devices.xla import shutdown

Script = Callable[..., str]

ADD = "func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }"

IN_FLIGHT = """
client = pjrt.client("cpu", num_devices=2)
power = client.compile(POWER)
eye = np.eye(512, dtype=np.float32)
def go(steps=60):
    return power(eye, np.int64(steps))[0]
"""

# Work that is in flight for as long as the script wants.
HELD = """
client = pjrt.client("cpu", num_devices=2)
hold = Holder(client)
eye = np.eye(512, dtype=np.float32)
def later(call):
    timer = threading.Timer(0.2, call)
    timer.daemon = True
    timer.start()
"""


@pytest.mark.full
def test_two_threads_share_a_client(run_script: Script) -> None:
    said = run_script(
        IN_FLIGHT
        + """
import threading
add = client.compile(ADD)
in_place = client.compile(ADD.replace("%x: tensor<4xf32>", "%x: tensor<4xf32> {tf.aliasing_output = 0 : i32}"))
errors = []
def work(seed):
    try:
        for number in range(300):
            x = np.full(4, seed * 1000 + number, np.float32)
            (a,) = add(x, x)
            (b,) = in_place(client.buffer_from_host(x), a)
            read = b.to_host()
            other = client.compile(ADD) if number % 100 == 0 else add
            (c,) = other(b, b)
            a.delete()
            assert (read.result() == 3 * x).all() and (np.asarray(c) == 6 * x).all(), (x, read.result())
    except BaseException as error:
        errors.append(repr(error))
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
for t in threads: t.start()
for t in threads: t.join()
print(errors)
"""
    )
    assert said.strip() == "[]"


def test_one_buffer_donated_by_two_threads_goes_to_one(run_script: Script) -> None:
    said = run_script(
        """
import threading
client = pjrt.client("cpu")
in_place = client.compile(ADD.replace("%x: tensor<4xf32>", "%x: tensor<4xf32> {tf.aliasing_output = 0 : i32}"))
y = client.buffer_from_host(np.ones(4, np.float32))
outcomes = []
def donate(x, together):
    together.wait()
    try:
        outcomes.append(float(np.asarray(in_place(x, y)[0])[0]))
    except pjrt.FailedPreconditionError:
        outcomes.append("refused")
for _ in range(100):
    x = client.buffer_from_host(np.ones(4, np.float32))
    together = threading.Barrier(2)
    pair = [threading.Thread(target=donate, args=(x, together)) for _ in range(2)]
    for t in pair: t.start()
    for t in pair: t.join()
print(outcomes.count(2.0), outcomes.count("refused"))
"""
    )
    assert said.split() == ["100", "100"]


@pytest.mark.full
def test_a_hundred_clients(run_script: Script) -> None:
    said = run_script(
        """
import threading
x = np.ones(4, np.float32)
kept = []
for number in range(100):
    client = pjrt.client("cpu", num_devices=2)
    result = client.compile(ADD)(x, x)[0] if number % 10 == 0 else client.buffer_from_host(x)
    kept.append(result)
    if number % 2:
        client.close()
    client = None
threads = len(threading.enumerate())
print(threads, np.asarray(kept[0])[0])
"""
    )
    assert said.split() == ["1", "2.0"]


def test_a_client_closed_with_work_in_flight_waits_for_it(run_script: Script) -> None:
    said = run_script(
        HELD
        + """
a, b = hold(), hold()
ready, read = a.result.ready(), b.result.to_host()
told = []
ready.add_done_callback(lambda f: told.append(f.exception()))
del a
print(ready.done(), read.done())
later(hold.let_all_go)
client.close()
print(ready.result(), read.result()[3, 3], ready.done())
try:
    b.result.to_host()
except pjrt.FailedPreconditionError as error:
    print("closed" in str(error))
"""
    )
    assert said.split() == ["False", "False", "None", "1.0", "True", "True"]


@pytest.mark.full
@pytest.mark.parametrize(
    "end",
    [
        "r = go()",
        "go()",
        "r = go(); f = r.ready(); f.add_done_callback(lambda _: print('late'))",
        "r = go(); out = np.zeros((512, 512), np.float32); f = r.to_host(out)",
        "r = go(); client.close",
        "r = go(); s = r.copy_to(client.devices[1])",
        "r = go(); import sys; sys.exit(0)",
        "p = [go() for _ in range(8)]",
        "alias, said = client.create_alias_buffer(pjrt.ShapeSpec((4,), pjrt.ElementType.F32)); r = alias.ready()",
        "b = client.buffer_from_host(eye, semantics=pjrt.HostBufferSemantics.IMMUTABLE_ZERO_COPY,"
        " on_done_with_host_buffer=lambda: None); r = power(b, np.int64(60))",
    ],
)
def test_the_interpreter_ends_with_work_in_flight(run_script: Script, end: str) -> None:
    assert run_script(IN_FLIGHT + "print('begin', flush=True)\n" + end).split()[0] == "begin"


AT_WORK = """
client = pjrt.client("cpu", num_devices=2)
x = np.ones(4, np.float32)
here, there = (client.buffer_from_host(x, device=device) for device in client.devices)
add = client.compile(ADD)
both = client.compile(ADD, pjrt.CompileOptions(num_replicas=2))
futures = [add(here, here)[0].ready() for _ in range(100)]
works = [
    lambda: client.compile(ADD),
    lambda: np.asarray(add(here, here)[0]),
    lambda: add(x, x)[0].ready().result(),
    lambda: client.buffer_from_host(x).to_host().result(),
    lambda: add(here, here)[0].ready().add_done_callback(lambda _: None),
    lambda: np.asarray(both.execute([[here, here], [there, there]])[1][0]),
    lambda: add(here, here)[0].copy_to(client.devices[1]).copy_raw_to_host(bytearray(16)).result(),
    lambda: (add.memory_stats(), add.cost_analysis(), add.serialize()),
    lambda: [future.result() for future in futures],
    lambda: np.from_dlpack(add(here, here)[0]),
    lambda: pjrt.client("cpu").close(),
]
begun = threading.Barrier(len(works) + 1)
def repeat(work):
    work()
    begun.wait()
    while True:
        work()
for work in works:
    threading.Thread(target=repeat, args=(work,), daemon=True).start()
begun.wait()
"""


@pytest.mark.full
def test_the_interpreter_ends_with_daemon_threads_at_work(run_script: Script) -> None:
    assert run_script(AT_WORK + "print('end', flush=True)").split() == ["end"]


@pytest.mark.parametrize(("is_busy", "looks"), [(True, 101), (False, 6)])
def test_only_a_busy_machine_makes_the_end_wait_longer(
    monkeypatch: pytest.MonkeyPatch, is_busy: bool, looks: int
) -> None:
    """A thread that has not gone on may sleep for ever in code of others, or may be put off inside XLA."""
    monkeypatch.setattr("pjrt.system.processes.Starvation", lambda: SimpleNamespace(look=lambda: is_busy))
    monkeypatch.setattr(shutdown, "_LOOK_SECONDS", shutdown._POLL_SECONDS)
    monkeypatch.setattr(shutdown, "_UNWINDING_SECONDS", 4.5 * shutdown._POLL_SECONDS)
    count = itertools.count(1)
    shutdown._wait_while(lambda: next(count) <= 100)
    assert next(count) - 1 == looks


@pytest.mark.full
def test_the_thread_that_ends_the_interpreter_may_still_use_the_device(run_script: Script) -> None:
    said = run_script(
        """
import atexit
@atexit.register  # before the first client is made, so that it is called after the end of the device
def late():
    print(np.asarray(add(x, x)[0])[0], client.compile(ADD)(x, x)[0].to_host().result()[0], client.is_closed)
    client.close()
    try:
        add(x, x)
    except pjrt.FailedPreconditionError as error:
        print("closed" in str(error))
"""
        + AT_WORK
    )
    assert said.split() == ["2.0", "2.0", "False", "True"]


FORK = """
import os, signal, sys
def child(work):
    pid = os.fork()
    if pid == 0:
        signal.alarm(100)
        try:
            work()
        finally:
            sys.stdout.flush()
        sys.exit(0)
    _, status = os.waitpid(pid, 0)
    print("status", status, flush=True)
def refused(use):
    try:
        use()
        print("not refused", use, flush=True)
    except pjrt.FailedPreconditionError as error:
        assert 'forked' in str(error), error
"""


def test_a_forked_child_is_told(run_script: Script) -> None:
    said = run_script(
        HELD
        + FORK
        + """
x = client.buffer_from_host(np.ones(4, np.float32))
add = client.compile(ADD)
add(x, x)[0].ready().result()
held = hold()
assert held.entered.wait(60)
ready, slow, told = held.result.ready(), held.result.ready(), held.result.to_host()
told.add_done_callback(lambda _: None)
def work():
    refused(lambda: add(x, x))
    refused(lambda: add.execute([[x, x]]))
    refused(lambda: client.buffer_from_host(eye))
    refused(lambda: client.compile(ADD))
    refused(lambda: x.to_host())
    refused(lambda: ready.result())
    refused(lambda: told.result(timeout=120))
    refused(lambda: add.cost_analysis())
    late = threading.Event()
    slow.add_done_callback(lambda _: late.set())
    print("told", late.wait(60))
    client.close()
child(work)
held.let_go()
print(np.asarray(held.result)[1, 1], np.asarray(add(x, x)[0])[0])
"""
    )
    assert said.split() == ["told", "True", "status", "0", "1.0", "2.0"]


@pytest.mark.full
def test_a_forked_child_cannot_use_what_its_parent_used(run_script: Script) -> None:
    """XLA's own locks and threads do not survive a fork: compiling in the child would end it."""
    said = run_script(
        IN_FLIGHT
        + FORK
        + """
go(1).ready().result()
client.close()
child(lambda: refused(lambda: pjrt.client("cpu")))
"""
    )
    assert said.split() == ["status", "0"]


def test_a_child_forked_before_the_first_client_has_one(run_script: Script) -> None:
    said = run_script(
        FORK
        + """
def work():
    with pjrt.client("cpu") as own:
        x = np.ones(4, np.float32)
        print(np.asarray(own.compile(ADD)(x, x)[0])[0])
child(work)
with pjrt.client("cpu") as own:
    print(len(own.devices))
"""
    )
    assert said.split() == ["2.0", "status", "0", "1"]


@pytest.mark.parametrize("drop", ["", "del held.result"])
def test_the_interpreter_ends_with_a_function_of_the_host_under_way(run_script: Script, drop: str) -> None:
    said = run_script(
        HELD
        + f"""
held = hold()
assert held.entered.wait(60)
{drop}
later(held.let_go)
print("end", flush=True)
"""
    )
    assert said.split() == ["end"]


# Of several rounds, the one that added least. A leak adds to each of them; what an allocator or a thread takes once
# does not.
GROWTH = """
import gc
def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096
def least_growth(round, rounds):
    grown = []
    for _ in range(rounds):
        gc.collect(); before = resident()
        round()
        gc.collect(); grown.append(resident() - before)
    return min(grown)
"""


@pytest.mark.full
def test_memory_stays_flat_over_ten_thousand_executions(run_script: Script) -> None:
    said = run_script(
        GROWTH
        + """
client = pjrt.client("cpu", num_devices=2)
add = client.compile(ADD)
in_place = client.compile(ADD.replace("%x: tensor<4xf32>", "%x: tensor<4xf32> {tf.aliasing_output = 0 : i32}"))
x = client.buffer_from_host(np.ones(4, np.float32))
lent = np.zeros(4, np.float32)
def step():
    (a,) = add(x, x)
    (b,) = in_place(a, x)
    futures = []
    ((c,),) = add.execute([[b, x]], returned_futures=futures)
    futures[0].add_done_callback(lambda _: None)
    np.asarray(c); c.ready().result(); c.to_host().result()
    client.buffer_from_host(lent, semantics=pjrt.HostBufferSemantics.IMMUTABLE_ZERO_COPY,
                            on_done_with_host_buffer=lambda: None)
    c.copy_to(client.devices[1]).ready().result()
def steps():
    for _ in range(850): step()
steps()
print(least_growth(steps, 4))
"""
    )
    assert int(said) < 1 << 20, f"at least {int(said)} bytes more with every 2,550 executions"


@pytest.mark.full
def test_memory_stays_flat_over_executions_on_many_devices_and_compilations(run_script: Script) -> None:
    said = run_script(
        GROWTH
        + """
client = pjrt.client("cpu", num_devices=2)
both = client.compile(ADD, pjrt.CompileOptions(num_replicas=2))
rows = [[client.buffer_from_host(np.ones(4, np.float32), device=d)] * 2 for d in client.devices]
def step():
    out = both.execute(rows)
    out = both.execute([[r[0], r[0]] for r in out])
    np.asarray(out[1][0])
    a, = both.execute_sharded(rows[1], client.devices[1])
    b, = both.execute_sharded(rows[0], client.devices[0])
    np.asarray(a)
def compile_once(number):
    client.compile(ADD.replace("4xf32", f"{number % 7 + 1}xf32"))
def steps():
    for n in range(200): step()
    for n in range(14): compile_once(n)
steps()
print(least_growth(steps, 4))
"""
    )
    assert int(said) < 4 << 20, f"at least {int(said)} bytes more with every round"


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="shows that an installed jax is left alone")
def test_an_installed_jax_is_not_imported(run_script: Script) -> None:
    said = run_script(
        """
import sys
client = pjrt.client("cpu", num_devices=2)
x = np.ones(4, np.float32)
result, = client.compile(ADD)(x, x)
np.asarray(result); result.copy_to(client.devices[1]).ready().result()
client.deserialize(client.compile(ADD).serialize())(x, x)
both = client.compile(ADD, pjrt.CompileOptions(num_replicas=2))
rows = [[client.buffer_from_host(x, device=d)] * 2 for d in client.devices]
for _ in range(2):
    rows = [[out, out] for (out,) in both.execute(rows)]
rows[1][0].ready().result()
np.from_dlpack(result)
client.buffer_from_dlpack(result)
print([name for name in sys.modules if name.partition(".")[0] == "jax"])
import os
os.environ["JAX_PLATFORMS"] = "cpu"
import jax
print(jax.numpy.ones(3).sum())
"""
    )
    assert said.split() == ["[]", "3.0"]


LOOKS: dict[str, str] = {
    "the address of what was put": "client.buffer_from_host(x).unsafe_pointer()",
    "a reference from outside": "client.buffer_from_host(x).external_reference().pointer",
    "raw bytes": "client.buffer_from_host(x).copy_raw_to_host(np.empty(64, np.float32)).result()",
    "a type that has no buffer protocol": "np.asarray(client.buffer_from_host(x.astype('bfloat16')))",
    "the parts of a result": "[np.asarray(row[0])[0] for row in both.execute([[b, b] for b in here])]",
}


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="shows that an installed jax is not damaged")
@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_a_jax_that_is_imported_later_is_not_damaged(run_script: Script, look: str) -> None:
    # jaxlib itself imports jax to take an array of several devices apart.
    apart = "both.execute" in look
    said = run_script(
        f"""
import os, sys
import ml_dtypes
finders = list(sys.meta_path)
client = pjrt.client("cpu", num_devices=2)
x = np.arange(64, dtype=np.float32)
both = client.compile(ADD.replace("4x", "64x"), pjrt.CompileOptions(num_replicas=2))
here = [client.buffer_from_host(x, device=device) for device in client.devices]
{look}
assert {apart} or "jax" not in sys.modules, sys.modules
assert sys.meta_path == finders
os.environ["JAX_PLATFORMS"] = "cpu"
import jax
for size in (64, 8):
    array = jax.dlpack.from_dlpack(x[:size].copy())
    assert type(array.aval) is jax.core.ShapedArray, array.aval
    print(float((array + 1).sum()))
"""
    )
    assert said.split() == ["2080.0", "36.0"]


@pytest.mark.full
@pytest.mark.parametrize("first", ["", "pjrt.stablehlo.inspect(pjrt.Program.of(ADD)); "])
def test_nothing_is_said_on_standard_error(first: str) -> None:
    code = f"import pjrt, pjrt.stablehlo; ADD = {ADD!r}; {first}pjrt.client('cpu').close()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("function", ["enable", "disable"])
def test_the_first_client_leaves_the_garbage_collector_as_it_was(function: str) -> None:
    script = f"import gc; gc.{function}(); import pjrt; pjrt.client('cpu'); print(gc.isenabled())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == f"{function == 'enable'}\n"
