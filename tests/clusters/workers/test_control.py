"""The connection of workers and their controller: both know the token, and nobody is in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pjrt
from pjrt.clusters.workers import control_server
from pjrt.clusters.workers.control_server import Authority, ControlServer, Place, server_context
from pjrt.clusters.workers.handshake import Assignment, Bootstrap
from pjrt.clusters.workers.worker import ControllerLink
from pjrt.distributed.messages import EventLoop, hang_up
from pjrt.distributed.settings import Settings

SECONDS = 60.0
TOKEN = "a secret of more than sixteen letters"
ASSIGNMENT = Assignment(0, "host", Settings([("127.0.0.1", 1)], 1, 0, token="job"), "cpu", {"num_devices": 2})


class Controller:
    """A control server that gives everybody the same assignment, and notes what it hears."""

    def __init__(self, folder: Path, *, encrypted: bool) -> None:
        self.facts: list[Mapping[str, Any]] = []
        self.messages: queue.SimpleQueue[tuple[int, Mapping[str, Any]]] = queue.SimpleQueue()
        place = Place(["127.0.0.1"], "127.0.0.1", 0, folder, Authority() if encrypted else None)
        self.server = ControlServer(TOKEN, place, self._assign, lambda *message: self.messages.put(message))
        self.bootstrap = Bootstrap([f"127.0.0.1:{self.server.port}"], TOKEN, 3, encrypted=encrypted, timeout=SECONDS)

    def _assign(self, facts: Mapping[str, Any]) -> Any:
        self.facts.append(facts)
        return 0, ASSIGNMENT.fields()


@pytest.fixture(params=["clear", "encrypted"])
def controller(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Controller]:
    made = Controller(tmp_path, encrypted=request.param == "encrypted")
    yield made
    made.server.close()


def test_a_worker_learns_its_assignment_and_reports(controller: Controller) -> None:
    ends: queue.SimpleQueue[str] = queue.SimpleQueue()
    link = ControllerLink(controller.bootstrap, ends.put)
    assert link.assignment == ASSIGNMENT
    assert link.own_address == "127.0.0.1"
    assert [facts["index"] for facts in controller.facts] == [3]
    link.report("serving", address="grpc://here")
    assert controller.messages.get(timeout=SECONDS) == (0, {"type": "serving", "address": "grpc://here"})
    controller.server.end(0)
    assert ends.get(timeout=SECONDS) == ""
    link.close()
    assert controller.messages.get(timeout=SECONDS) == (0, {"type": "gone"})


def test_a_worker_learns_the_end_of_its_controller(controller: Controller) -> None:
    ends: queue.SimpleQueue[str] = queue.SimpleQueue()
    link = ControllerLink(controller.bootstrap, ends.put)
    controller.server.close()
    assert "the controller is gone" in ends.get(timeout=SECONDS)
    link.close()


def test_neither_side_accepts_another_token(controller: Controller) -> None:
    with pytest.raises(pjrt.UnauthenticatedError, match="has not the token of this worker"):
        ControllerLink(replace(controller.bootstrap, token="another secret of many letters"), lambda reason: None)
    assert controller.facts == []


STRANGERS = [
    b"GET / HTTP/1.1\r\n\r\n",
    b"[" * 60_000 + b"\n",
    b'{"type": "worker"}\n',
    b'{"type": "worker", "nonce": "1", "facts": [1]}\n',
    b'{"type": "worker", "nonce": "1", "facts": {"index": {"a": 1}}}\n',
    b'{"type": "worker", "nonce": "1", "facts": {}}\n{"proof": "\\ud800"}\n',
    b'{"type": "worker", "nonce": "1", "facts": {}}\n{"type": "proof", "proof": 7}\n',
]


@pytest.mark.parametrize("controller", ["clear"], indirect=True)
@pytest.mark.parametrize("said", STRANGERS)
def test_strangers_get_no_proof_and_make_no_traceback(
    controller: Controller, said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """With a proof they could try tokens on machines of their own."""
    with socket.create_connection(("127.0.0.1", controller.server.port), SECONDS) as stranger:
        stranger.sendall(said)
        stranger.shutdown(socket.SHUT_WR)
        heard = b"".join(iter(lambda: stranger.recv(4096), b""))
    assert b"proof" not in heard
    assert controller.facts == []
    link = ControllerLink(controller.bootstrap, lambda reason: None)
    link.close()
    controller.server.close()
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("controller", ["encrypted"], indirect=True)
def test_the_end_of_the_server_during_a_farewell_makes_no_traceback(
    controller: Controller, caplog: pytest.LogCaptureFixture
) -> None:
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", controller.server.port), SECONDS) as plain,
        trusting.wrap_socket(plain) as stranger,
    ):
        stranger.sendall(STRANGERS[0])
        assert stranger.recv(4096) == b""  # the server hangs up, and waits for the same from this side
        controller.server.close()
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("liar", ["worker", "controller"])
def test_who_does_not_know_the_token_cannot_prove_it(
    controller: Controller, liar: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other side's own proof, sent back, is none."""
    true_proof = control_server.handshake.proof

    def proof(token: str, side: str, *others: Any) -> str:
        return "0" * 64 if side == liar else true_proof(token, side, *others)

    def is_valid(candidate: object, expected: str) -> bool:
        return candidate == expected != "0" * 64

    monkeypatch.setattr(control_server.handshake, "proof", proof)
    monkeypatch.setattr(control_server.handshake, "is_valid", is_valid)
    with pytest.raises((pjrt.UnauthenticatedError, pjrt.UnavailableError)):
        ControllerLink(controller.bootstrap, lambda reason: None)
    assert bool(controller.facts) is (liar == "controller")  # the worker proves itself first


