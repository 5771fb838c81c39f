"""Callbacks of the plugin into Python while a program runs: send, receive, intermediate values."""

from __future__ import annotations

import logging
import threading
from typing import Any

import numpy as np
import pytest
from tiny import TinyProgram
from waiting import wait_until

import pjrt
from pjrt.api.client import Client

X = np.arange(4, dtype=np.float32)


def sending(chunks: int = 1) -> pjrt.Program:
    """A program that sends its argument on channel 7."""
    program = TinyProgram("sending")
    x = program.parameter("f32[4]")
    program.do("send", 7, x, chunks)
    return pjrt.Program(program.result(x).code, format="tiny")


def receiving() -> pjrt.Program:
    """A program whose result is what it receives on channel 9."""
    program = TinyProgram("receiving")
    return pjrt.Program(program.result(program.let("recv", 9, "f32[4]")).code, format="tiny")


@pytest.mark.parametrize("chunks", [1, 3])
def test_what_a_program_sends(client: Client, chunks: int) -> None:
    executable = client.compile(sending(chunks))
    got: list[tuple[bytes, int, bool]] = []
    threads: set[int] = set()

    def take(data: bytes, total: int, done: bool) -> None:
        got.append((data, total, done))
        threads.add(threading.get_ident())

    options = pjrt.ExecuteOptions(send_callbacks=[[pjrt.SendCallback(7, take)]])
    (out,) = executable.execute_sharded([client.buffer_from_host(X)], client.devices[0], options)
    out.ready().result()
    assert b"".join(data for data, _, _ in got) == X.tobytes()
    assert [total for _, total, _ in got] == [16] * chunks
    assert [done for _, _, done in got] == [False] * (chunks - 1) + [True]
    assert threading.get_ident() not in threads


def test_an_exception_of_a_send_fails_the_execution(client: Client) -> None:
    executable = client.compile(sending())

    def refuse(data: bytes, total: int, done: bool) -> None:
        raise pjrt.PermissionDeniedError("not from you")

    options = pjrt.ExecuteOptions(send_callbacks=[[pjrt.SendCallback(7, refuse)]])
    (out,) = executable.execute_sharded([client.buffer_from_host(X)], client.devices[0], options)
    with pytest.raises(pjrt.PermissionDeniedError, match="not from you"):
        out.ready().result()


def test_callbacks_outlive_everything_the_caller_drops(client: Client) -> None:
    executable = client.compile(sending())
    told = threading.Event()

    class Taker:
        def __call__(self, data: bytes, total: int, done: bool) -> None:
            told.set()

    executable.execute_sharded(
        [client.buffer_from_host(X)],
        client.devices[0],
        pjrt.ExecuteOptions(send_callbacks=[[pjrt.SendCallback(7, Taker())]]),
    )
    del executable
    assert told.wait(60)


def test_what_a_program_receives(client: Client) -> None:
    executable = client.compile(receiving())
    seen: dict[str, Any] = {}
    returned = threading.Event()

    def give(stream: pjrt.CopyToDeviceStream) -> None:
        seen.update(total=stream.total_bytes, granule=stream.granule_size, before=stream.current_bytes)
        seen["first"] = stream.add_chunk(X[:2])
        seen["half"] = stream.current_bytes
        seen["second"] = stream.add_chunk(X[2:].tobytes())
        returned.set()

    options = pjrt.ExecuteOptions(recv_callbacks=[[pjrt.RecvCallback(9, give)]])
    (out,) = executable.execute_sharded([], client.devices[0], options)
    np.testing.assert_array_equal(np.asarray(out), X)
    assert returned.wait(60)  # the result may be there before
    assert (seen["total"], seen["before"], seen["half"]) == (16, 0, 8)
    assert seen["granule"] >= 1
    seen["first"].result()
    seen["second"].result()


def test_a_stream_that_is_filled_later_from_another_thread(client: Client) -> None:
    executable = client.compile(receiving())
    streams: list[pjrt.CopyToDeviceStream] = []
    arrived = threading.Event()

    def keep(stream: pjrt.CopyToDeviceStream) -> None:
        streams.append(stream)
        arrived.set()

    options = pjrt.ExecuteOptions(recv_callbacks=[[pjrt.RecvCallback(9, keep)]])
    (out,) = executable.execute_sharded([], client.devices[0], options)
    assert arrived.wait(60)
    assert not out.ready().done()
    streams.pop().add_chunk(X).result()
    np.testing.assert_array_equal(np.asarray(out), X)


def test_a_chunk_that_is_too_large(client: Client) -> None:
    executable = client.compile(receiving())
    errors: list[BaseException | None] = []

    def flood(stream: pjrt.CopyToDeviceStream) -> None:
        try:
            errors.append(stream.add_chunk(bytes(64)).exception(60))
        except pjrt.PjrtError as error:
            errors.append(error)
        stream.add_chunk(X)

    options = pjrt.ExecuteOptions(recv_callbacks=[[pjrt.RecvCallback(9, flood)]])
    (out,) = executable.execute_sharded([], client.devices[0], options)
    out.ready().exception(60)
    assert isinstance(errors[0], pjrt.PjrtError)


def test_a_receiver_that_raises_is_logged_and_the_program_ends(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    executable = client.compile(receiving())

    def fail(stream: pjrt.CopyToDeviceStream) -> None:
        raise ValueError("nothing to give")

    options = pjrt.ExecuteOptions(recv_callbacks=[[pjrt.RecvCallback(9, fail)]])
    with caplog.at_level(logging.ERROR, logger="pjrt"):
        (out,) = executable.execute_sharded([], client.devices[0], options)
        assert out.ready().exception(60) is not None
    assert "nothing to give" in caplog.text


def test_intermediate_values(client: Client) -> None:
    program = TinyProgram("probed")
    x = program.parameter("f32[4]")
    program.do("output", 3, x)
    executable = client.compile(pjrt.Program(program.result(program.let("neg", x)).code, format="tiny"))
    seen: list[tuple[int, int, Any, int]] = []
    taker = pjrt.HloOutputCallback(
        3, 1, lambda replica, partition, value, operand: seen.append((replica, partition, value, operand))
    )
    (out,) = executable.execute_sharded(
        [client.buffer_from_host(X)], client.devices[0], pjrt.ExecuteOptions(hlo_output_callbacks=[taker])
    )
    out.ready().result()
    ((replica, partition, value, operand),) = seen
    assert (replica, partition, operand) == (0, 0, 0)
    np.testing.assert_array_equal(value, X)
    assert not value.flags.writeable


def test_callbacks_are_one_sequence_a_device(client: Client) -> None:
    executable = client.compile(sending())
    callback = pjrt.SendCallback(7, lambda data, total, done: None)
    with pytest.raises(pjrt.InvalidArgumentError, match="one sequence a device"):
        executable.execute_sharded(
            [client.buffer_from_host(X)],
            client.devices[0],
            pjrt.ExecuteOptions(send_callbacks=[[callback], [callback]]),
        )


def test_a_view_of_device_memory_tells_once_when_it_is_gone(client: Client) -> None:
    told: list[int] = []
    view = client.create_view_of_device_buffer(
        X.ctypes.data, pjrt.ShapeSpec((4,), pjrt.ElementType.F32), on_delete=lambda: told.append(1)
    )
    np.testing.assert_array_equal(np.asarray(view), X)
    assert told == []
    view.ready().result()
    view.delete()
    del view
    wait_until(lambda: told)  # the plugin's thread may be the last that lets go of it
    assert told == [1]
