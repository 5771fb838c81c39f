"""Devices in Python behind the runtime in C: their process computes, and the host survives whatever becomes of it."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import random_kills
from waiting import wait_until
from worker_programs import SUM_OF_TWO

import pjrt
from pjrt import native
from pjrt.api.client import Client
from pjrt.api.shape_spec import TiledLayout
from pjrt.capi.reports import stated_capabilities
from pjrt.native.facts import ADDED
from pjrt.native.library import make_relocatable

REFERENCE = "pjrt.devices.reference.plugin:ReferencePlugin"
ADD = """
func.func @main(%x: tensor<64x64xf32>, %y: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %0 = stablehlo.add %x, %y : tensor<64x64xf32>
  return %0 : tensor<64x64xf32>
}"""
DONATE = ADD.replace("%x: tensor<64x64xf32>", "%x: tensor<64x64xf32> {tf.aliasing_output = 0 : i32}")
X = np.arange(4096, dtype=np.float32).reshape(64, 64)


def workers() -> set[int]:
    """Return the processes that this one has started, and that run."""
    return {int(pid) for each in Path("/proc/self/task").glob("*/children") for pid in each.read_text().split()}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return native.write_library(
        tmp_path_factory.mktemp("worker") / "reference.so", REFERENCE, driver="worker", name="reference"
    )


def new_client(library: Path, **options: object) -> tuple[Client, int]:
    """Return a client, and the process that computes for it."""
    before = workers()
    client = pjrt.load_plugin(library).client(**options)
    (worker,) = workers() - before
    return client, worker


def compute(client: Client, executable: pjrt.LoadedExecutable, how: str, *arguments: np.ndarray) -> None:
    """Compile or run a program: what was asked for before may still come, later work does not."""
    if how == "compile":
        client.compile(DONATE)
    for _ in range(3):
        np.asarray(executable(*(arguments or (X, X)))[0])


def test_programs_in_another_process(library: Path) -> None:
    """Arguments of the host, results of other programs, donated ones, and what was deleted."""
    client, worker = new_client(library)
    with client:
        add, donate = client.compile(ADD), client.compile(DONATE)
        x = client.buffer_from_host(X)
        expected = X
        for _ in range(5):
            (x,) = add(x, X)
            (x,) = donate(x, X)
            expected = expected + X + X
        np.testing.assert_array_equal(x, expected)
        np.testing.assert_array_equal(x, expected)
        x.delete()
        (again,) = client.deserialize(add.executable.serialize())(X, X)
        np.testing.assert_array_equal(again, X + X)
        with pytest.raises(pjrt.PjrtError, match="no_such_op"):
            client.compile(ADD.replace("stablehlo.add %x, %y :", "stablehlo.no_such_op %x :"))
        portable = client.compile(ADD, pjrt.CompileOptions(compile_portable_executable=True))
        assert portable.device_assignment.device_ids == ((0,),)
        (result,) = portable.execute_portable([again, again], client.devices[0])
        np.testing.assert_array_equal(result, 4 * X)
        assert worker in workers()
        maps = Path("/proc/self/maps").read_text()
        assert "reference.so" in maps
    assert worker not in workers()


@pytest.mark.full
def test_a_library_by_the_command_line(tmp_path: Path) -> None:
    """A device is named as for every other library; it gets its options with their types."""
    written = tmp_path / "reference.so"
    command = [sys.executable, "-m", "pjrt", "export", "reference", "-o", str(written)]
    subprocess.run(command, check=True, timeout=120)
    client, _ = new_client(written, num_devices=2, debug_nans=True)
    with client:
        assert (client.platform_name, len(client.devices)) == ("reference", 2)
        divide = client.compile(ADD.replace("stablehlo.add", "stablehlo.divide"))
        with pytest.raises(pjrt.PjrtError, match="NaN"):
            np.asarray(divide(np.zeros_like(X), np.zeros_like(X))[0])
    with pytest.raises(pjrt.InvalidArgumentError, match="no_such_option"):
        pjrt.load_plugin(written).client(no_such_option=1)


@pytest.mark.full
def test_two_devices_meet(library: Path) -> None:
    client, _ = new_client(library, num_devices=2)
    with client:
        executable = client.compile(SUM_OF_TWO, pjrt.CompileOptions(num_replicas=2))
        values = [np.full(4, n, np.float32) for n in (1, 2)]
        for _ in range(3):
            arguments = [[client.buffer_from_host(v, device=d)] for v, d in zip(values, client.devices, strict=True)]
            for (result,) in executable.execute(arguments):
                np.testing.assert_array_equal(result, np.full(4, 3, np.float32))
        copied = client.buffer_from_host(X).copy_to(client.devices[1])
        (sum_there,) = client.compile(ADD, pjrt.CompileOptions(device_assignment=[[1]]))(copied, copied)
        assert sum_there.device is client.devices[1]
        np.testing.assert_array_equal(sum_there.copy_to(client.devices[0]), X + X)


@pytest.mark.full
def test_raw_bytes_of_results(library: Path) -> None:
    """Some bytes of an array that the worker computed are read, and written, while programs use it."""
    client, _ = new_client(library)
    with client:
        add = client.compile(ADD)
        (result,) = add(X, X)
        raw = result.raw()
        part = np.empty(16, np.float32)
        raw.copy_to_host(part, 64).result()
        np.testing.assert_array_equal(part, (X + X).reshape(-1)[16:32])
        (before,) = add(result, X)
        before.ready().result()
        raw.copy_from_host(np.full(16, 7, np.float32), 64).result()
        expected = (X + X).reshape(-1).copy()
        expected[16:32] = 7
        np.testing.assert_array_equal(add(result, X)[0], expected.reshape(64, 64) + X)
        np.testing.assert_array_equal(before, 3 * X)


def test_some_bytes_of_a_result_that_is_not_there_yet(library: Path) -> None:
    """The thread that hears of the result writes them, and needs the others from the worker first."""
    client, _ = new_client(library)
    with client:
        add = client.compile(ADD)
        spec = pjrt.ShapeSpec((64, 64), np.float32)
        with client.create_buffers_for_async_host_to_device([spec]) as manager:
            (result,) = add(manager.retrieve_buffer(0), X)
            written = result.raw().copy_from_host(np.full(16, 7, np.float32), 64)
            manager.transfer_data(0, X.tobytes(), 0, is_last_transfer=True)
        written.result(timeout=60)
        expected = (X + X).reshape(-1).copy()
        expected[16:32] = 7
        np.testing.assert_array_equal(result, expected.reshape(64, 64))


@pytest.mark.full
@pytest.mark.parametrize("when", ["idle", "computing", "compiling"])
def test_the_worker_is_killed(library: Path, when: str) -> None:
    """Everything that it was to do becomes an error; a new client starts a new one."""
    client, worker = new_client(library)
    with client:
        add = client.compile(ADD)
        (result,) = add(X, X)
        if when == "computing":
            for _ in range(2000):
                (result,) = add(result, X)
        if when == "idle":
            np.testing.assert_array_equal(result, X + X)
            (result,) = add(result, X)
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(pjrt.UnavailableError, match="signal 9 ended it"):
            compute(client, add, "compile" if when == "compiling" else "run")
        with pytest.raises(pjrt.UnavailableError, match="a new client starts a new one"):
            client.compile(ADD)
    client, _ = new_client(library)
    with client:
        np.testing.assert_array_equal(client.compile(ADD)(X, X)[0], X + X)


@pytest.mark.full
def test_a_worker_that_was_stopped_goes_on(library: Path) -> None:
    client, worker = new_client(library)
    with client:
        add = client.compile(ADD)
        one = client.buffer_from_host(np.ones_like(X))
        (result,) = add(one, one)
        os.kill(worker, signal.SIGSTOP)
        for _ in range(12_000):  # more commands than the ring holds
            (result,) = add(result, one)
        os.kill(worker, signal.SIGCONT)
        np.testing.assert_array_equal(result, np.full_like(X, 12_002))
        os.kill(worker, signal.SIGSTOP)
        del add, result
    assert worker not in workers()  # it did not end by itself


@pytest.mark.full
@pytest.mark.parametrize("how", ["counter", "records", "taken"])
def test_what_the_worker_writes_is_not_trusted(tmp_path: Path, how: str) -> None:
    device = Path(__file__).parent / "scribbling_device.py"
    library = native.write_library(
        tmp_path / "scribbling.so", f"{device}:make_client", driver="worker", name="scribbling"
    )
    client, worker = new_client(library, how=how)
    with client:
        add = client.compile("func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }")
        with pytest.raises(pjrt.UnavailableError, match=r"signal 9 ended it|somebody has written into"):
            compute(client, add, "run", np.zeros(4, np.float32))
    assert worker not in workers()


HOST = """
import os, sys, numpy as np, pjrt
client = pjrt.load_plugin(sys.argv[1]).client()
add = client.compile(sys.argv[2])
x = np.ones((64, 64), np.float32)
results = [add(x, x)[0] for _ in range(20)]
if sys.argv[3] == "fork":
    child = os.fork()
    if child == 0:
        try:
            np.asarray(add(x, x)[0])
        except pjrt.FailedPreconditionError as error:
            os._exit(0 if "process that was forked" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_array_equal(add(results[-1], x)[0], 3 * x)
worker = open("/proc/self/task/%d/children" % os.getpid()).read().split()[0]
if sys.argv[3] != "outlived" or os.fork() > 0:
    print(worker, flush=True)
if sys.argv[3] in ("kill", "outlived"):
    sys.stdin.read()
if sys.argv[3] == "exit":
    os._exit(0)
"""


@pytest.mark.full
@pytest.mark.parametrize("end", ["return", "exit", "fork", "kill", "outlived"])
def test_the_end_of_the_host(library: Path, end: str) -> None:
    """The worker ends, too, also where a fork of the host lives on."""
    command = [sys.executable, "-c", HOST, str(library), ADD, end]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout
        worker = os.pidfd_open(int(host.stdout.readline()))
        is_killed = end in ("kill", "outlived")
        if is_killed:
            host.kill()
        assert select.select([worker], [], [], 60)[0]  # readable when the process has ended
    assert host.returncode == (-9 if is_killed else 0)
    os.close(worker)


BLOCKS = """
import pjrt


def make(folder):
    programs = []

    def compile(program, options):
        programs.append(program)
        if len(programs) == 2:
            open(f"{folder}/begun", "w").close()
            open(f"{folder}/compile").read()

        def run(x):
            open(f"{folder}/run").read()
            return x + 1

        return run

    return pjrt.host.HostClient("mychip", compile=compile)
"""
FORKED = """
import os, signal, sys, threading, numpy as np, pjrt
library, folder, program, end = sys.argv[1:]
client = pjrt.load_plugin(library).client(folder=folder)
plus_one = client.compile(program)
(late,) = plus_one(np.zeros(2, np.float32))
compiling = threading.Thread(target=client.compile, args=(program,))
if end != "exit without calls":
    compiling.start()
    open(folder + "/begun").read()
child = os.fork()
if child == 0:
    signal.alarm(60)
    for call in (lambda: client.compile(program), lambda: np.asarray(plus_one(np.ones(2, np.float32))[0])):
        try:
            call()
        except pjrt.FailedPreconditionError as error:
            assert "process that was forked" in str(error)
        else:
            os._exit(1)
    if end == "close":
        client.close()
    sys.exit(0)
status = os.waitpid(child, 0)[1]
if end != "exit without calls":
    open(folder + "/compile", "w").close()
    compiling.join()
open(folder + "/run", "w").close()
assert status == 0, status
assert np.asarray(late).tolist() == [1, 1]
"""


@pytest.mark.full
@pytest.mark.parametrize("end", ["exit", "close", "exit without calls"])
def test_a_fork_while_the_worker_has_work(tmp_path: Path, end: str) -> None:
    """A fork gets its errors, and ends, while threads of its parent wait for the worker."""
    for name in ("begun", "compile", "run"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "mychip.py").write_text(BLOCKS)
    library = native.write_library(tmp_path / "mychip.so", f"{tmp_path / 'mychip.py'}:make", driver="worker")
    command = [sys.executable, "-W", "ignore", "-c", FORKED, str(library), str(tmp_path), PLUS_ONE, end]
    subprocess.run(command, check=True, timeout=120)


@pytest.mark.full
@pytest.mark.parametrize("part", random_kills.PARTS)
def test_random_kills(part: str) -> None:
    """A short run of the job, which prints what goes wrong."""
    assert random_kills.run(part, {"kills": 5, "hosts": 4, "clients": 9}.get(part, 1), 1)


LEAKS = """
import gc, sys, numpy as np, pjrt
from pathlib import Path
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
client = pjrt.load_plugin(sys.argv[1]).client()
add = client.compile(sys.argv[2])
worker = [int(p) for e in Path("/proc/self/task").glob("*/children") for p in e.read_text().split()][0]
x = np.ones((64, 64), np.float32)
def work(count):
    for _ in range(count):
        (y,) = add(x, x)
        (y,) = add(y, x)
        np.asarray(y)
    gc.collect()
    there = int(Path(f"/proc/{worker}/statm").read_text().split()[1]) * 4096
    return np.array([resident(), there])
work(500)
before = work(500)
after = work(3000)
grown = after - before
assert (grown < 8 << 20).all(), grown  # an array that stays each time would be 48 MB
"""


@pytest.mark.full
def test_memory_stays_flat(library: Path) -> None:
    subprocess.run([sys.executable, "-c", LEAKS, str(library), ADD], check=True, timeout=300)


@pytest.mark.parametrize("name", ["reference", pytest.param("cpu", marks=pytest.mark.full)])
def test_devices_say_what_those_of_the_client_say(name: str) -> None:
    with pjrt.client(f"worker:{name}", num_devices=2) as there, pjrt.client(name, num_devices=2) as here:
        assert (there.platform_version, there.process_index) == (here.platform_version, 0)
        assert dict(there.topology.attributes) == {**here.topology.attributes, **stated_capabilities(here, ADDED)}
        for far, near in zip(there.devices, here.devices, strict=True):
            assert (far.id, far.local_hardware_id) == (near.id, near.local_hardware_id)
            assert [space.kind for space in far.memory_spaces] == [space.kind for space in near.memory_spaces]
            described, expected = far.description, near.description
            for fact in ("kind", "process_index", "debug_string", "attributes"):
                assert getattr(described, fact) == getattr(expected, fact)
            assert str(described) == str(expected)
            kinds = [space.kind for space in described.memory_space_descriptions]
            assert kinds == [space.kind for space in expected.memory_space_descriptions]


FACTS = {
    "text": "ä", "nothing": "", "number": -3, "zero": 0, "numbers": (1, -2), "none": (), "real": 0.5, "is": True,
}  # fmt: skip


def test_facts_of_every_type_and_devices_of_another_process(tmp_path: Path) -> None:
    file = tmp_path / "mychip.py"
    file.write_text(f"""
import pjrt

def make():
    return pjrt.host.HostClient(
        "mychip", compile=lambda program, options: lambda x, y: x + y, device_attributes={FACTS!r}, process_index=1,
        process_count=2,
    )
""")
    with pjrt.client(f"worker:{file}:make") as client:
        far, near = client.devices
        assert (client.process_index, far.process_index, near.process_index) == (1, 0, 1)
        assert (list(client.addressable_devices), client.lookup_device(far.id)) == ([near], far)
        assert near.attributes == FACTS
        assert client.default_device_assignment(2, 1).device_ids == ((far.id,), (near.id,))
        with pytest.raises(pjrt.InvalidArgumentError, match="belongs to process 0"):
            client.buffer_from_host(X, device=far)
        (x,) = client.compile(ADD)(X, X)
        np.testing.assert_array_equal(x, X + X)
        assert x.device == near


COLUMNS = """
func.func @main(%x: tensor<2x3xf32> {mhlo.layout_mode = "{0,1}"})
    -> (tensor<2x3xf32> {mhlo.layout_mode = "{0,1}"}, tensor<2x3xf32>) {
  %0 = stablehlo.add %x, %x : tensor<2x3xf32>
  return %0, %0 : tensor<2x3xf32>, tensor<2x3xf32>
}"""


def test_layouts_that_the_caller_chooses(library: Path) -> None:
    """An array has the layout that was asked for; its bytes, which lie in rows, are not shown then."""
    values, columns = np.arange(6, dtype=np.float32).reshape(2, 3), TiledLayout((0, 1))
    with pjrt.load_plugin(library).client() as client:
        x = client.buffer_from_host(values, layout=columns)
        executable = client.compile(COLUMNS)
        assert list(executable.executable.parameter_layouts) == [columns]
        results = executable(x)
        for array, layout, expected in (
            (x, columns, values),
            (results[0], columns, 2 * values),
            (results[1], TiledLayout((1, 0)), 2 * values),
            (x.copy_to(client.addressable_devices[0].default_memory_space), columns, values),
        ):
            assert array.layout == layout
            np.testing.assert_array_equal(array, expected)
        with pytest.raises(pjrt.UnimplementedError, match=r"expected an array in rows.*found the layout \{0,1\}"):
            x.copy_raw_to_host(np.zeros(24, np.uint8)).result()


def test_devices_that_are_not_here(library: Path) -> None:
    """A topology with a name is compiled for; so is one that was saved, in another client's process."""
    plugin = pjrt.load_plugin(library)
    topology = plugin.topology("4")
    assert [each.id for each in topology.device_descriptions] == [0, 1, 2, 3]
    again = plugin.deserialize_topology(topology.serialize())
    assert again.fingerprint() == topology.fingerprint()
    with plugin.client() as client:
        for each in (topology, again):
            loaded = client.deserialize(each.compile(ADD).serialize())
            np.testing.assert_array_equal(loaded(X, X)[0], X + X)
    with pytest.raises(pjrt.InvalidArgumentError, match="a topology of the device 'reference' is named by the number"):
        plugin.topology("square")
    for damaged in (b"", b"x", topology.serialize()[:-1], topology.serialize()[5:]):
        with pytest.raises(pjrt.InvalidArgumentError, match="no serialized topology"):
            plugin.deserialize_topology(damaged)


STORE = """
import pjrt

def make(key_value_store, node_id, num_nodes):
    assert (node_id, num_nodes) == (1, 2)
    if key_value_store is None:
        raise pjrt.FailedPreconditionError("there is no store")
    key_value_store.put("made", b"by 1")
    key_value_store.put("", b"")
    assert key_value_store.get("", 10.0) == b""
    found = [key_value_store.get("begin", 10.0), key_value_store.try_get("made")]
    for ask, error in (
        (lambda: key_value_store.try_get("nowhere"), pjrt.NotFoundError),
        (lambda: key_value_store.get("nowhere", 0.01), pjrt.DeadlineExceededError),
    ):
        try:
            ask()
        except error as raised:
            found.append(raised.message.encode())
    assert found[:2] == [b"now", b"by 1"] and all(b"'nowhere'" in each for each in found[2:]) and len(found) == 4
    return pjrt.host.HostClient("mychip", compile=lambda program, options: lambda x: x, process_count=1)
"""


def test_a_job_has_its_key_value_store(tmp_path: Path) -> None:
    (tmp_path / "mychip.py").write_text(STORE)
    library = native.write_library(tmp_path / "mychip.so", f"{tmp_path / 'mychip.py'}:make", driver="worker")
    plugin = pjrt.load_plugin(library)
    store = pjrt.InMemoryKeyValueStore()
    store.put("begin", b"now")
    with plugin.client(key_value_store=store, node_id=1, num_nodes=2) as client:
        assert store.try_get("made") == b"by 1"
        assert client.platform_name == "mychip"
    with pytest.raises(pjrt.FailedPreconditionError, match="there is no store"):
        plugin.client(node_id=1, num_nodes=2)


@pytest.mark.full
def test_the_host_is_killed_before_it_has_its_devices(tmp_path: Path) -> None:
    """The worker notices it when it gives them."""
    os.mkfifo(tmp_path / "go")
    file = tmp_path / "slow.py"
    file.write_text(f"""
import os, pjrt

def make():
    os.mkdir({str(tmp_path)!r} + "/" + str(os.getpid()))
    open({str(tmp_path / "go")!r}).read()
    return pjrt.host.HostClient("slow", compile=lambda program, options: lambda x: x)
""")

    def named() -> list[str]:
        return [path.name for path in tmp_path.iterdir() if path.name.isdecimal()]

    code = f"import pjrt; pjrt.client('worker:{file}:make')"
    with subprocess.Popen([sys.executable, "-c", code]) as host:
        wait_until(named, "the start of the worker")
        host.kill()
    (tmp_path / "go").write_text("on")
    (worker,) = named()
    wait_until(lambda: not Path("/proc", worker).exists(), "the end of the worker")


HANGS = """
import threading
import pjrt


def make():
    def compile(program, options):
        def run(x):
            if x[0] == 0:
                threading.Event().wait()
            return x + 1
        return run

    return pjrt.host.HostClient("mychip", compile=compile)
"""
PLUS_ONE = """
func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %c = stablehlo.constant dense<1.0> : tensor<2xf32>
  %0 = stablehlo.add %x, %c : tensor<2xf32>
  return %0 : tensor<2xf32>
}"""


def test_the_watchdog_cancels_what_a_worker_computes(tmp_path: Path) -> None:
    (tmp_path / "mychip.py").write_text(HANGS)
    library = native.write_library(tmp_path / "mychip.so", f"{tmp_path / 'mychip.py'}:make", driver="worker")
    with pjrt.load_plugin(library).client(watchdog_seconds=0.25) as client:
        plus_one = client.compile(PLUS_ONE)
        (late,) = plus_one(np.zeros(2, np.float32))
        (behind,) = plus_one(late)
        with pytest.raises(pjrt.DeadlineExceededError, match=r"launch of the program run was not done within 0\.25 s"):
            behind.to_host().result(60)
        # What comes after it runs in the same process.
        assert wait_for_value(lambda: plus_one(np.ones(2, np.float32))[0].to_host().result(60)).tolist() == [2, 2]


WAITS = """
import pjrt


def make(folder):
    def compile(program, options):
        def run(x):
            with open(f"{folder}/{int(x[0])}") as fifo:
                fifo.read()
            return x + 1
        return run

    return pjrt.host.HostClient("mychip", compile=compile)
"""


def test_a_result_is_told_while_the_next_program_runs(tmp_path: Path) -> None:
    """Nobody looks for it any more: the thread that listens has to be woken before the next program begins."""
    for number in range(2):
        os.mkfifo(tmp_path / str(number))
    (tmp_path / "mychip.py").write_text(WAITS)
    library = native.write_library(tmp_path / "mychip.so", f"{tmp_path / 'mychip.py'}:make", driver="worker")
    with pjrt.load_plugin(library).client(folder=str(tmp_path)) as client:
        plus_one = client.compile(PLUS_ONE)
        first, second = (plus_one(np.full(2, n, np.float32))[0] for n in range(2))
        told = threading.Event()
        first.ready().add_done_callback(lambda _: told.set())
        (tmp_path / "0").write_text("go")
        is_told = told.wait(60)
        is_second_done = second.ready().done()
        (tmp_path / "1").write_text("go")
        assert (is_told, is_second_done) == (True, False)


def wait_for_value(function: Callable[[], np.ndarray]) -> np.ndarray:
    """Return what a function returns, once the watchdog gives it time on a busy machine."""
    found: list[np.ndarray] = []

    def is_there() -> bool:
        with contextlib.suppress(pjrt.DeadlineExceededError):
            found.append(function())
        return bool(found)

    wait_until(is_there, "the next program")
    return found[0]


TALKS = """
import os, sys

def make():
    print("it begins")
    print("x" * 5000 + "\\nin vain", end="", file=sys.stderr, flush=True)
    os._exit(3)
"""


def test_what_a_worker_prints_has_its_name_and_the_last_lines_are_in_the_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mychip.py").write_text(TALKS)
    library = native.write_library(tmp_path / "lib.so", f"{tmp_path / 'mychip.py'}:make", driver="worker")
    with pytest.raises(pjrt.UnavailableError, match=r"exit status 3; .*; it wrote last:\nin vain"):
        pjrt.load_plugin(library).client()
    lines = capfd.readouterr().err.splitlines()
    assert [line.replace("x" * 1000, "X") for line in lines] == [
        "[mychip] it begins", "[mychip] XX", "[mychip] XX", "[mychip] X", "[mychip] in vain",
    ]  # fmt: skip


STOPS = """
import pjrt

def compile(program, options):
    spec = pjrt.ShapeSpec((2,), pjrt.ElementType.F32)

    def run(x):
        breakpoint()
        return x + 1

    return pjrt.host.Compiled(run=run, parameters=[spec], outputs=[spec])

def make(**options):
    return pjrt.host.HostClient("stops", compile=compile, **options)
"""
DEBUGGED = """
import fcntl, sys, termios, numpy, pjrt

fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # the terminal of this process, and of its children
program = "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> { return %x : tensor<2xf32> }"
with pjrt.client("worker:" + sys.argv[1] + ":make") as client:
    print(numpy.asarray(client.compile(program)(numpy.ones(2, numpy.float32))[0]).tolist())
"""


def test_a_breakpoint_in_a_worker_stops_at_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "stops.py").write_text(STOPS)
    terminal, theirs = os.openpty()
    os.write(terminal, b"p float(x.sum()) * 21\nc\n")
    done = subprocess.run(
        [sys.executable, "-c", DEBUGGED, tmp_path / "stops.py"],
        stdin=theirs, stdout=subprocess.PIPE, start_new_session=True, text=True, timeout=120,
    )  # fmt: skip
    shown = os.read(terminal, 1 << 16).decode()
    os.close(terminal)
    os.close(theirs)
    assert done.stdout == "[2.0, 2.0]\n"
    assert "(Pdb) 42.0" in shown


