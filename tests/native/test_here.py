"""Devices of objects of this process, behind the runtime in C."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt import native
from pjrt.capi import load_capsule, load_plugin
from pjrt.capi.import_spec import find_attribute
from pjrt.native.exported import write_exported

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the runtime in C is for Linux")

ADD = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = stablehlo.add %x, %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
"""
X = np.arange(4, dtype=np.float32)


def exported(make: Any, **options: Any) -> Any:
    return pjrt.export(make, name="here", **options)


def loaded(make: Any, **options: Any) -> pjrt.Client:
    return load_capsule(exported(make, **options).capsule).client()


@pytest.fixture
def client() -> Iterator[pjrt.Client]:
    with loaded(lambda **options: pjrt.client("reference", num_devices=2, **options)) as client:
        yield client


def run(source: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-W", "error", "-c", source], capture_output=True, text=True, timeout=120
    )


def test_what_it_is_given_and_what_its_clients_say_are_attributes_of_the_plugin() -> None:
    def make(**options: Any) -> pjrt.Client:
        return pjrt.StableHloClient("old", compile=lambda *_: lambda x: x, newest="1.9.0", **options)

    plugin = load_capsule(exported(make, attributes={"wood": "oak"}).capsule)
    before = plugin.attributes
    assert (before["wood"], before["xla_version"]) == ("oak", 2)
    with plugin.client() as client:
        assert client.platform_name == "old"
        assert client.attributes["stablehlo_current_version"] == (1, 9, 0)
        assert client.attributes["wood"] == "oak"
    assert before["wood"] == "oak"  # what was read stays readable


def test_the_platform_may_have_another_name() -> None:
    with loaded(lambda **options: pjrt.client("reference", **options), platform_name="mine") as client:
        assert client.platform_name == "mine"


def test_each_plugin_has_its_own_clients() -> None:
    def named(name: str) -> Any:
        return lambda **options: pjrt.StableHloClient(name, compile=lambda *_: lambda x: x, **options)

    with loaded(named("one")) as one, loaded(named("two")) as two:
        assert (one.platform_name, two.platform_name) == ("one", "two")


def test_a_client_that_is_exported_itself_stays_open() -> None:
    with pjrt.client("reference") as own:
        with loaded(own) as client:
            np.testing.assert_array_equal(np.asarray(client.compile(ADD)(X)[0]), 2 * X)
        assert not own.is_closed


def test_a_client_that_was_made_for_a_framework_is_closed_with_it() -> None:
    made: list[pjrt.Client] = []

    def make(**options: Any) -> pjrt.Client:
        made.append(pjrt.client("reference", **options))
        return made[-1]

    loaded(make).close()
    assert made[0].is_closed


def test_topologies_of_a_name() -> None:
    def make(**options: Any) -> pjrt.Client:
        raise AssertionError("a client is made")

    make.named_topology = lambda name, **options: pjrt.topology("reference", name)  # type: ignore[attr-defined]
    plugin = load_capsule(exported(make).capsule)
    assert len(plugin.topology("8").device_descriptions) == 8


def test_an_exception_of_the_function_that_makes_clients_has_its_message() -> None:
    def make(**options: Any) -> pjrt.Client:
        raise ValueError("no chip in slot 3")

    with pytest.raises(pjrt.PjrtError, match="no chip in slot 3"):
        loaded(make)


@pytest.mark.parametrize("where", ["here", "worker", "worker of functions"])
def test_a_profiler_records_sessions(where: str, tmp_path: Path) -> None:
    place = f"{Path(__file__).parent / 'recorded_device.py'}:recorded"
    recorded = find_attribute(place)
    if where == "here":
        plugin, count = load_capsule(recorded.capsule), 1
    else:
        path = tmp_path / "librecorded.so"
        if where == "worker":
            write_exported(path, place)
        else:
            maker = place.replace(":recorded", ":make")
            native.write_library(path, maker, driver="worker", profiler=place.replace(":recorded", ":Recording"))
        plugin, count = load_plugin(path), 2
    with plugin.client(), plugin.client() as second_client:  # each of a worker has a recording of its own
        first, second = plugin.profiler(b"one"), plugin.profiler(b"two")
        first.start()
        with pytest.raises(pjrt.FailedPreconditionError, match="the session was not stopped"):
            first.collect()
        second.start()
        first.stop()
        second.stop()
        assert first.collect() == first.collect() == b"one start stop." * count
        second_client.close()
        assert second.collect() == b"two start stop." * count
        with pytest.raises(pjrt.PjrtError, match="no counters on this chip"):
            plugin.profiler(b"deep")
        del first, second
        gc.collect()


def test_a_kernel_waits_for_another_program_of_its_own_device() -> None:
    kernels: list[Any] = []

    def compile(program: Any, options: Any) -> Any:
        spec = pjrt.ShapeSpec((4,), pjrt.ElementType.F32)
        return pjrt.host.Compiled(run=kernels.pop(0), parameters=[spec], outputs=[spec], runs_on_caller=True)

    with loaded(lambda **options: pjrt.host.HostClient("toy", compile=compile, **options)) as client:
        kernels += [lambda x: x + 1, lambda x: np.asarray(inner(x * 2)[0])]
        inner = client.compile(ADD)
        outer = client.compile(ADD)
        (y,) = outer(client.buffer_from_host(X))
        (z,) = inner(y)
        np.testing.assert_array_equal(np.asarray(z), 2 * X + 2)


