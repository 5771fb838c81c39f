"""Limits of a server: sizes, numbers, memory and pace, in messages to real servers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from message_client import MessageClient, array_fields
from waiting import wait_until

import pjrt
from pjrt import remote
from pjrt.remote import Limits
from pjrt.remote.protocol.messages import wire
from pjrt.remote.security import limits
from pjrt.remote.security.credentials import TOKEN_ATTRIBUTE
from pjrt.remote.security.limits import SessionUsage
from pjrt.remote.server.memory import HostBuffers
from pjrt.remote.server.requests import HANDLERS


@pytest.fixture(scope="module")
def client() -> Iterator[pjrt.Client]:
    with pjrt.client("reference", num_devices=2) as client:
        yield client


@pytest.mark.parametrize(
    "limits", [{"sessions": 0}, {"open_seconds": None}, {"session_bytes": -1}, {"message_bytes": 1 << 31}]
)
def test_what_is_no_limit(limits: dict[str, Any]) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=next(iter(limits))):
        Limits(**limits)


def test_a_host_buffer_arrives_once() -> None:
    buffers = HostBuffers()
    buffers.expect(1, 10)
    with pytest.raises(pjrt.AlreadyExistsError, match="found 1, which arrives"):
        buffers.expect(1, 10)
    buffers.abandon(1)
    buffers.expect(1, 10)
    buffers.store(1, bytes(10))
    with pytest.raises(pjrt.AlreadyExistsError):
        buffers.expect(1, 10)


def test_the_memory_of_a_session(client: pjrt.Client) -> None:
    with remote.serve(client, limits=Limits(session_bytes=10_000)) as server, MessageClient(server.address) as speaker:
        speaker.put(1, np.zeros(6000, np.uint8))
        with pytest.raises(pjrt.ResourceExhaustedError, match=r"may use 9.8 KiB; it uses 5.9 KiB, .* 4.9 KiB more"):
            speaker.put(2, np.zeros(5000, np.uint8))
        speaker.ask("delete_array", array_handle=[1])  # its handle lives on
        speaker.put(3, np.zeros(5000, np.uint8))
        with pytest.raises(pjrt.ResourceExhaustedError):
            speaker.put(4, np.zeros(6000, np.uint8))
        speaker.ask("destruct_array", array_handle=[3])
        speaker.put(5, np.zeros(6000, np.uint8))
        with MessageClient(server.address) as other:
            other.put(1, np.zeros(6000, np.uint8))


def test_the_texts_of_errors_are_short_and_count(client: pjrt.Client) -> None:
    with remote.serve(client, limits=Limits(session_bytes=10_000)) as server, MessageClient(server.address) as speaker:
        (session,) = server._open_sessions()

        def fail(handle: int, message: str, **payload: bytes) -> None:
            status = wire.StatusProto(code=5, message=message)
            status.payload.extend(wire.StatusProto_PayloadEntry(key=key, value=payload[key]) for key in payload)
            spec = wire.ArraySpecProto(**array_fields(np.zeros(0, np.float32)))
            speaker.ask("make_error_arrays", error=status, array_specs=[spec], array_handles=[handle])

        fail(1, "short", place=b"there")
        with pytest.raises(pjrt.NotFoundError, match=r"^NOT_FOUND: short$") as caught:
            session.arrays.get(1).ready().result()
        assert caught.value.payloads == {"place": b"there"}
        fail(2, "x" * 1_000_000, place=b"y" * 1_000_000)
        with pytest.raises(pjrt.NotFoundError, match=r"x{4096} … \(995904 characters more\)$") as caught:
            session.arrays.get(2).ready().result()
        assert not caught.value.payloads
        fail(3, "x" * 4096)
        with pytest.raises(pjrt.ResourceExhaustedError):
            fail(4, "x" * 4096)
        with pytest.raises(pjrt.ResourceExhaustedError):
            session.arrays.get(4)
        speaker.ask("destruct_array", array_handle=[2])
        fail(5, "x" * 4096)
        speaker.ask("destruct_array", array_handle=[1, 3, 4, 5])
        assert session.usage.bytes == 0


def test_errors_that_a_session_keeps_are_short(client: pjrt.Client) -> None:
    """Errors quote what the client sent."""
    with remote.serve(client) as server, MessageClient(server.address) as speaker:
        (session,) = server._open_sessions()
        failure = pjrt.InvalidArgumentError("x" * 1_000_000)
        request = wire.MakeErrorArraysRequest(array_handles=[7])
        assert session._failed(HANDLERS["make_error_arrays_request"], request, failure) is failure
        with pytest.raises(pjrt.InvalidArgumentError, match=r"x{4096} … \("):
            session.arrays.get(7)
        speaker.ask("destruct_array", array_handle=[7])
        assert session.usage.bytes == 0


def test_programs_count(client: pjrt.Client) -> None:
    values = np.arange(1000, dtype=np.float32).tobytes().hex()
    program = f"""func.func @main() -> tensor<1000xf32> {{
      %0 = stablehlo.constant dense<"0x{values}"> : tensor<1000xf32>
      return %0 : tensor<1000xf32> }}"""
    with (
        remote.serve(client, limits=Limits(session_bytes=15_000)) as server,
        pjrt.client("remote", address=server.address) as user,
    ):
        loaded = [user.compile(program) for _ in range(3)]
        (session,) = server._open_sessions()
        assert 12_000 <= session.usage.bytes < 15_000
        with pytest.raises(pjrt.ResourceExhaustedError, match="a session may use"):
            user.compile(program)
        del loaded
        wait_until(lambda: not session.usage.bytes, "the end of the programs")
        user.compile(program)


def test_requests_that_wait_count(client: pjrt.Client) -> None:
    with remote.serve(client, limits=Limits(session_bytes=10_000)) as server, MessageClient(server.address) as speaker:
        (session,) = server._open_sessions()
        value = np.zeros(2, np.float32)
        waiting = [
            speaker.send("make_array_from_host_buffer", **array_fields(value), host_buffer_handle=n, array_handle=n)
            for n in range(1, 6)
        ]
        with pytest.raises(pjrt.ResourceExhaustedError, match="a session may use"):
            speaker.wait(waiting[-1])
        speaker.store(1, value.tobytes())
        speaker.wait(waiting[0])
        assert session.usage.bytes < 10_000


def test_the_number_of_arrays(client: pjrt.Client) -> None:
    with remote.serve(client, limits=Limits(session_arrays=2)) as server, MessageClient(server.address) as speaker:
        speaker.put(1, np.arange(2))
        speaker.put(2, np.arange(2))
        with pytest.raises(pjrt.ResourceExhaustedError, match="may hold 2 arrays"):
            speaker.put(3, np.arange(2))
        speaker.ask("destruct_array", array_handle=[1])
        speaker.put(4, np.arange(2))


def test_the_size_of_an_array(client: pjrt.Client) -> None:
    with (
        remote.serve(client, limits=Limits(host_buffer_bytes=1000)) as server,
        MessageClient(server.address) as speaker,
    ):
        speaker.put(1, np.zeros(1000, np.uint8))
        with pytest.raises(pjrt.ResourceExhaustedError, match="at most 1000 B at a time, and this one has 1024"):
            speaker.store(2, b"", size=1 << 40)
        with pytest.raises(pjrt.InvalidArgumentError):
            speaker.store(2, b"", size=-1)


def test_the_size_of_a_message(client: pjrt.Client) -> None:
    with remote.serve(client, limits=Limits(message_bytes=10_000)) as server, MessageClient(server.address) as speaker:
        speaker.send("destruct_array", array_handle=range(2000))
        assert speaker.wait_for_end().code.name == "RESOURCE_EXHAUSTED"


def test_the_number_of_sessions(client: pjrt.Client) -> None:
    with remote.serve(client, limits=Limits(sessions=2)) as server:
        with MessageClient(server.address), MessageClient(server.address):
            with pytest.raises(pjrt.ResourceExhaustedError, match="2 sessions are open"):
                MessageClient(server.address)
        wait_until(lambda: not server._open_sessions(), "the end of all sessions")
        MessageClient(server.address).close()


def test_the_sessions_of_one_client(client: pjrt.Client, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    one, two = "abcdefgh" * 4, "ijklmnop" * 4
    tokens.write_text(f"one {one}\ntwo {two}\n")
    tokens.chmod(0o600)
    limits = Limits(sessions=4, sessions_per_client=2)
    first, second = ({TOKEN_ATTRIBUTE: token} for token in (one, two))
    with remote.serve(client, token_file=tokens, limits=limits) as server:
        with (
            MessageClient(server.address, initialization_data=first),
            MessageClient(server.address, initialization_data=first),
        ):
            with pytest.raises(pjrt.ResourceExhaustedError, match="2 sessions of the client 'one' are open"):
                MessageClient(server.address, initialization_data=first)
            MessageClient(server.address, initialization_data=second).close()
        wait_until(lambda: not server._open_sessions(), "the end of all sessions")
        MessageClient(server.address, initialization_data=first).close()


def test_the_time_without_a_request(client: pjrt.Client) -> None:
    limits = Limits(idle_seconds=1000)
    with remote.serve(client, limits=limits) as server, MessageClient(server.address) as speaker:
        speaker.put(1, np.arange(2))
        (session,) = server._open_sessions()
        answered = time.monotonic()
        server._time_limits.check(answered)
        value = np.zeros(2, np.float32)
        waits = speaker.send("make_array_from_host_buffer", **array_fields(value), host_buffer_handle=2, array_handle=2)
        wait_until(lambda: session.requests > 2, "the request")
        assert session.idle_seconds(answered + 2000) == 0
        server._time_limits.check(answered + 2000)  # its answer takes long
        speaker.store(2, value.tobytes())
        speaker.wait(waits)
        assert session.idle_seconds(answered + 1e6) > 1000  # it is counted again
        server._time_limits.check(time.monotonic() + 2000)
        error = speaker.wait_for_end()
        assert (error.code.name, error.message) == ("DEADLINE_EXCEEDED", "the session was idle for more than 1000 s")


def test_the_pace_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(limits, "time", SimpleNamespace(monotonic=lambda: now))
    usage = SessionUsage(Limits(requests_per_second=50))
    assert [usage.seconds_to_wait() for _ in range(3)] == pytest.approx([0.02, 0.04, 0.06])
    now += 10  # after a pause, those of one second may come at once
    assert [usage.seconds_to_wait() for _ in range(53)] == pytest.approx([0.0] * 50 + [0.02, 0.04, 0.06])
    now += 0.06
    assert usage.seconds_to_wait() == pytest.approx(0.02)


def test_a_session_waits_before_requests_that_come_too_fast(
    client: pjrt.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float | None] = []

    class Ended(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            return super().wait(timeout)

    with remote.serve(client) as server, MessageClient(server.address) as speaker:
        (session,) = server._open_sessions()
        monkeypatch.setattr(session, "_ended", Ended())
        monkeypatch.setattr(session.usage, "seconds_to_wait", iter([0.0, 0.01, 0.02]).__next__)
        for _ in range(3):
            with pytest.raises(pjrt.NotFoundError):
                speaker.ask("is_array_deleted", array_handle=1)
    assert waits == [0.01, 0.02]


def test_a_replaced_host_buffer_counts_once() -> None:
    usage = SessionUsage(Limits(session_bytes=100))
    usage.add_host_buffer(1, 80)
    usage.add_host_buffer(1, 90)
    assert usage.bytes == 90
    usage.remove_host_buffer(1)
    usage.remove_host_buffer(1)
    assert usage.bytes == 0