FRAMES = """
import os

def make():
    print("F1129 shape.cc:3] Check failed: a == b")
    for frame in range(40):
        print(f"    @     0x7f5c2b0a1{frame:03}  (unknown) in the library of a vendor")
    os.abort()
"""


def test_frames_of_a_stack_leave_room_for_the_reason_and_nothing_is_shown_without_a_label(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mychip.py").write_text(FRAMES)
    library = native.write_library(tmp_path / "lib.so", f"{tmp_path / 'mychip.py'}:make", driver="worker", label="")
    with pytest.raises(pjrt.UnavailableError, match=r"signal 6 .*; it wrote last:\nF1129 .* Check failed: a == b;"):
        pjrt.load_plugin(library).client()
    assert capfd.readouterr() == ("", "")


RECEIVES = """func.func @main() -> tensor<4xf32> {
  %t = stablehlo.create_token : !stablehlo.token
  %0:2 = "stablehlo.recv"(%t) {
    channel_handle = #stablehlo.channel_handle<handle = 3, type = 3>, is_host_transfer = true
  } : (!stablehlo.token) -> (tensor<4xf32>, !stablehlo.token)
  return %0#0 : tensor<4xf32>
}"""


def test_a_stream_that_is_released_without_its_bytes(library: Path) -> None:
    """The execution fails. The thread that hears of it keeps the stream no longer than that."""
    with pjrt.load_plugin(library).client() as client:
        executable = client.compile(RECEIVES)
        options = pjrt.ExecuteOptions(recv_callbacks=[[pjrt.RecvCallback(3, lambda stream: None)]])
        ((result,),) = executable.execute([[]], options)
        with pytest.raises(pjrt.PjrtError, match="released the stream"):
            result.ready().result(60)


def test_an_array_that_is_larger_than_all_memory(library: Path) -> None:
    with pjrt.load_plugin(library).client() as client, pytest.raises(pjrt.ResourceExhaustedError, match="bytes left"):
        client.create_uninitialized_buffer(pjrt.ShapeSpec((1 << 54,), pjrt.ElementType.F32))


DYNAMIC = """
func.func @main(%x: tensor<10xf32>, %n: tensor<i32>) -> tensor<?xf32, #stablehlo.bounds<10>> {
  %0 = stablehlo.set_dimension_size %x, %n, dim = 0
      : (tensor<10xf32>, tensor<i32>) -> tensor<?xf32, #stablehlo.bounds<10>>
  return %0 : tensor<?xf32, #stablehlo.bounds<10>>
}"""


def test_a_result_whose_size_only_the_run_decides_is_an_error_for_who_reads_it() -> None:
    with pjrt.client("worker:cpu") as client:
        (result,) = client.compile(DYNAMIC)(np.arange(10, dtype=np.float32), np.int32(3))
        with pytest.raises(pjrt.UnimplementedError, match=r"the shape \(3,\), which only the run has decided"):
            np.asarray(result)
        (whole,) = client.compile(DYNAMIC)(np.arange(10, dtype=np.float32), np.int32(10))
        assert np.asarray(whole).tolist() == list(range(10))


def test_a_library_for_other_machines(library: Path, tmp_path: Path) -> None:
    """It states no Python: that of the search path runs the device, or the one that a framework's adapter names."""
    path = shutil.copy(library, tmp_path / "moved.so")
    make_relocatable(path)
    code = f"""
import ctypes, sys, pjrt
plugin = pjrt.load_plugin({str(path)!r})
try:
    plugin.client()
except pjrt.PjrtError as error:
    print(error)
ctypes.CDLL({str(path)!r}).pjrt_native_python(sys.executable.encode())
print(plugin.client().platform_name)
"""
    environment = {**os.environ, "PATH": str(tmp_path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    refused, name = done.stdout.splitlines()
    assert "could not be started: python3: No such file" in refused
    assert name == "reference"


def test_a_library_that_needs_files_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "device.py").write_text("import pjrt\nmake = pjrt.devices.reference.ReferenceClient\n")
    path = native.write_library(tmp_path / "here.so", f"{tmp_path / 'device.py'}:make", driver="worker")
    with pytest.raises(pjrt.InvalidArgumentError, match=r"by the name of a module, found the file .*device.py"):
        make_relocatable(path)
    with pytest.raises(pjrt.InvalidArgumentError, match="expected a library of an exported device"):
        make_relocatable(tmp_path / "device.py")
