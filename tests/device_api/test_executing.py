"""Executing programs: the forms, donation, errors, host callbacks, several devices."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from anydevice import Absent, Backend

from pjrt.api.buffer import CopyToDeviceStream
from pjrt.api.client import Client
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.device import Device
from pjrt.api.errors import (
    CancelledError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    PjrtError,
    StatusCode,
)
from pjrt.api.future import Future
from pjrt.api.loaded_executable import ExecuteOptions, HloOutputCallback, RecvCallback, SendCallback

X = np.arange(4, dtype=np.float32)
Y = np.full(4, 10, np.float32)


def replicas(count: int) -> CompileOptions:
    """Compile for a number of replicas."""
    return CompileOptions(num_replicas=count)


# The forms.


def test_the_short_form_takes_arrays(backend: Backend, client: Client) -> None:
    (z,) = client.compile(backend.programs.add((4,)))(X, Y)
    np.testing.assert_array_equal(np.asarray(z), X + Y)


def test_the_short_form_takes_buffers(backend: Backend, client: Client) -> None:
    executable = client.compile(backend.programs.add((4,)))
    x = client.buffer_from_host(X)
    (z,) = executable(x, x)
    (z,) = executable(z, Y)
    np.testing.assert_array_equal(np.asarray(z), 2 * X + Y)
    assert not x.is_deleted


def test_execute_gives_a_list_for_each_device(backend: Backend, client: Client) -> None:
    executable = client.compile(backend.programs.itself_and_negative((4,)))
    ((same, negative),) = executable.execute([[client.buffer_from_host(X)]])
    np.testing.assert_array_equal(np.asarray(same), X)
    np.testing.assert_array_equal(np.asarray(negative), -X)
    assert same.device == negative.device == executable.addressable_devices[0]


def test_execute_sharded_gives_one_list(backend: Backend, client: Client, device: Device) -> None:
    executable = client.compile(backend.programs.add((4,)))
    (z,) = executable.execute_sharded([client.buffer_from_host(X), client.buffer_from_host(Y)], device)
    np.testing.assert_array_equal(np.asarray(z), X + Y)


def test_execute_portable_runs_on_any_device(backend: Backend, client: Client) -> None:
    executable = client.compile(backend.programs.double((4,)), CompileOptions(compile_portable_executable=True))
    assert list(executable.addressable_devices) == []
    for device in client.addressable_devices:
        (z,) = executable.execute_portable([client.buffer_from_host(X, device=device)], device)
        assert z.device == device
        np.testing.assert_array_equal(np.asarray(z), 2 * X)


def test_a_device_assignment_is_followed(backend: Backend, client: Client, second: Device) -> None:
    options = CompileOptions(device_assignment=DeviceAssignment(((second.id,),)))
    executable = client.compile(backend.programs.double((4,)), options)
    assert list(executable.addressable_devices) == [second]
    assert executable.device_assignment.device_ids == ((second.id,),)
    (z,) = executable(X)
    assert z.device == second
    np.testing.assert_array_equal(np.asarray(z), 2 * X)


def test_returned_futures_tell_the_end(backend: Backend, client: Client) -> None:
    executable = client.compile(backend.programs.double((4,)))
    futures: list[Future[None]] = []
    ((z,),) = executable.execute([[client.buffer_from_host(X)]], returned_futures=futures)
    assert len(futures) == 1
    futures[0].result(60)
    assert z.ready().done()


def test_execution_does_not_wait(backend: Backend, client: Client) -> None:
    executable = client.compile(backend.programs.double((4,)))
    with backend.busy(client):
        (z,) = executable(X)
        (w,) = executable(z)
        future = w.to_host()
        assert not z.ready().done()
        assert not future.done()
    np.testing.assert_array_equal(future.result(60), 4 * X)


def test_many_executions_keep_their_order(backend: Backend, client: Client) -> None:
    executable = client.compile(backend.programs.add((4,)))
    one, z = client.buffer_from_host(np.ones(4, np.float32)), client.buffer_from_host(np.zeros(4, np.float32))
    for _ in range(200):
        (z,) = executable(z, one)
    np.testing.assert_array_equal(np.asarray(z), np.full(4, 200))


def test_threads_share_an_executable(backend: Backend, client: Client) -> None:
    executable = client.compile(backend.programs.add((4,)))
    wrong: list[Any] = []

    def work(seed: int) -> None:
        for i in range(30):
            (z,) = executable(np.full(4, seed, np.float32), np.full(4, i, np.float32))
            if np.asarray(z)[0] != seed + i:
                wrong.append((seed, i))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


# What is refused.


def test_arguments_are_counted(backend: Backend, client: Client) -> None:
    executable = client.compile(backend.programs.add((4,)))
    for arguments in ([], [X], [X, X, X]):
        with pytest.raises(InvalidArgumentError):
            executable(*arguments)


@pytest.mark.parametrize("wrong", [np.zeros(5, np.float32), np.zeros((2, 2), np.float32), np.zeros(4, np.int32)])
def test_arguments_of_another_shape_are_refused(backend: Backend, client: Client, wrong: Any) -> None:
    executable = client.compile(backend.programs.add((4,)))
    with pytest.raises(PjrtError) as caught:
        executable(X, wrong)[0].to_host().result(60)
    assert caught.value.code in (StatusCode.INVALID_ARGUMENT, StatusCode.INTERNAL)


def test_arguments_on_another_device_are_refused(backend: Backend, client: Client, second: Device) -> None:
    executable = client.compile(backend.programs.add((4,)))
    there = client.buffer_from_host(X, device=second)
    with pytest.raises(InvalidArgumentError):
        executable(X, there)


def test_deleted_arguments_are_refused(backend: Backend, client: Client) -> None:
    executable = client.compile(backend.programs.double((4,)))
    x = client.buffer_from_host(X)
    x.delete()
    with pytest.raises((FailedPreconditionError, InvalidArgumentError)):
        executable(x)


def test_buffers_of_another_client_are_refused(backend: Backend, new_client: Callable[..., Client]) -> None:
    here, there = new_client(), new_client()
    executable = here.compile(backend.programs.double((4,)))
    with pytest.raises(InvalidArgumentError):
        executable(there.buffer_from_host(X))


def test_a_wrong_number_of_lists_is_refused(backend: Backend, client: Client) -> None:
    executable = client.compile(backend.programs.double((4,)))
    x = client.buffer_from_host(X)
    for lists in ([], [[x], [x]]):
        with pytest.raises(InvalidArgumentError):
            executable.execute(lists)


def test_a_device_without_a_part_is_refused(backend: Backend, client: Client, second: Device) -> None:
    executable = client.compile(backend.programs.double((4,)))
    with pytest.raises(InvalidArgumentError):
        executable.execute_sharded([client.buffer_from_host(X, device=second)], second)


def test_a_deleted_executable_is_refused(backend: Backend, client: Client) -> None:
    executable = client.compile(backend.programs.double((4,)))
    assert not executable.is_deleted
    executable.delete()
    executable.delete()
    assert executable.is_deleted
    with pytest.raises(FailedPreconditionError):
        executable(X)
    with pytest.raises((FailedPreconditionError, InvalidArgumentError)):
        executable.execute([[client.buffer_from_host(X)]])


@pytest.mark.usefixtures("second")
def test_the_short_form_is_for_one_device(backend: Backend, client: Client) -> None:
    executable = client.compile(backend.programs.replica_id(), replicas(2))
    with pytest.raises(InvalidArgumentError):
        executable()


# Donation.


def test_a_donated_argument_is_used_up(backend: Backend, client: Client) -> None:
    executable = client.compile(backend.programs.double((4,), donate=True))
    x = client.buffer_from_host(X)
    (z,) = executable(x)
    assert x.is_deleted
    np.testing.assert_array_equal(np.asarray(z), 2 * X)
    with pytest.raises((FailedPreconditionError, InvalidArgumentError)):
        executable(x)


def test_an_argument_keeps_its_value_when_others_come(backend: Backend, client: Client) -> None:
    executable = client.compile(backend.programs.double((4,)))
    x = client.buffer_from_host(X)
    executable(x)[0].ready().result(60)
    others = [client.buffer_from_host(np.full(4, number, np.float32)) for number in range(8)]
    np.testing.assert_array_equal(x.to_host().result(60), X)
    np.testing.assert_array_equal(np.asarray(executable(x)[0]), 2 * X)
    for number, other in enumerate(others):
        np.testing.assert_array_equal(np.asarray(other), np.full(4, number, np.float32))


@pytest.mark.parametrize("lent", ["external_reference", "raw", None])
def test_donated_memory_is_used_again(backend: Backend, client: Client, lent: str | None) -> None:
    """Also where it was lent before, and given back."""
    if not backend.uses_donated_memory:
        raise Absent("results in donated memory")
    executable = client.compile(backend.programs.double((1024,), donate=True))
    x = client.buffer_from_host(np.ones(1024, np.float32))
    x.ready().result(60)
    if lent:
        getattr(x, lent)().release()
    pointer = x.unsafe_pointer()
    (z,) = executable(x)
    z.ready().result(60)
    assert z.unsafe_pointer() == pointer
    np.testing.assert_array_equal(np.asarray(z), np.full(1024, 2, np.float32))


def test_donation_can_be_refused(backend: Backend, client: Client, device: Device) -> None:
    executable = client.compile(backend.programs.double((4,), donate=True))
    x = client.buffer_from_host(X)
    options = ExecuteOptions(non_donatable_input_indices=frozenset({0}))
    (z,) = executable.execute_sharded([x], device, options)
    np.testing.assert_array_equal(np.asarray(z), 2 * X)
    assert not x.is_deleted
    np.testing.assert_array_equal(np.asarray(x), X)


def test_reads_before_a_donation_see_the_old_value(backend: Backend, client: Client) -> None:
    executable = client.compile(backend.programs.double((1 << 16,), donate=True))
    value = np.ones(1 << 16, np.float32)
    x = client.buffer_from_host(value)
    for _ in range(10):
        before = x.to_host()
        (x,) = executable(x)
        np.testing.assert_array_equal(before.result(60), value)
        value = value * 2


def test_what_is_borrowed_is_not_donated(backend: Backend, client: Client) -> None:
    executable = client.compile(backend.programs.double((4,), donate=True))
    x = client.buffer_from_host(X)
    x.ready().result(60)
    with x.external_reference():
        try:
            (z,) = executable(x)
        except (InvalidArgumentError, FailedPreconditionError):
            assert not x.is_deleted
        else:
            np.testing.assert_array_equal(np.asarray(z), 2 * X)


# Errors.


@pytest.mark.parametrize("code", [code for code in StatusCode if code], ids=lambda code: code.name)
def test_an_error_of_a_program_arrives_at_its_outputs(backend: Backend, client: Client, code: StatusCode) -> None:
    executable = client.compile(backend.programs.fail(code, "the wheel came off", ("type.example/part", "left wheel")))
    futures: list[Future[None]] = []
    ((z,),) = executable.execute([[]], returned_futures=futures)
    for future in (futures[0], z.ready(), z.to_host()):
        error = future.exception(60)
        assert error is not None
        assert error.code == code
        assert "the wheel came off" in error.message
        if backend.has_payloads:
            assert error.payloads["type.example/part"] == b"left wheel"


def test_an_error_travels_on(backend: Backend, client: Client) -> None:
    broken = client.compile(backend.programs.fail(13, "broken"))
    double = client.compile(backend.programs.double((2,), donate=True))
    (z,) = broken()
    for _ in range(3):
        (z,) = double(z)
    with pytest.raises(InternalError, match="broken"):
        z.to_host().result(60)
    (fine,) = double(np.ones(2, np.float32))
    np.testing.assert_array_equal(np.asarray(fine), [2, 2])


def test_a_poisoned_execution_fails(backend: Backend, client: Client, device: Device) -> None:
    executable = client.compile(backend.programs.double((4,)))
    x = client.buffer_from_host(X)
    with backend.busy(client):
        (z,) = executable.execute_sharded([x], device, ExecuteOptions(launch_id=77))
        assert not device.poison_execution(78, CancelledError("not this one"))
        assert device.poison_execution(77, CancelledError("called off", payloads={"type.example/by": b"a test"}))
    with pytest.raises(CancelledError, match="called off") as caught:
        z.to_host().result(60)
    if backend.has_payloads:
        assert caught.value.payloads == {"type.example/by": b"a test"}
    (w,) = executable(x)
    np.testing.assert_array_equal(np.asarray(w), 2 * X)


# Several devices.


@pytest.mark.usefixtures("second")
def test_replicas_know_who_they_are(backend: Backend, client: Client) -> None:
    executable = client.compile(backend.programs.replica_id(), replicas(2))
    assert executable.num_replicas == 2
    assert list(executable.addressable_device_logical_ids) == [(0, 0), (1, 0)]
    outputs = executable.execute([[], []])
    assert [int(np.asarray(z)) for (z,) in outputs] == [0, 1]
    assert [z.device for (z,) in outputs] == list(executable.addressable_devices)


@pytest.mark.usefixtures("second")
def test_partitions_know_who_they_are(backend: Backend, client: Client) -> None:
    options = CompileOptions(num_partitions=2, use_spmd_partitioning=True)
    executable = client.compile(backend.programs.partition_id(), options)
    assert executable.num_partitions == 2
    assert list(executable.addressable_device_logical_ids) == [(0, 0), (0, 1)]
    assert [int(np.asarray(z)) for (z,) in executable.execute([[], []])] == [0, 1]


@pytest.mark.usefixtures("second")
def test_a_sum_over_replicas(backend: Backend, client: Client) -> None:
    executable = client.compile(backend.programs.all_reduce((4,), 2), replicas(2))
    for i in range(5):
        arguments = [
            [client.buffer_from_host(X * scale + i, device=device)]
            for scale, device in zip((1, 10), executable.addressable_devices, strict=True)
        ]
        for (z,) in executable.execute(arguments):
            np.testing.assert_array_equal(np.asarray(z), 11 * X + 2 * i)


@pytest.mark.usefixtures("second")
def test_a_sum_over_replicas_started_one_by_one(backend: Backend, client: Client) -> None:
    executable = client.compile(backend.programs.all_reduce((4,), 2), replicas(2))
    outputs = [
        executable.execute_sharded([client.buffer_from_host(X, device=device)], device, ExecuteOptions(launch_id=5))
        for device in executable.addressable_devices
    ]
    for (z,) in outputs:
        np.testing.assert_array_equal(z.to_host().result(60), 2 * X)


def test_more_devices_than_there_are_is_refused(backend: Backend, client: Client) -> None:
    with pytest.raises(InvalidArgumentError):
        client.compile(backend.programs.replica_id(), replicas(16))


# Host callbacks.


def test_a_program_sends_to_the_host(backend: Backend, client: Client, device: Device) -> None:
    executable = client.compile(backend.programs.send((4,), channel=7))
    seen: list[tuple[bytes, int, bool]] = []

    def take(data: bytes, total: int, done: bool) -> None:
        seen.append((bytes(data), total, done))

    options = ExecuteOptions(send_callbacks=[[SendCallback(7, take)]])
    (z,) = executable.execute_sharded([client.buffer_from_host(X)], device, options)
    np.testing.assert_array_equal(z.to_host().result(60), X)
    assert b"".join(data for data, _, _ in seen) == X.tobytes()
    assert [done for _, _, done in seen] == [False] * (len(seen) - 1) + [True]
    assert {total for _, total, _ in seen} == {16}


def test_a_taker_that_raises_fails_the_execution(backend: Backend, client: Client, device: Device) -> None:
    executable = client.compile(backend.programs.send((4,), channel=7))

    def take(data: bytes, total: int, done: bool) -> None:
        raise NotFoundError("nobody is listening")

    options = ExecuteOptions(send_callbacks=[[SendCallback(7, take)]])
    (z,) = executable.execute_sharded([client.buffer_from_host(X)], device, options)
    with pytest.raises(NotFoundError, match="nobody is listening"):
        z.to_host().result(60)


def test_a_program_receives_from_the_host(backend: Backend, client: Client, device: Device) -> None:
    executable = client.compile(backend.programs.receive((4,), channel=3))
    sizes: list[tuple[int, int]] = []

    def give(stream: CopyToDeviceStream) -> None:
        assert stream.total_bytes == 16
        assert 16 % stream.granule_size == 0
        for start in (0, 8):
            stream.add_chunk(X.tobytes()[start : start + 8]).result(60)
            sizes.append((stream.current_bytes, stream.total_bytes))
        given.set()

    given = threading.Event()  # the result may be there before it
    options = ExecuteOptions(recv_callbacks=[[RecvCallback(3, give)]])
    (z,) = executable.execute_sharded([], device, options)
    np.testing.assert_array_equal(z.to_host().result(60), X)
    assert given.wait(60)
    assert sizes == [(8, 16), (16, 16)]


def test_what_a_program_receives_may_come_later(backend: Backend, client: Client, device: Device) -> None:
    executable = client.compile(backend.programs.receive((4,), channel=3))
    streams: list[CopyToDeviceStream] = []
    asked = threading.Event()

    def keep(stream: CopyToDeviceStream) -> None:
        streams.append(stream)
        asked.set()

    options = ExecuteOptions(recv_callbacks=[[RecvCallback(3, keep)]])
    (z,) = executable.execute_sharded([], device, options)
    assert asked.wait(60)
    assert not z.ready().done()
    streams.pop().add_chunk(X.tobytes()).result(60)
    np.testing.assert_array_equal(z.to_host().result(60), X)


def test_chunks_that_do_not_fit_are_refused(backend: Backend, client: Client, device: Device) -> None:
    executable = client.compile(backend.programs.receive((4,), channel=3))
    caught: list[PjrtError] = []

    def give(stream: CopyToDeviceStream) -> None:
        for chunk in (bytes(3), bytes(20)):
            try:
                stream.add_chunk(chunk).result(60)
            except PjrtError as error:
                caught.append(error)
        stream.add_chunk(X.tobytes()).result(60)

    options = ExecuteOptions(recv_callbacks=[[RecvCallback(3, give)]])
    (z,) = executable.execute_sharded([], device, options)
    np.testing.assert_array_equal(z.to_host().result(60), X)
    assert [error.code for error in caught] == [StatusCode.INVALID_ARGUMENT] * 2


def test_a_channel_without_a_callback_fails_the_execution(backend: Backend, client: Client) -> None:
    (z,) = client.compile(backend.programs.receive((4,), channel=3))()
    with pytest.raises(PjrtError):
        z.to_host().result(60)


def test_a_program_tells_intermediate_values(backend: Backend, client: Client, device: Device) -> None:
    executable = client.compile(backend.programs.tell((4,), callback_id=2))
    seen: list[tuple[int, int, list[float], int]] = []

    def note(replica: int, partition: int, value: np.ndarray[Any, Any], index: int) -> None:
        assert not value.flags.writeable
        seen.append((replica, partition, value.tolist(), index))

    options = ExecuteOptions(hlo_output_callbacks=[HloOutputCallback(2, 1, note)])
    (z,) = executable.execute_sharded([client.buffer_from_host(X)], device, options)
    z.ready().result(60)
    assert seen == [(0, 0, X.tolist(), 0)]


# Contexts and memory kinds.


def test_an_execute_context_may_be_closed_at_once(backend: Backend, client: Client, device: Device) -> None:
    executable = client.compile(backend.programs.double((4,)))
    with client.create_execute_context() as context:
        (z,) = executable.execute_sharded([client.buffer_from_host(X)], device, ExecuteOptions(context=context))
    context.close()
    np.testing.assert_array_equal(np.asarray(z), 2 * X)


def test_results_go_to_the_memory_kind_of_the_program(backend: Backend, client: Client, device: Device) -> None:
    executable = client.compile(backend.programs.to_memory((4,), "unpinned_host", "pinned_host"))
    spaces = {space.kind: space for space in device.memory_spaces}
    x = client.buffer_from_host(X, memory_space=spaces["unpinned_host"])
    (z,) = executable.execute_sharded([x], device)
    assert z.memory_space == spaces["pinned_host"]
    np.testing.assert_array_equal(np.asarray(z), X)