def test_a_result_that_is_to_come_is_an_argument_of_another_shape() -> None:
    may_end = threading.Event()
    specs = {shape: [pjrt.ShapeSpec(shape, pjrt.ElementType.F32)] for shape in ((4,), (2, 2))}
    compiled = [
        pjrt.host.Compiled(
            run=lambda x: x + may_end.wait(60), parameters=specs[4,], outputs=specs[4,], runs_on_caller=False
        ),
        pjrt.host.Compiled(run=lambda x: x @ x, parameters=specs[2, 2], outputs=specs[2, 2]),
    ]

    def make(**options: Any) -> pjrt.Client:
        return pjrt.host.HostClient("toy", compile=lambda *_: compiled.pop(0), **options)

    with loaded(make) as client:
        first, second = client.compile(ADD), client.compile(ADD.replace("4xf32", "2x2xf32"))
        (y,) = first(X)
        (z,) = second(y.bitcast(pjrt.ElementType.F32, (2, 2)))
        may_end.set()
        np.testing.assert_array_equal(np.asarray(z), (X + 1).reshape(2, 2) @ (X + 1).reshape(2, 2))


def test_a_result_is_seen_where_it_is(client: pjrt.Client) -> None:
    (y,) = client.compile(ADD)(X)
    reference = y.external_reference()
    view = np.from_dlpack(y)
    assert view.ctypes.data == y.unsafe_pointer()
    np.testing.assert_array_equal(view, 2 * X)
    reference.release()


def test_what_is_written_to_a_result_is_seen_where_it_is_and_by_the_device(client: pjrt.Client) -> None:
    executable = client.compile(ADD)
    (y,) = executable(X)
    view = np.from_dlpack(y)
    raw = y.raw()
    raw.copy_from_host(np.array([50], np.float32), offset=4).result(60)
    raw.release()
    gc.collect()
    for _ in range(20):  # which would take memory that is free by mistake
        executable(X)[0].ready().result(60)
    written = np.array([0, 50, 4, 6], np.float32)
    np.testing.assert_array_equal(view, written)
    np.testing.assert_array_equal(np.asarray(y), written)
    np.testing.assert_array_equal(np.asarray(executable(y)[0]), 2 * written)


def test_memory_of_the_host_that_was_lent_comes_back_when_nobody_looks_at_it(client: pjrt.Client) -> None:
    came_back = threading.Event()
    values = np.ones(1 << 16, np.float32)
    buffer = client.buffer_from_host(
        values,
        semantics=pjrt.HostBufferSemantics.IMMUTABLE_ZERO_COPY,
        on_done_with_host_buffer=came_back.set,
    )
    program = ADD.replace("4xf32", f"{1 << 16}xf32")
    (y,) = client.compile(program)(buffer)
    assert buffer.unsafe_pointer() == values.ctypes.data
    np.testing.assert_array_equal(np.asarray(y), 2 * values)
    assert not came_back.is_set()
    buffer.delete()
    del y
    gc.collect()
    assert came_back.wait(60)


class _Meddling(pjrt.host.HostClient):
    """A client during whose copies of arrays other things happen."""

    meddle: Any = None

    def buffer_from_host(self, *args: Any, **options: Any) -> pjrt.Buffer:
        buffer = super().buffer_from_host(*args, **options)
        meddle, self.meddle = self.meddle, None
        if meddle is not None:
            meddle()
        return buffer


def _add(program: Any, options: Any) -> Any:
    spec = pjrt.ShapeSpec((4,), pjrt.ElementType.F32)
    return pjrt.host.Compiled(run=lambda x: x + x, parameters=[spec], outputs=[spec])


@pytest.mark.parametrize("what", ["read", "execute"])
@pytest.mark.parametrize("can_alias", [True, False])
def test_an_array_is_used_while_the_device_copies_it(what: str, can_alias: bool) -> None:
    seen: list[Any] = []

    class _Client(_Meddling):
        def buffer_from_host(self, array: Any, **options: Any) -> pjrt.Buffer:
            if not can_alias:
                options.pop("on_done_with_host_buffer")()
                options["semantics"] = pjrt.HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL
            return super().buffer_from_host(array, **options)

    with _Client("toy", compile=_add) as own, loaded(own) as client:
        executable, x = client.compile(ADD), client.buffer_from_host(X)

        def meddle() -> None:
            seen.append(np.asarray(x if what == "read" else executable(x)[0]))

        def in_thread() -> None:
            thread = threading.Thread(target=meddle)
            thread.start()
            thread.join()

        own.meddle = in_thread
        (y,) = executable(x)
        np.testing.assert_array_equal(np.asarray(y), 2 * X)
        np.testing.assert_array_equal(seen[0], X if what == "read" else 2 * X)
        np.testing.assert_array_equal(np.asarray(x), X)
        np.testing.assert_array_equal(np.asarray(executable(x)[0]), 2 * X)


