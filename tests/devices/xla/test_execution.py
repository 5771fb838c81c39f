"""Executing on one device: arguments, results, donation, errors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pjrt

X = np.arange(4, dtype=np.float32)


def test_the_short_form_takes_arrays_and_buffers(client: pjrt.Client, add: pjrt.LoadedExecutable) -> None:
    buffer = client.buffer_from_host(X)
    for first in (X, buffer):
        for second in (X.tolist() and X, buffer):
            (result,) = add(first, second)
            assert np.asarray(result).tolist() == [0, 2, 4, 6]
    assert (result.shape, result.dtype, result.device) == ((4,), np.float32, client.devices[0])


def test_execute_and_execute_sharded(client: pjrt.Client, add: pjrt.LoadedExecutable) -> None:
    x = client.buffer_from_host(X)
    futures: list[pjrt.Future[None]] = []
    ((whole,),) = add.execute([[x, x]], returned_futures=futures)
    (share,) = add.execute_sharded([x, x], client.devices[0], returned_futures=futures)
    (plain,) = add.execute_sharded([x, x], client.devices[0])
    assert [f.result() for f in futures] == [None, None]
    assert np.asarray(whole).tolist() == np.asarray(share).tolist() == np.asarray(plain).tolist() == [0, 2, 4, 6]


def test_no_arguments_and_no_results(client: pjrt.Client) -> None:
    constant = client.compile(
        "func.func public @main() -> tensor<2xi32> {"
        " %0 = stablehlo.constant dense<[7, 8]> : tensor<2xi32> return %0 : tensor<2xi32> }"
    )
    assert np.asarray(constant()[0]).tolist() == [7, 8]
    nothing = client.compile("func.func public @main(%x: tensor<4xf32>) { return }")
    x = client.buffer_from_host(X)
    futures: list[pjrt.Future[None]] = []
    assert nothing(x) == ()
    assert nothing.execute([[x]], returned_futures=futures) == [[]]
    assert futures[0].result(timeout=120) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X,), "takes 2 arguments, found 1"),
        ((X, X, X), "takes 2 arguments, found 3"),
        ((X, X[:3]), r"argument 1 of 'main' must be f32\[4\], found f32\[3\]"),
        ((X.astype(np.int32), X), r"argument 0 of .* must be f32\[4\], found a numpy array of s32\[4\]; convert it"),
        ((X.reshape(2, 2), X), r"must be f32\[4\], found f32\[2,2\]"),
        ((np.array(["a"]), X), "is not an element type of PJRT"),
    ],
)
def test_wrong_arguments(add: pjrt.LoadedExecutable, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=message):
        add(*arguments)


def test_arguments_elsewhere(client: pjrt.Client, add: pjrt.LoadedExecutable) -> None:
    here, there = (client.buffer_from_host(X, device=device) for device in client.devices[:2])
    with pytest.raises(pjrt.InvalidArgumentError, match="on cpu:0, where the program runs, found one on cpu:1"):
        add(here, there)
    with pytest.raises(pjrt.InvalidArgumentError, match="does not run on cpu:1; it runs on cpu:0"):
        add.execute_sharded([there, there], client.devices[1])
    with pytest.raises(pjrt.InvalidArgumentError, match="must be a buffer of this client, found ndarray"):
        add.execute_sharded([X, X], client.devices[0])  # type: ignore[list-item]
    with pjrt.client("cpu") as other, pytest.raises(pjrt.InvalidArgumentError, match="found one of another client"):
        add(here, other.buffer_from_host(X))
    with pytest.raises(pjrt.InvalidArgumentError, match="one list of arguments for each, found 2"):
        add.execute([[here, here], [here, here]])
    with pytest.raises(pjrt.InvalidArgumentError, match=r"compiled for cpu:0; .* compile_portable_executable"):
        add.execute_portable([here, here], client.devices[0])


def test_any_kind_of_memory_will_do(client: pjrt.Client, add: pjrt.LoadedExecutable) -> None:
    pinned = client.buffer_from_host(X, memory_space=client.devices[0].memory_space("pinned_host"))
    assert np.asarray(add(pinned, X)[0]).tolist() == [0, 2, 4, 6]


def test_a_deleted_buffer_is_refused(client: pjrt.Client, add: pjrt.LoadedExecutable) -> None:
    x = client.buffer_from_host(X)
    x.delete()
    x.delete()
    assert x.is_deleted
    assert "deleted" in repr(x)
    for use in (lambda: add(x, X), lambda: add.execute([[x, x]]), lambda: add.execute_sharded([x, x], x.device)):
        with pytest.raises(pjrt.FailedPreconditionError, match=r"the buffer f32\[4\] on cpu:0 was deleted"):
            use()


def test_donation(client: pjrt.Client, programs: Any) -> None:
    executable = client.compile(programs.add_in_place)
    x, y = client.buffer_from_host(X), client.buffer_from_host(X)
    address = x.unsafe_pointer()
    (result,) = executable(x, y)
    assert np.asarray(result).tolist() == [0, 2, 4, 6]
    assert result.unsafe_pointer() == address
    assert x.is_deleted
    assert not y.is_deleted
    for use in (lambda: executable(x, y), x.to_host, x.ready, x.unsafe_pointer, lambda: x.copy_to(x.device)):
        with pytest.raises(pjrt.FailedPreconditionError, match="was donated to an execution and has no value any more"):
            use()


def test_a_donation_that_is_forbidden_does_not_happen(client: pjrt.Client, programs: Any) -> None:
    executable = client.compile(programs.add_in_place)
    x, y = client.buffer_from_host(X), client.buffer_from_host(X)
    options = pjrt.ExecuteOptions(non_donatable_input_indices=frozenset({0}))
    (result,) = executable.execute_sharded([x, y], x.device, options)
    assert np.asarray(result).tolist() == [0, 2, 4, 6]
    assert not x.is_deleted
    assert np.asarray(x).tolist() == X.tolist()
    with pytest.raises(pjrt.InvalidArgumentError, match="non_donatable_input_indices has 7"):
        executable.execute([[x, y]], pjrt.ExecuteOptions(non_donatable_input_indices=frozenset({7})))


def test_a_buffer_cannot_be_donated_and_used_besides(client: pjrt.Client, programs: Any) -> None:
    executable = client.compile(programs.add_in_place)
    x = client.buffer_from_host(X)
    with pytest.raises(pjrt.InvalidArgumentError, match="argument 0 of 'main' is donated and must not be another"):
        executable(x, x)
    assert not x.is_deleted


def test_a_donation_does_not_disturb_those_who_read(client: pjrt.Client, programs: Any) -> None:
    executable = client.compile(programs.add_in_place)
    x = client.buffer_from_host(X)
    view = np.asarray(x)
    executable(x, X)[0].ready().result()
    assert view.tolist() == X.tolist()


@pytest.mark.parametrize("read_first", [False, True])
def test_a_donation_does_not_disturb_those_who_wait(
    client: pjrt.Client, hold: Callable[[], Any], read_first: bool
) -> None:
    in_place = client.compile(
        "func.func public @main(%x: tensor<512x512xf32> {tf.aliasing_output = 0 : i32}) -> tensor<512x512xf32> {"
        " %0 = stablehlo.add %x, %x : tensor<512x512xf32> return %0 : tensor<512x512xf32> }"
    )
    held = hold()
    given = held.result
    ready, told, called = given.ready(), [], threading.Event()
    ready.add_done_callback(lambda future: (told.append(future.exception()), called.set()))
    read = given.to_host() if read_first else None
    if read_first:  # the donation waits for the reader
        threading.Timer(0.1, held.let_go).start()
    (doubled,) = in_place(given)
    assert given.is_deleted, doubled.ready().exception()
    assert read_first or not ready.done()
    held.let_go()
    assert ready.result(timeout=120) is None
    assert np.asarray(doubled)[3, 3] == 2
    if read is not None:
        assert read.result()[3, 3] == 1
    assert called.wait(60)
    assert told == [None]


class NoContext(pjrt.ExecuteContext):
    """A context of another device."""

    def add_user_data(self, *_: Any, **__: Any) -> None: ...

    def close(self) -> None: ...


def test_what_execute_options_the_device_lacks(client: pjrt.Client, add: pjrt.LoadedExecutable) -> None:
    x = client.buffer_from_host(X)
    sends = pjrt.ExecuteOptions(send_callbacks=[[pjrt.SendCallback(1, print)]])
    hlo = pjrt.ExecuteOptions(hlo_output_callbacks=[pjrt.HloOutputCallback(1, 1, print)])
    context = pjrt.ExecuteOptions(context=NoContext())
    for options in (sends, hlo, context):
        with pytest.raises(pjrt.UnimplementedError, match="device 'cpu' does not offer ExecuteOptions"):
            add.execute([[x, x]], options)
    plain = pjrt.ExecuteOptions(launch_id=7, call_location="model.py:1")
    assert np.asarray(add.execute([[x, x]], plain)[0][0]).tolist() == [0, 2, 4, 6]


def test_an_execution_that_fails_at_once_gives_its_error_at_the_results(client: pjrt.Client) -> None:
    huge = client.compile(
        "func.func public @main(%x: tensor<f32>) -> (tensor<1099511627776xf32>, tensor<f32>) {"
        " %0 = stablehlo.broadcast_in_dim %x, dims = [] : (tensor<f32>) -> tensor<1099511627776xf32>"
        " return %0, %x : tensor<1099511627776xf32>, tensor<f32> }"
    )
    x = client.buffer_from_host(np.float32(1))
    futures: list[pjrt.Future[None]] = []
    for first, second in (huge(x), huge.execute([[x]], returned_futures=futures)[0]):
        for result in (first, second):
            with pytest.raises(pjrt.ResourceExhaustedError, match="allocating 4398046511104 bytes"):
                result.ready().result()
            with pytest.raises(MemoryError):
                result.to_host().result()
    assert isinstance(futures[0].exception(), pjrt.ResourceExhaustedError)
    again = client.compile(
        "func.func public @main(%x: tensor<f32>) -> tensor<f32> {"
        " %0 = stablehlo.add %x, %x : tensor<f32> return %0 : tensor<f32> }"
    )
    with pytest.raises(pjrt.ResourceExhaustedError):
        again(second)[0].to_host().result()
    assert np.asarray(again(x)[0]) == 2, "the client works on"


def test_portable(client: pjrt.Client, programs: Any) -> None:
    executable = client.compile(programs.add, pjrt.CompileOptions(compile_portable_executable=True))
    assert list(executable.addressable_devices) == []
    assert executable.device_assignment.device_ids == ((client.addressable_devices[0].id,),)
    assert np.asarray(executable(X, X)[0]).tolist() == [0, 2, 4, 6]
    for device in client.devices[1:3]:
        x = client.buffer_from_host(X, device=device)
        (result,) = executable.execute_portable([x, x], device)
        assert result.device is device
        assert np.asarray(result).tolist() == [0, 2, 4, 6]
    with pytest.raises(pjrt.FailedPreconditionError, match="use execute_portable"):
        executable.execute([[x, x]])
    executable.delete()
    with pytest.raises(pjrt.FailedPreconditionError, match="was deleted; compile it again"):
        executable.execute_portable([x, x], device)


def test_a_deleted_executable(client: pjrt.Client, programs: Any) -> None:
    executable = client.compile(programs.add)
    x = client.buffer_from_host(X)
    executable.delete()
    executable.delete()
    assert executable.is_deleted
    for use in (lambda: executable(x, x), lambda: executable.execute([[x, x]])):
        with pytest.raises(pjrt.FailedPreconditionError, match="was deleted; compile it again"):
            use()


def test_a_launch_that_waits_keeps_the_values_of_its_arguments(client: pjrt.Client, programs: Any) -> None:
    """The caller may donate an argument before the last one of an earlier launch has come."""
    spec = pjrt.ShapeSpec(X.shape, pjrt.ElementType.F32)
    donates = client.compile(programs.add_in_place)
    with client.create_buffers_for_async_host_to_device([spec]) as manager:
        x, later = client.buffer_from_host(X), manager.retrieve_buffer(0)
        (waits,) = client.compile(programs.add)(later, x)
        (donated,) = donates(x, client.buffer_from_host(X))
        assert x.is_deleted
        assert np.asarray(donated).tolist() == [0, 2, 4, 6]
        manager.transfer_data(0, X + 10).result(60)
        assert np.asarray(waits).tolist() == [10, 12, 14, 16]


def test_a_launch_that_waits_outlives_its_executable(client: pjrt.Client, programs: Any) -> None:
    spec = pjrt.ShapeSpec(X.shape, pjrt.ElementType.F32)
    executable = client.compile(programs.add)
    with client.create_buffers_for_async_host_to_device([spec]) as manager:
        (waits,) = executable(manager.retrieve_buffer(0), client.buffer_from_host(X))
        executable.delete()
        manager.transfer_data(0, X).result(60)
        assert np.asarray(waits).tolist() == [0, 2, 4, 6]


def test_a_loaded_executable_is_serialized_again(client: pjrt.Client, programs: Any) -> None:
    serialized = client.compile(programs.add).serialize()
    for _ in range(2):
        loaded = client.deserialize(serialized)
        serialized = loaded.serialize()
    assert np.asarray(loaded(X, X)[0]).tolist() == [0, 2, 4, 6]
