"""Many threads at once, the programs that a client keeps, memory that is given back, and what was deleted or closed."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt import ifrt
from pjrt.ifrt import ArrayCopySemantics, ArraySpec, Interval, Mapping, RemapPlan, reshard

X = np.arange(128, dtype=np.float32).reshape(8, 16)
THREADS = 8
DONATE = ArrayCopySemantics.DONATE_INPUT

pytestmark = pytest.mark.usefixtures("by_program")


def twice(*, donates: bool = False) -> str:
    """Return a program that doubles an array whose rows lie on eight devices."""
    sharding = 'mhlo.sharding = "{devices=[8,1]0,1,2,3,4,5,6,7}"'
    alias = ", tf.aliasing_output = 0 : i32" if donates else ""
    return f"""module @twice attributes {{mhlo.num_partitions = 8 : i32}} {{
  func.func @main(%x: tensor<8x16xf32> {{{sharding}{alias}}}) -> (tensor<8x16xf32> {{{sharding}}}) {{
    %y = stablehlo.add %x, %x : tensor<8x16xf32>
    return %y : tensor<8x16xf32>
  }}
}}"""


def in_threads(work: Callable[[int], object]) -> None:
    """Run work in several threads that begin at the same time; raise the first error."""
    barrier = threading.Barrier(THREADS)

    def begin(number: int) -> None:
        barrier.wait(60)
        work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        for future in [pool.submit(begin, number) for number in range(THREADS)]:
            future.result(300)


class CountingCompiles:
    """Counts the programs that a client compiles, and slows each down so that threads meet."""

    def __init__(self, client: ifrt.Client, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        compile_ = client.pjrt_client.compile

        def counted(*arguments: Any) -> Any:
            self.count += 1
            threading.Event().wait(0.05)
            return compile_(*arguments)

        monkeypatch.setattr(type(client.pjrt_client), "compile", lambda _, *arguments: counted(*arguments))


@pytest.fixture
def own(client: ifrt.Client) -> Iterator[ifrt.Client]:
    """A client that no other test uses."""
    with pjrt.client(client.platform_name, num_devices=8) as made:
        yield ifrt.Client(made)


def test_threads_make_reshard_execute_and_delete(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    executable = client.compile(twice())
    targets = [mesh.sharding(*spec) for spec in ((None, "y"), ("y", "x"), (), (("x", "y"),))]
    targets.append(ifrt.Mesh(client.devices[:3], {"z": 3}).sharding("z"))  # through the host

    def work(number: int) -> None:
        value = X + number
        for turn in range(10):
            array = client.make_array(value, mesh.sharding("x", "y"))
            (moved,) = client.reshard_arrays([array], [targets[(number + turn) % len(targets)]])
            array.delete()
            (result,) = executable(moved)
            (again,) = client.reshard_arrays([result], [mesh.sharding("x")], DONATE)
            assert result.is_deleted
            np.testing.assert_array_equal(np.asarray(again), 2 * value)
            np.testing.assert_array_equal(np.asarray(moved), value)
            moved.delete()

    in_threads(work)


def test_one_array_is_used_by_all_threads(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    array = client.make_array(X, mesh.sharding("x", "y"))
    executable = client.compile(twice())

    def work(number: int) -> None:
        del number
        for _ in range(10):
            np.testing.assert_array_equal(np.asarray(array), X)
            np.testing.assert_array_equal(np.asarray(executable(array)[0]), 2 * X)
            assert len(array.disassemble()) == 8
            array.ready().result(60)

    in_threads(work)


def test_one_thread_wins_an_array_that_all_donate(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    executable = client.compile(twice(donates=True))
    array = client.make_array(X, executable.parameter_specs[0].sharding)
    array.ready().result(60)
    outcomes: list[Any] = []

    def work(number: int) -> None:
        del number
        try:
            outcomes.append(np.asarray(executable(array)[0]))
        except pjrt.FailedPreconditionError as error:
            outcomes.append(error)

    in_threads(work)
    values = [outcome for outcome in outcomes if isinstance(outcome, np.ndarray)]
    assert len(outcomes) == THREADS
    assert len(values) <= 1
    for value in values:
        np.testing.assert_array_equal(value, 2 * X)


def test_threads_compile_a_reshard_once(own: ifrt.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = ifrt.Mesh(own.devices, {"x": 8})
    array = own.make_array(X, mesh.sharding("x"))
    compiles = CountingCompiles(own, monkeypatch)
    in_threads(lambda _: np.asarray(own.reshard_arrays([array], [mesh.sharding(None, "x")])[0]))
    assert compiles.count == 1


def test_a_client_keeps_some_programs(own: ifrt.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reshard, "_PROGRAMS_KEPT", 2)
    mesh = ifrt.Mesh(own.devices, {"x": 8})
    compiles = CountingCompiles(own, monkeypatch)

    def move(columns: int) -> None:
        value = np.ones((8, columns), np.float32)
        (moved,) = own.reshard_arrays([own.make_array(value, mesh.sharding("x"))], [mesh.sharding()])
        np.testing.assert_array_equal(np.asarray(moved), value)

    for columns, expected in ((1, 1), (2, 2), (1, 2), (3, 3), (1, 3), (2, 4)):
        move(columns)
        assert compiles.count == expected, "the program that was used last stays"
    assert len(own._resharder._programs) == 2


def test_a_program_that_failed_to_compile_is_tried_again(own: ifrt.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = ifrt.Mesh(own.devices, {"x": 8})
    array = own.make_array(X, mesh.sharding("x"))

    def fail(*_: Any) -> Any:
        raise pjrt.ResourceExhaustedError("no memory to compile")

    with monkeypatch.context() as patch:
        patch.setattr(type(own.pjrt_client), "compile", fail)
        with pytest.raises(pjrt.ResourceExhaustedError, match="no memory to compile"):
            own.reshard_arrays([array], [mesh.sharding()])
    np.testing.assert_array_equal(np.asarray(own.reshard_arrays([array], [mesh.sharding()])[0]), X)


def test_a_sharding_keeps_the_domains_of_some_shapes(mesh: ifrt.Mesh) -> None:
    sharding = mesh.sharding("x")
    for size in range(300):
        assert len(sharding.index_domains((size,))) == 8
    assert len(sharding._domains_by_shape) <= 64


@pytest.mark.full
def test_nothing_is_left_behind(own: ifrt.Client) -> None:
    mesh = ifrt.Mesh(own.devices, {"x": 4, "y": 2})
    executable = own.compile(twice())

    def once() -> None:
        array = own.make_array(X, mesh.sharding("x", "y"))
        (moved, host) = own.reshard_arrays(
            [array, array], [mesh.sharding("y"), ifrt.Mesh(own.devices[:3], {"z": 3}).sharding("z")]
        )
        (result,) = executable(moved)
        parts = result.disassemble(ArrayCopySemantics.ALWAYS_COPY)
        (copy,) = own.copy_arrays([result], memory_kind="pinned_host")
        np.asarray(copy)
        for value in (array, moved, host, result, *parts):  # the copy is left to the garbage collector
            value.delete()

    def alive() -> int:
        gc.collect()
        return sum(isinstance(each, (pjrt.Buffer, ifrt.Array, ifrt.Sharding)) for each in gc.get_objects())

    for _ in range(10):
        once()
    before = alive()
    for _ in range(200):
        once()
    assert alive() <= before + 20
    if own.platform_name == "reference":
        spaces = [space for device in own.devices for space in device.memory_spaces]
        assert [space.account.in_use for space in spaces] == [0] * len(spaces)  # type: ignore[attr-defined]


def _uses(client: ifrt.Client, mesh: ifrt.Mesh) -> dict[str, Callable[[ifrt.Array], object]]:
    executable = client.compile(twice())
    rows = ArraySpec(X.shape, pjrt.ElementType.F32, executable.parameter_specs[0].sharding)
    plan = RemapPlan((rows,), (rows,), (Mapping(0, 0, (Interval(0, 8),), (Interval(0, 8),)),))
    small = ifrt.Mesh(client.devices[:3], {"z": 3}).sharding("z")
    return {
        "execute": lambda array: executable(array),
        "reshard by copies": lambda array: client.reshard_arrays([array], [array.sharding]),
        "reshard by a program": lambda array: client.reshard_arrays([array], [mesh.sharding(None, "x")]),
        "reshard by the host": lambda array: client.reshard_arrays([array], [small]),
        "copy": lambda array: client.copy_arrays([array]),
        "remap": lambda array: client.remap_arrays(plan, [array]),
        "disassemble": lambda array: array.disassemble(),
        "read": lambda array: np.asarray(array),
        "wait": lambda array: array.ready(),
    }


def test_deleted_arrays_and_shards_are_refused(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    sharding = client.compile(twice()).parameter_specs[0].sharding
    for use in _uses(client, mesh).values():
        array = client.make_array(X, sharding)
        array.delete()
        with pytest.raises(pjrt.FailedPreconditionError, match=r"the array f32\[8,16\] with .* was deleted or donated"):
            use(array)
        array = client.make_array(X, sharding)
        array.disassemble()[5].delete()
        assert array.is_deleted
        with pytest.raises(pjrt.FailedPreconditionError, match=r"the shard on .*5.* of the array f32\[8,16\] with"):
            use(array)


def test_donated_arguments_are_refused(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    executable = client.compile(twice(donates=True))
    for use in _uses(client, mesh).values():
        array = client.make_array(X, executable.parameter_specs[0].sharding)
        np.testing.assert_array_equal(np.asarray(executable(array)[0]), 2 * X)
        assert array.is_deleted
        with pytest.raises(pjrt.FailedPreconditionError, match=r"of the array f32\[8,16\] with .* deleted or donated"):
            use(array)


def test_deleted_shards_are_not_assembled(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    array = client.make_array(X, mesh.sharding("x", "y"))
    parts = array.disassemble()
    parts[2].delete()
    with pytest.raises(pjrt.FailedPreconditionError, match=r"the array f32\[2,8\] with SingleDeviceSharding"):
        client.assemble_array_from_single_device_arrays(X.shape, array.sharding, parts)


def test_a_closed_client(client: ifrt.Client) -> None:
    made = pjrt.client(client.platform_name, num_devices=8)
    closed = ifrt.Client(made)
    mesh = ifrt.Mesh(closed.devices, {"x": 4, "y": 2})
    array, executable = closed.make_array(X, mesh.sharding("x")), closed.compile(twice())
    sharding, spec = mesh.sharding("x"), executable.parameter_specs[0]
    made.close()
    uses: dict[str, Callable[[], object]] = {
        "make": lambda: closed.make_array(X, sharding),
        "make on the default device": lambda: closed.make_array(X),
        "shards": lambda: closed.make_array_from_host_buffer_shards(spec, list(X[:, None, :])),
        "errors": lambda: closed.make_error_arrays(pjrt.InternalError("x"), [spec]),
        "compile": lambda: closed.compile(twice()),
        "execute": lambda: executable(X),
        "execute an array": lambda: executable(array),
        "reshard": lambda: closed.reshard_arrays([array], [mesh.sharding()]),
        "copy": lambda: closed.copy_arrays([array]),
        "read": lambda: np.asarray(array),
        "wait": lambda: array.ready().result(60),
    }
    for use in uses.values():
        with pytest.raises(pjrt.FailedPreconditionError, match=r"client.* was closed"):
            use()
    assert "closed" in repr(closed)
    array.delete()
