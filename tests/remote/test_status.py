"""The status of servers, which ``pjrt top`` shows."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from in_process import pjrt as command
from message_client import MessageClient
from remote_fixtures import Serve

import pjrt
from pjrt import remote
from pjrt.remote.server.status import StatusAnswers, status_folder, statuses
from pjrt.system.processes import usage_of


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests have servers, too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def server() -> Iterator[remote.Server]:
    with pjrt.client("reference") as client, remote.serve(client) as server, StatusAnswers([server]):
        yield server


def test_the_sessions_of_a_server(server: remote.Server) -> None:
    with MessageClient(server.address) as speaker:
        speaker.put(1, np.zeros(1000, np.uint8))
        (status,) = statuses()
    assert status["process"] == os.getpid()
    (served,) = status["servers"]
    assert (served["device"], served["address"]) == ("reference", server.address)
    (session,) = served["sessions"]
    assert (session["arrays"], session["bytes"], session["process"]) == (1, 1000, os.getpid())
    assert session["requests"] >= 1
    assert session["peer"].startswith("ipv4:127.0.0.1:")
    if sys.platform == "linux":
        assert status["usage"][str(os.getpid())]["resident_bytes"] > 1 << 20


def test_only_who_has_the_file_gets_an_answer(server: remote.Server) -> None:
    (file,) = status_folder().iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    place = json.loads(file.read_text())
    for shown in (b"", b"0" * len(place["secret"]), place["secret"][:-1].encode()):
        with socket.create_connection((place["host"], place["port"]), 60) as connection:
            connection.sendall(shown)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b""
    assert len(statuses()) == 1


def test_the_file_goes_with_the_server_or_is_removed_later(server: remote.Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    killed, damaged = status_folder() / "1", status_folder() / "2"
    killed.write_text(json.dumps({"host": "127.0.0.1", "port": port, "secret": "0" * 32}))
    damaged.write_text("{")
    assert [each["process"] for each in statuses()] == [os.getpid()]
    assert not killed.exists()
    with StatusAnswers([]):
        pass
    assert [each.name for each in status_folder().iterdir()] == ["2"]


def test_the_command_prints_a_line_for_each_client(server: remote.Server) -> None:
    assert command("top").stdout.splitlines()[0].endswith("0 sessions")
    with MessageClient(server.address) as speaker:
        speaker.put(1, np.zeros(2000, np.uint8))
        lines = command("top").stdout.splitlines()
        assert lines[0] == f"reference at {server.address}, process {os.getpid()}: 1 session"
        (line,) = [each for each in lines if "ipv4:" in each]
        assert line.split()[0] == str(os.getpid())
        assert "1 (2.0 KiB)" in line
        printed = json.loads(command("top", "--json").stdout)
    assert printed["processes"][0]["servers"][0]["sessions"][0]["arrays"] == 1


def test_the_command_says_that_there_are_no_servers() -> None:
    assert command("top").stdout == "no 'pjrt serve' of this user runs on this machine\n"


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="each client has a process of its own on Linux alone")
def test_who_administers_a_server_ends_one_client(serving: Serve, tmp_path: Path) -> None:
    words = {name: secrets.token_hex(16) for name in ("alice", "bob")}
    for name, word in words.items():
        (tmp_path / name).write_text(word)
        (tmp_path / name).chmod(0o600)
    tokens = tmp_path / "tokens"
    tokens.write_text("".join(f"{name} {word}\n" for name, word in words.items()))
    tokens.chmod(0o600)
    server = serving("reference", "--token-file", str(tokens))
    with (
        pjrt.client("remote", address=server.address, token_file=str(tmp_path / "alice")) as alice,
        pjrt.client("remote", address=server.address, token_file=str(tmp_path / "bob")) as bob,
    ):
        kept = bob.buffer_from_host(np.arange(3))
        (status,) = statuses()
        assert status["process"] == server.process.pid
        processes = {each["client"]: each["process"] for each in status["servers"][0]["sessions"]}
        assert set(processes) == {"alice", "bob"}
        assert len({*processes.values(), server.process.pid}) == 3
        assert all(status["usage"][str(each)]["resident_bytes"] > 1 << 20 for each in processes.values())
        os.kill(processes["alice"], signal.SIGKILL)
        with pytest.raises(pjrt.UnavailableError):
            np.asarray(alice.buffer_from_host(np.arange(3)))
        assert np.asarray(kept).tolist() == [0, 1, 2]
        (status,) = statuses()
        assert [each["client"] for each in status["servers"][0]["sessions"]] == ["bob"]
    assert server.stop() == 0
    assert statuses() == []


@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
def test_the_usage_of_a_process_counts_its_children() -> None:
    code = "import sys; held = bytearray(64 << 20); print('held', flush=True); sys.stdin.readline()"
    before = usage_of(os.getpid())
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        own, both = usage_of(child.pid), usage_of(os.getpid())
        assert own is not None
        assert both is not None
        assert before is not None
        assert own.resident_bytes > 64 << 20
        assert both.resident_bytes > before.resident_bytes + (48 << 20)
        child.communicate("\n")
    assert usage_of(child.pid) is None