def test_versions_must_be_the_same(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_server, "pjrt", SimpleNamespace(__version__="100.0"))
    with pytest.raises(pjrt.FailedPreconditionError, match=r"the controller has version 100\.0; install the same"):
        ControllerLink(controller.bootstrap, lambda reason: None)
    assert controller.facts == []


def test_nobody_answers() -> None:
    with pytest.raises(pjrt.DeadlineExceededError, match=r"no controller of a cluster answered within 0\.2 s"):
        ControllerLink(Bootstrap(["127.0.0.1:1"], TOKEN, timeout=0.2), lambda reason: None)


def test_somebody_in_the_middle_is_noticed(tmp_path: Path) -> None:
    """A relay ends the TLS of the worker and begins one of its own: it has another certificate than the controller."""
    controller = Controller(tmp_path, encrypted=True)
    context, _ = server_context(Authority().issue("controller"), tmp_path)
    loop = EventLoop()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", controller.server.port, ssl=trusting)

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while data := await source.read(1 << 16):
                    target.write(data)
                target.close()

        try:
            await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))
        finally:
            for each in (far_writer, writer):
                await hang_up(each)

    server = loop.run(_serve(relay, context))
    try:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(pjrt.UnauthenticatedError):
            ControllerLink(replace(controller.bootstrap, addresses=[f"127.0.0.1:{port}"]), lambda reason: None)
        assert controller.facts == []
    finally:
        loop.call(server.close)
        loop.stop()
        controller.server.close()


async def _serve(relay: Any, context: ssl.SSLContext) -> asyncio.Server:
    return await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context)


def test_secrets_are_not_shown() -> None:
    bootstrap = Bootstrap(["127.0.0.1:1"], TOKEN)
    assert TOKEN not in repr(bootstrap)
    assert "key" not in repr(replace(ASSIGNMENT, key="secret key"))
    assert Bootstrap.of_json(bootstrap.to_json()) == bootstrap


@pytest.mark.parametrize("line", [b"", b"{}", b"[1]", b'{"token": 1}', b"\xff"])
def test_a_wrong_bootstrap_is_an_error(line: bytes) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match="expected the bootstrap of a worker"):
        Bootstrap.of_json(line)
