"""Connections: servers that cannot be reached or are lost, threads, destructors, and what is left at the server."""

from __future__ import annotations

import gc
import queue
import re
import signal
import subprocess
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from remote_fixtures import Serve
from waiting import wait_until, wait_until_freed

import pjrt
from pjrt import remote
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, PjrtError, UnavailableError
from pjrt.remote.protocol.versions import MOST_INLINE_BYTES

DOUBLE = """
func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}"""
ENDLESS = """
func.func public @main(%x: tensor<i32>) -> tensor<i32> {
  %r = stablehlo.while(%i = %x) : tensor<i32>
    cond {
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %more = stablehlo.compare GE, %i, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %both = stablehlo.and %i, %one : tensor<i32>
      stablehlo.return %both : tensor<i32>
    }
  return %r : tensor<i32>
}"""
SECONDS = 120
"""After these, what waits for a lost server counts as hanging."""


def test_servers_share_options_and_differ_in_some() -> None:
    common = remote.ServeOptions(platform_name="shared", save_executables=True)
    with pjrt.client("reference") as local:
        for changes, name in ((dict[str, Any](), "shared"), ({"platform_name": "own"}, "own")):
            with (
                remote.serve(local, options=common, **changes) as server,
                pjrt.client("remote", address=server.address) as client,
            ):
                assert client.platform_name == name
        with pytest.raises(TypeError, match="unknown"):
            remote.serve(local, options=common, unknown=1)


# Small arrays, which travel with their requests.


@pytest.mark.parametrize("inline", [True, False], ids=["a server that takes them", "one that does not"])
def test_arrays_of_all_sizes_come_back(client: Any, monkeypatch: pytest.MonkeyPatch, inline: bool) -> None:
    beside: list[int] = []
    connection = client.connection
    for name in ("store", "fetch"):
        call = getattr(connection, name)
        monkeypatch.setattr(
            connection,
            name,
            lambda handle, data, *rest, call=call: (beside.append(data.nbytes), call(handle, data, *rest)),
        )
    if not inline:
        monkeypatch.setattr(connection, "most_inline", 0)
    for count in (1, MOST_INLINE_BYTES, MOST_INLINE_BYTES + 1):
        value = (np.arange(count) % 251).astype(np.uint8)
        done = threading.Event()
        buffer = client.buffer_from_host(value, on_done_with_host_buffer=done.set)
        assert done.wait(SECONDS)
        np.testing.assert_array_equal(np.asarray(buffer), value)
    larger = [MOST_INLINE_BYTES + 1] if inline else [1, MOST_INLINE_BYTES, MOST_INLINE_BYTES + 1]
    assert sorted(beside) == sorted(larger * 2)  # there and back


# Servers that are not there.


