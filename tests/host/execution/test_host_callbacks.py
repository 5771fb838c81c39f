"""Values that running programs and the host exchange: send, receive, feeds, intermediate values, user data."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import toys

import pjrt
from pjrt.host import HostClient, RunContext


def run_with(client: HostClient, options: pjrt.ExecuteOptions) -> pjrt.Buffer:
    exe = client.compile("program")
    return exe.execute_sharded([client.buffer_from_host(toys.floats())], client.devices[0], options)[0]


def with_context(run: Any, **options: Any) -> HostClient:
    return toys.client(run, facts={"takes_context": True}, **options)


def test_send_gives_the_host_the_bytes() -> None:
    def run(context: RunContext, x: np.ndarray) -> np.ndarray:
        context.send(5, x[::-1])
        return x

    got: list[tuple[bytes, int, bool]] = []
    with with_context(run) as client:
        callback = pjrt.SendCallback(5, lambda *chunk: got.append(chunk))
        run_with(client, pjrt.ExecuteOptions(send_callbacks=[[callback]])).ready().result(toys.TIMEOUT)
        assert got == [(toys.floats()[::-1].tobytes(), 16, True)]
        for callbacks in ([], [[]], [[pjrt.SendCallback(6, print)]]):
            with pytest.raises(pjrt.NotFoundError, match="channel 5"):
                run_with(client, pjrt.ExecuteOptions(send_callbacks=callbacks)).ready().result(toys.TIMEOUT)


def test_an_exception_in_a_callback_fails_the_execution() -> None:
    def run(context: RunContext, x: np.ndarray) -> np.ndarray:
        context.send(5, x)
        return x

    def fail(*_: object) -> None:
        raise OSError("disk full")

    with with_context(run) as client:
        out = run_with(client, pjrt.ExecuteOptions(send_callbacks=[[pjrt.SendCallback(5, fail)]]))
        with pytest.raises(pjrt.InternalError, match="OSError: disk full"):
            np.asarray(out)


def receiving(context: RunContext, x: np.ndarray) -> np.ndarray:
    return x + context.receive(9, toys.spec("f32[4]"))


def test_receive_takes_chunks_at_once_or_later() -> None:
    streams: list[pjrt.CopyToDeviceStream] = []
    came = threading.Event()

    def later(stream: pjrt.CopyToDeviceStream) -> None:
        streams.append(stream)
        came.set()

    def at_once(stream: pjrt.CopyToDeviceStream) -> None:
        stream.add_chunk(toys.floats()).result()

    with with_context(receiving) as client:
        out = run_with(client, pjrt.ExecuteOptions(recv_callbacks=[[pjrt.RecvCallback(9, at_once)]]))
        np.testing.assert_array_equal(np.asarray(out), 2 * toys.floats())
        out = run_with(client, pjrt.ExecuteOptions(recv_callbacks=[[pjrt.RecvCallback(9, later)]]))
        assert came.wait(toys.TIMEOUT)
        (stream,) = streams
        assert (stream.total_bytes, stream.granule_size, stream.current_bytes) == (16, 4, 0)
        with pytest.raises(pjrt.InvalidArgumentError, match="multiple of 4"):
            stream.add_chunk(bytes(3))
        with pytest.raises(pjrt.InvalidArgumentError, match="16 that are left"):
            stream.add_chunk(bytes(20))
        stream.add_chunk(toys.floats()[:1].tobytes())
        assert stream.current_bytes == 4
        assert not out.ready().done()
        stream.add_chunk(toys.floats()[1:])
        np.testing.assert_array_equal(np.asarray(out), 2 * toys.floats())
        with pytest.raises(pjrt.InvalidArgumentError, match="0 that are left"):
            stream.add_chunk(bytes(4))


def test_a_receive_that_gets_nothing_ends_when_the_execution_is_poisoned() -> None:
    came = threading.Event()
    client = with_context(receiving)
    options = pjrt.ExecuteOptions(launch_id=4, recv_callbacks=[[pjrt.RecvCallback(9, lambda stream: came.set())]])
    out = run_with(client, options)
    assert came.wait(toys.TIMEOUT)
    assert client.devices[0].poison_execution(4, pjrt.CancelledError("enough"))
    with pytest.raises(pjrt.CancelledError, match="enough"):
        np.asarray(out)
    client.close()  # the device's thread is free again


def test_each_device_has_its_own_callbacks() -> None:
    def run(context: RunContext, x: np.ndarray) -> np.ndarray:
        context.send(1, np.int32(context.device.id))
        return x

    got: dict[int, bytes] = {}
    with toys.client(run, facts={"takes_context": True}, num_devices=2) as client:
        callbacks = [
            [pjrt.SendCallback(1, lambda data, *_, place=place: got.update({place: data}))] for place in (0, 1)
        ]
        outs = client.compile("program", toys.replicas(2)).execute(
            [[client.buffer_from_host(toys.floats(), device=d)] for d in client.devices],
            pjrt.ExecuteOptions(send_callbacks=callbacks),
        )
        for (out,) in outs:
            out.ready().result(toys.TIMEOUT)
    assert {place: int.from_bytes(data, "little") for place, data in got.items()} == {0: 0, 1: 1}


def test_feeds_go_both_ways_in_order() -> None:
    def run(context: RunContext, x: np.ndarray) -> np.ndarray:
        context.outfeed(x.copy())
        return x + context.infeed() + 10 * context.infeed()

    with with_context(run) as client:
        device = client.devices[0]
        (out,) = client.compile("program")(toys.floats())
        np.testing.assert_array_equal(device.outfeed.get(toys.TIMEOUT), toys.floats())
        device.infeed.put(np.float32(1))
        device.infeed.put(np.float32(2))
        np.testing.assert_array_equal(np.asarray(out), toys.floats() + 21)
        assert len(device.outfeed) == 0
        with pytest.raises(pjrt.DeadlineExceededError, match="outfeed"):
            device.outfeed.get(0)


def test_intermediate_values_are_handed_out_read_only() -> None:
    def run(context: RunContext, x: np.ndarray) -> np.ndarray:
        context.hand_out(3, [x + 1, x + 2])
        context.hand_out(4, [x])
        return x

    got: list[tuple[int, int, float, int, bool]] = []
    callback = pjrt.HloOutputCallback(
        3,
        2,
        lambda replica, partition, array, index: got.append(
            (replica, partition, float(array[0]), index, array.flags.writeable)
        ),
    )
    with with_context(run) as client:
        run_with(client, pjrt.ExecuteOptions(hlo_output_callbacks=[callback])).ready().result(toys.TIMEOUT)
    assert got == [(0, 0, 1.0, 0, False), (0, 0, 2.0, 1, False)]


def test_user_data_of_an_execute_context_reaches_the_function() -> None:
    def run(context: RunContext, x: np.ndarray) -> np.ndarray:
        seen.append(dict(context.user_data))
        return x

    seen: list[dict[int, int]] = []
    with with_context(run) as client:
        type_id = client.register_ffi_type("my type")
        assert client.register_ffi_type("my type") == type_id
        assert client.register_ffi_type("another") != type_id
        with client.create_execute_context() as context:
            context.add_user_data(type_id, 0x1234)
            with pytest.raises(pjrt.AlreadyExistsError):
                context.add_user_data(type_id, 1)
            run_with(client, pjrt.ExecuteOptions(context=context)).ready().result(toys.TIMEOUT)
        run_with(client, pjrt.ExecuteOptions()).ready().result(toys.TIMEOUT)
        with pytest.raises(pjrt.FailedPreconditionError, match="closed"):
            context.add_user_data(99, 1)
    assert seen == [{type_id: 0x1234}, {}]


def test_ffi_handlers_are_found_by_name() -> None:
    client = toys.negate()
    client.register_ffi_handler("double", len, traits=1)
    client.register_ffi_handler("double", len, traits=1)
    client.register_ffi_handler("native", 0x1000)
    assert client.ffi_handlers.find("double").function is len
    assert dict(client.ffi_handlers)["native"].traits == 0
    assert "other" not in client.ffi_handlers
    with pytest.raises(pjrt.AlreadyExistsError, match="'double'"):
        client.register_ffi_handler("double", print)
    with pytest.raises(pjrt.NotFoundError, match="double, native"):
        client.ffi_handlers.find("other")
    with pytest.raises(pjrt.InvalidArgumentError, match="function or the address"):
        client.register_ffi_handler("x", "text")  # type: ignore[arg-type]


def test_a_program_does_not_wait_for_ever_for_a_host_that_never_asked_for_the_infeed() -> None:
    def run(context: RunContext, x: np.ndarray) -> np.ndarray:
        return x + context.infeed()

    with with_context(run, collective_timeout=0.01) as client:
        with pytest.raises(pjrt.DeadlineExceededError, match=r"nothing came on the infeed.*device\.infeed\.put"):
            np.asarray(client.compile("program")(toys.floats())[0])
        assert client.devices[0].infeed is not None
        (out,) = client.compile("program")(toys.floats())
        with pytest.raises(pjrt.DeadlineExceededError):
            out.ready().result(0.1)
        client.devices[0].infeed.put(np.float32(1))
        np.testing.assert_array_equal(np.asarray(out), toys.floats() + 1)