def test_memory_that_nobody_can_give_is_refused(client: pjrt.Client) -> None:
    for size in (1 << 54, 1 << 44):
        with pytest.raises(pjrt.ResourceExhaustedError):
            client.create_uninitialized_buffer(pjrt.ShapeSpec((size,), pjrt.ElementType.F32))


def test_a_device_computes_on_the_thread_that_calls() -> None:
    threads: list[int] = []

    def compile(program: Any, options: Any) -> Any:
        def run(x: Any) -> Any:
            threads.append(threading.get_ident())
            return x + x

        spec = pjrt.ShapeSpec((4,), pjrt.ElementType.F32)
        return pjrt.host.Compiled(run=run, parameters=[spec], outputs=[spec], runs_on_caller=True)

    with loaded(lambda **options: pjrt.host.HostClient("toy", compile=compile, **options)) as client:
        executable = client.compile(ADD)
        y = client.buffer_from_host(X)
        for _ in range(5):  # nobody waits in between
            (y,) = executable(y)
        np.testing.assert_array_equal(np.asarray(y), 32 * X)
    assert threads == [threading.get_ident()] * 5


def test_work_that_nobody_waits_for_is_done(client: pjrt.Client) -> None:
    executable = client.compile(ADD)
    x = client.buffer_from_host(X)
    ended = threading.Event()
    futures: list[pjrt.Future[None]] = []
    executable.execute_sharded([x], client.devices[0], returned_futures=futures)
    futures[0].add_done_callback(lambda _: ended.set())
    assert ended.wait(60)


def test_a_process_that_was_forked_makes_no_client() -> None:
    done = run("""
import os, warnings, pjrt
from pjrt.capi import load_capsule
warnings.simplefilter("ignore")
plugin = load_capsule(pjrt.export(lambda **o: pjrt.client("reference", **o), name="here").capsule)
with plugin.client():
    pass
child = os.fork()
if child == 0:
    try:
        plugin.client()
    except pjrt.FailedPreconditionError as error:
        os._exit(7 if "forked" in str(error) else 1)
    os._exit(2)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
with plugin.client() as client:
    print(client.platform_name)
""")
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["7", "reference"], "")


def test_what_was_given_up_may_end_when_the_client_is_closed() -> None:
    """Freed memory is overwritten in this process: who uses it is found."""
    source = """
import threading, numpy as np, pjrt
from pjrt.capi import load_capsule
begun, proceed = threading.Event(), threading.Event()

def run(x):
    begun.set()
    proceed.wait()
    return x

def compile(program, options):
    spec = pjrt.ShapeSpec((4,), pjrt.ElementType.F32)
    return pjrt.host.Compiled(run=run, parameters=[spec], outputs=[spec])

own = pjrt.host.HostClient("toy", compile=compile)
client = load_capsule(pjrt.export(own, name="toy").capsule).client()
options = pjrt.ExecuteOptions(launch_id=3)
program = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }"
(y,) = client.compile(program).execute_sharded(
    [client.buffer_from_host(np.zeros(4, np.float32))], client.devices[0], options)
begun.wait()
print(client.devices[0].poison_execution(3, pjrt.AbortedError("enough")))
print(type(y.ready().exception(60)).__name__)
del y
client.close()
proceed.set()
own.close()  # waits for the kernel
print("ends")
"""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", source],
        capture_output=True, text=True, timeout=120, env={**os.environ, "MALLOC_PERTURB_": "165"},
    )  # fmt: skip
    assert (done.returncode, done.stdout.split()) == (0, ["True", "AbortedError", "ends"]), done.stderr


def test_the_process_ends_with_clients_open_and_work_under_way() -> None:
    done = run("""
import numpy as np, pjrt
from pjrt.capi import load_capsule
plugin = load_capsule(pjrt.export(lambda **o: pjrt.client("reference", **o), name="here").capsule)
client = plugin.client()
executable = client.compile("func.func @main(%x: tensor<64x64xf32>) -> tensor<64x64xf32> {"
    "%y = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : "
    "(tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32> return %y : tensor<64x64xf32> }")
x = client.buffer_from_host(np.zeros((64, 64), np.float32))
for _ in range(100):
    (x,) = executable(x)
print("ends")
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")


def test_nothing_is_left_of_clients_that_came_and_went() -> None:
    exporting = exported(lambda **options: pjrt.client("reference", **options))
    plugin = load_capsule(exporting.capsule)

    def use() -> None:
        with plugin.client() as client:
            np.testing.assert_array_equal(np.asarray(client.compile(ADD)(X)[0]), 2 * X)

    use()
    gc.collect()
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(20):
        use()
    gc.collect()
    after = len(os.listdir("/proc/self/fd")), threading.active_count()
    assert after[0] <= before[0]
    assert after[1] <= before[1] + 1