def test_a_missing_server_is_an_error_with_its_address() -> None:
    with pytest.raises(UnavailableError, match=re.escape("grpc://127.0.0.1:9")):
        pjrt.client("remote", address="grpc://127.0.0.1:9")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "PJRT_REMOTE_ADDRESS"),
        ({"address": 7}, "address"),
        ({"address": "grpc://nohost"}, "grpc://HOST:PORT"),
        ({"address": "grpc://127.0.0.1:9", "timeout": 0}, "timeout"),
        ({"address": "grpc://127.0.0.1:9", "heartbeat_timeout": 1}, "heartbeat_timeout"),
        ({"address": "grpc://127.0.0.1:9", "port": 9}, "no option 'port'"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PJRT_REMOTE_ADDRESS", raising=False)
    with pytest.raises(InvalidArgumentError, match=re.escape(message)):
        pjrt.client("remote", **options)


def test_the_address_may_come_from_the_environment(server: remote.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_REMOTE_ADDRESS", server.address)
    with pjrt.client("remote") as client:
        assert len(client.devices) == 2


@pytest.mark.full
def test_a_server_that_dies_fails_all_that_wait(serving: Serve) -> None:
    killed = serving("reference")
    client = pjrt.client("remote", address=killed.address)
    endless = client.compile(ENDLESS)
    x = client.buffer_from_host(np.float32(1))
    (never,) = endless(np.int32(1))
    waiting = [never.ready(), never.to_host()]
    errors: list[PjrtError | None] = []
    threads = [threading.Thread(target=lambda each=each: errors.append(each.exception(SECONDS))) for each in waiting]
    for thread in threads:
        thread.start()
    killed.process.send_signal(signal.SIGKILL)
    for thread in threads:
        thread.join(SECONDS)
    assert [type(error) for error in errors] == [UnavailableError] * 2
    assert killed.address in str(errors[0])
    for call in (
        lambda: client.buffer_from_host(np.float32(1)),
        lambda: client.compile(DOUBLE),
        lambda: endless(np.int32(1)),
        x.to_host,
        x.ready,
        lambda: x.copy_to(x.device),
    ):
        with pytest.raises(UnavailableError):
            call()
    x.delete()
    client.close()
    with pytest.raises(FailedPreconditionError):
        client.compile(DOUBLE)


def test_a_server_that_stops_fails_later_calls(server: remote.Server, client: Any) -> None:
    x = client.buffer_from_host(np.ones(4, np.float32))
    np.testing.assert_array_equal(np.asarray(x), np.ones(4))
    server.stop()
    with pytest.raises(UnavailableError):
        x.to_host().result(SECONDS)
    with pytest.raises(UnavailableError):
        client.buffer_from_host(np.ones(4, np.float32)).ready().result(SECONDS)


def test_a_close_fails_what_waits(serving: Serve) -> None:
    client = pjrt.client("remote", address=serving("reference").address)
    (never,) = client.compile(ENDLESS)(np.int32(1))
    ready = never.ready()
    assert not ready.done()
    client.close()
    with pytest.raises(FailedPreconditionError, match="closed"):
        ready.result(SECONDS)


def test_a_release_callback_comes_though_the_server_is_gone(server: remote.Server, client: Any) -> None:
    server.stop()
    calls: list[int] = []
    semantics = pjrt.HostBufferSemantics.IMMUTABLE_UNTIL_TRANSFER_COMPLETES
    try:
        client.buffer_from_host(
            np.ones(4, np.float32), semantics=semantics, on_done_with_host_buffer=lambda: calls.append(1)
        )
    except UnavailableError:
        return  # the client knew already, and has taken nothing
    wait_until(lambda: bool(calls))
    assert calls == [1]


SERVER_THAT_KEEPS_PYTHON = """
import ctypes
import pjrt
from pjrt import remote

with pjrt.client("cpu") as client, remote.serve(client) as server:
    print(server.address, flush=True)
    input()
    print("keeping", flush=True)
    ctypes.PyDLL(None).sleep(9)  # it keeps Python's lock, as long calls of some libraries do
    input()
"""


@pytest.mark.full
def test_a_server_is_lost_by_its_silence_and_not_by_long_calls() -> None:
    command = [sys.executable, "-c", SERVER_THAT_KEEPS_PYTHON]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            client = pjrt.client("remote", address=process.stdout.readline().strip(), heartbeat_timeout=4)
            losses: queue.SimpleQueue[PjrtError] = queue.SimpleQueue()
            client.connection.on_loss(losses.put)
            process.stdin.write("go\n")
            process.stdin.flush()
            assert process.stdout.readline() == "keeping\n"
            np.testing.assert_array_equal(client.buffer_from_host(np.arange(3)).to_host().result(SECONDS), np.arange(3))
            assert losses.empty()
            process.send_signal(signal.SIGSTOP)
            assert isinstance(losses.get(timeout=SECONDS), UnavailableError)
            client.connection.on_loss(losses.put)  # also when it comes late
            assert isinstance(losses.get(timeout=SECONDS), UnavailableError)
            client.close()
        finally:
            process.kill()


@pytest.mark.full
def test_requests_that_a_server_does_not_take_have_a_limit(serving: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pjrt.remote.client.connection._MOST_REQUESTS", 100)
    slow = serving("reference")
    with pjrt.client("remote", address=slow.address, heartbeat_timeout=120) as client:
        double = client.compile(DOUBLE)
        x = client.buffer_from_host(np.ones(4, np.float32))
        x.ready().result(SECONDS)
        stream = client.connection._service._stream
        results = []

        def work() -> None:
            for _ in range(20_000):
                results[:] = double(x)

        thread = threading.Thread(target=work)
        slow.process.send_signal(signal.SIGSTOP)
        try:
            thread.start()
            wait_until(lambda: stream.waiting > 100)
            for _ in range(50):
                assert stream.waiting < 200  # releases of results that nobody uses are sent, too
                thread.join(0.005)
            assert thread.is_alive()
        finally:
            slow.process.send_signal(signal.SIGCONT)
        thread.join(SECONDS)
        assert not thread.is_alive()
        np.testing.assert_array_equal(np.asarray(results[0]), np.full(4, 2))


def test_bytes_that_a_server_does_not_take_have_a_limit(serving: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pjrt.remote.client.connection._MOST_BYTES", 1 << 20)
    slow = serving("reference")
    client = pjrt.client("remote", address=slow.address, heartbeat_timeout=120)
    thread = threading.Thread(target=lambda: [sent.append(client.buffer_from_host(array)) for _ in range(20)])
    array, sent = np.ones(1 << 17), []  # type: ignore[var-annotated]
    slow.process.send_signal(signal.SIGSTOP)
    try:
        thread.start()
        wait_until(lambda: len(sent) >= 2)
        thread.join(0.5)
        assert thread.is_alive()
        assert len(sent) == 2
    finally:
        slow.process.send_signal(signal.SIGCONT)
    thread.join(SECONDS)
    assert len(sent) == 20
    np.testing.assert_array_equal(np.asarray(sent[-1]), array)
    client.close()


# What is left at the server.


def test_handles_are_released(client: Any, session: Any) -> None:
    double = client.compile(DOUBLE)
    x = client.buffer_from_host(np.ones(4, np.float32))
    for _ in range(20):
        (x,) = double(x)
        copy = x.copy_to(client.devices[1])
        assert float(copy[0]) == float(x[0])
    futures: list[Any] = []
    double.execute([[x]], returned_futures=futures)
    assert len(session.arrays) > 0
    del x, copy, futures
    wait_until(lambda: len(session.arrays) == 0 and len(session.futures) == 0)
    assert len(session.executables) == 1
    del double
    gc.collect()
    wait_until(lambda: len(session.executables) == 0)


def test_deletions_release_before_the_end_of_the_object(client: Any, session: Any) -> None:
    buffers = [client.buffer_from_host(np.ones(4, np.float32)) for _ in range(5)]
    for buffer in buffers:
        buffer.ready().result(SECONDS)
        buffer.delete()
    wait_until(lambda: len(session.arrays) == 0)


def test_a_forgotten_client_ends_its_session(server: remote.Server) -> None:
    client = pjrt.client("remote", address=server.address)
    number = client.connection.session.session_id
    (y,) = client.compile(DOUBLE)(np.ones(4, np.float32))
    kept = weakref.ref(client)
    del client
    gc.collect()
    np.testing.assert_array_equal(np.asarray(y), np.full(4, 2))  # a buffer keeps its client
    del y

    wait_until_freed(kept)  # the thread of the transfer may still be at its end

    def is_over() -> bool:
        try:
            server.session(number)
        except PjrtError:
            return True
        return False

    wait_until(is_over)


def test_an_executable_may_end_with_the_interpreter(server: remote.Server) -> None:
    code = f"""
import pjrt
client = pjrt.client("remote", address={server.address!r})
kept = [client.compile({DOUBLE!r})]
kept.append(kept)  # only the garbage collection at the end finds it
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert "Exception ignored" not in done.stderr
    assert "Traceback" not in done.stderr


def test_objects_may_end_after_the_names_of_their_modules(server: remote.Server) -> None:
    code = f"""
import builtins, sys
import numpy as np
import pjrt
client = pjrt.client("remote", address={server.address!r})
double = client.compile({DOUBLE!r})
futures = []
((y,),) = double.execute([[client.buffer_from_host(np.ones(4, np.float32))]], returned_futures=futures)
manager = client.create_buffers_for_async_host_to_device([pjrt.ShapeSpec((4,), np.float32)])
kept = [client, double, futures, y, y.ready(), manager, manager.retrieve_buffer(0)]
builtins.kept = [kept, [module for name, module in sys.modules.items() if name not in ("builtins", "sys")]]
del kept, double, futures, y, manager, client
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.full
def test_the_garbage_collector_may_end_buffers_anywhere(client: Any, session: Any) -> None:
    double = client.compile(DOUBLE)
    thresholds = gc.get_threshold()
    gc.set_threshold(7)  # so that it runs in the middle of sends
    try:

        def work() -> None:
            for _ in range(40):
                (y,) = double(np.ones(4, np.float32))
                cycle: list[Any] = [y]
                cycle.append(cycle)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
        assert not any(thread.is_alive() for thread in threads)
    finally:
        gc.set_threshold(*thresholds)

    def are_released() -> bool:
        gc.collect()  # each time: a call does nothing while another thread is in the middle of a collection
        return len(session.arrays) == 0

    wait_until(are_released)


def test_a_connection_that_the_end_of_the_interpreter_closes_is_not_lost() -> None:
    with pjrt.client("reference") as device, remote.serve(device) as server:
        client = pjrt.client("remote", address=server.address)
        connection = client.connection  # type: ignore[attr-defined]
        losses: list[PjrtError] = []
        connection.on_loss(losses.append)
        finalizers = weakref.finalize._registry  # type: ignore[attr-defined]  # what the interpreter calls at its end
        (close,) = [each for each in finalizers if (alive := each.peek()) is not None and alive[0] is connection]
        close()
        with pytest.raises(PjrtError):
            client.compile(DOUBLE)
        assert losses == []
        client.close()
