"""A client is a process: what a stranger does in its own harms neither the server nor another client."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import captured_device
import numpy as np
import pytest
import random_sessions
from certificates import write_secret
from message_client import MessageClient
from remote_fixtures import PATIENCE, Serve, Serving
from waiting import wait_until

import pjrt
from pjrt import remote
from pjrt.remote.server.server import Server
from pjrt.system.confinement import CALLS, CAN_CONFINE, FILES, NETWORK, PROCESSES, READING

pytestmark = pytest.mark.skipif(not CAN_CONFINE, reason="only Linux confines processes")

CAPTURED = f"{captured_device.__file__}:make_client"
ADD = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32> }"""
# An array that cannot be sent any more has our client end the session itself.
ENDED = r"process of this client has ended|message of at most|answered what nobody|the client has ended the call"
LOOP = """func.func @main(%x: tensor<f32>) -> tensor<f32> {
  %0 = stablehlo.while(%i = %x) : tensor<f32>
    cond { %c = stablehlo.constant dense<true> : tensor<i1> stablehlo.return %c : tensor<i1> }
    do { stablehlo.return %i : tensor<f32> }
  return %0 : tensor<f32> }"""


def attack(client: pjrt.Client, name: str, number: int = 0) -> int:
    """Run an attack of the captured device, and return its number."""
    program = f"""module @attack_{name} {{ func.func @main(%x: tensor<i64>) -> tensor<i64> {{
      return %x : tensor<i64> }} }}"""
    (result,) = client.compile(program)(np.int64(number))
    return int(np.asarray(result))


@contextmanager
def connected(address: str, **options: Any) -> Iterator[pjrt.Client]:
    client = pjrt.client("remote", address=address, **options)
    try:
        yield client
    finally:
        client.close()


def compute_for_ever(client: pjrt.Client) -> None:
    while True:
        np.asarray(client.buffer_from_host(np.arange(3)))


@pytest.fixture(scope="module")
def captured() -> Iterator[Server]:
    """A server of the captured device, in this process."""
    with remote.serve(remote.Isolated(CAPTURED), limits=remote.Limits(process_bytes=1 << 30)) as server:
        yield server


@pytest.fixture
def neighbor(captured: Server) -> Iterator[pjrt.Client]:
    """An honest client of the same server: it is there before the attack, and loses nothing by it."""
    with connected(captured.address) as client:
        kept = client.buffer_from_host(np.arange(1000))
        yield client
        assert np.array_equal(np.asarray(kept), np.arange(1000))
        assert attack(client, "write") == 1
    with connected(captured.address) as later:
        assert attack(later, "write") == 1


def processes_of(server: Server) -> list[int]:
    """Return the processes of the clients that have sessions."""
    return [session._worker.process for session in server._open_sessions()]  # type: ignore[union-attr]


def wait_for_end(process: int) -> None:
    wait_until(lambda: not is_running(process), f"the end of the process {process}")


def is_running(process: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False


@pytest.mark.parametrize("name", ["crash", "leave", "spin", "babble", "hang_up"])
def test_an_attack_ends_its_own_process_alone(captured: Server, neighbor: pjrt.Client, name: str) -> None:
    before = set(processes_of(captured))
    with connected(captured.address) as client:
        (process,) = set(processes_of(captured)) - before
        if name in ("spin", "hang_up"):  # these give no answer; threads that read from a socket keep it open
            program = f"""module @attack_{name} {{ func.func @main(%x: tensor<i64>) -> tensor<i64> {{
              return %x : tensor<i64> }} }}"""
            client.compile(program)(np.int64(0))
        else:
            with pytest.raises(pjrt.PjrtError, match=ENDED):
                attack(client, name)
        assert is_running(processes_of(captured)[0])
    wait_for_end(process)


def test_a_client_learns_how_its_process_ended(captured: Server) -> None:
    with (
        connected(captured.address) as client,
        pytest.raises(
            pjrt.UnavailableError, match=r"the process of this client has ended: .* SIG(ABRT|SEGV|ILL|TRAP), as a"
        ),
    ):
        attack(client, "crash")


def test_a_process_that_does_not_come_back_is_ended() -> None:
    with (
        remote.serve(remote.Isolated(CAPTURED), limits=remote.Limits(stuck_seconds=2)) as server,
        connected(server.address) as client,
    ):
        assert attack(client, "write") == 1
        with pytest.raises(pjrt.UnavailableError, match=r"exit code 1, as it does where a parser does not come back"):
            attack(client, "stick")


def test_calls_after_the_end_of_a_process_learn_of_it(captured: Server) -> None:
    """The session is gone by then, and its number is not just any number that no session has."""
    before = set(processes_of(captured))
    with MessageClient(captured.address) as client:
        (process,) = set(processes_of(captured)) - before
        os.kill(process, signal.SIGKILL)
        assert isinstance(client.wait_for_end(), pjrt.UnavailableError)
        wait_until(lambda: client.session_id not in captured._sessions, "the end of the session")
        for call in (lambda: client.store(1, b"1"), lambda: client.lookup(1)):
            with pytest.raises(pjrt.UnavailableError, match=r"the process of this client has ended: .* SIGKILL"):
                call()
        with pytest.raises(pjrt.NotFoundError):
            client.lookup(1, session_id=1)


def test_the_memory_of_a_process_has_a_limit(captured: Server, neighbor: pjrt.Client) -> None:
    with connected(captured.address) as client:
        assert attack(client, "allocate", 100 << 20) == 1
        assert attack(client, "allocate", 2 << 30) == 0


def test_a_process_may_open_few_files_and_gets_no_further_rights(captured: Server) -> None:
    with connected(captured.address) as client:
        assert attack(client, "open_files") < 1024
        assert attack(client, "become_root") == 0


def test_a_process_reaches_no_other_one(captured: Server, neighbor: pjrt.Client) -> None:
    (other,) = processes_of(captured)
    assert isinstance(captured._devices, remote.Isolated)
    with connected(captured.address) as client, socket.create_server(("127.0.0.1", 0)) as listener:
        for process in (other, os.getpid()):
            assert attack(client, "look_into", process) == 0
        if PROCESSES not in captured._devices.may:
            assert attack(client, "kill", other) == 0
            assert attack(client, "kill", os.getpid()) == 0
        if NETWORK not in captured._devices.may:
            assert attack(client, "connect", listener.getsockname()[1]) == 0
            assert attack(client, "connect_to_no_one") == 0
        if CALLS not in captured._devices.may:
            assert attack(client, "call_the_kernel") == 0


def test_files_go_with_the_client(captured: Server) -> None:
    with connected(captured.address) as client:
        (session,) = captured._open_sessions()
        folder = session._worker.folder.path  # type: ignore[union-attr]
        assert attack(client, "write") == 1
        assert len(list(folder.iterdir())) in (0, 2)  # with namespaces, they are on a file system of its own
    wait_until(lambda: not folder.exists(), "the end of the folder")


def test_a_process_writes_to_no_file_of_others_and_reads_no_secret(tmp_path: Path) -> None:
    word = secrets.token_hex(16)
    tokens, own = write_secret(tmp_path / "tokens", word), write_secret(tmp_path / "token", word)
    isolated = remote.Isolated(CAPTURED)
    with (
        remote.serve(isolated, token_file=tokens) as server,
        connected(server.address, token_file=own) as client,
    ):
        if FILES in isolated.may:
            pytest.skip("this system has neither namespaces for users without privileges nor Landlock")
        assert attack(client, f"read_{str(tokens).encode().hex()}") <= 0
        assert attack(client, f"overwrite_{str(own).encode().hex()}") == 0
        if READING not in isolated.may:
            assert attack(client, f"read_{str(own).encode().hex()}") == -1
        assert attack(client, f"read_{os.__file__.encode().hex()}") > 0
    assert own.read_text() == word


def test_processes_that_a_client_starts_go_with_it(captured: Server) -> None:
    def staying() -> list[str]:
        commands = (Path(f"/proc/{pid}/cmdline") for pid in os.listdir("/proc") if pid.isdigit())
        return [str(command) for command in commands if command.exists() and b"pjrt-test-stays" in _read(command)]

    with connected(captured.address) as client:
        assert attack(client, "stay") == 1
        assert staying()
    wait_until(lambda: not staying(), "the end of the process that was to stay")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_client_does_not_fill_the_log(captured: Server, caplog: pytest.LogCaptureFixture) -> None:
    with connected(captured.address) as client:
        assert attack(client, "log") == 1
        assert np.array_equal(np.asarray(client.buffer_from_host(np.arange(3))), np.arange(3))
    texts = [record.getMessage() for record in caplog.records if "attack" in record.getMessage()]
    assert len(texts) <= 200
    assert not any("\x1b" in text for text in texts)


# The processes of ordinary devices.


_FRONT = """
import pathlib, sys
from pjrt import remote
with remote.serve(remote.Isolated("cpu")) as server:
    print(server.address, flush=True)
    sys.stdin.readline()
    maps = pathlib.Path("/proc/self/maps").read_text()
    print(any(name in maps for name in ("jaxlib", "xla", "mlir")))
"""


@pytest.mark.full
def test_the_server_itself_loads_no_compiler() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _FRONT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as front:
        assert front.stdout is not None
        with connected(front.stdout.readline().strip()) as client:
            (result,) = client.compile(ADD)(np.ones(4, np.float32))
            assert np.asarray(result).tolist() == [2] * 4
            printed, _ = front.communicate("\n", PATIENCE)
        assert printed.split() == ["False"]


def facts_of(serving: Serving, event: str) -> list[dict[str, Any]]:
    """Return the facts of an event in the log of a server."""
    found = [json.loads(line) for line in serving.errors.splitlines() if line.startswith("{")]
    return [each for each in found if each["event"] == event]


@pytest.mark.parametrize(
    "device",
    [
        pytest.param("cpu", marks=pytest.mark.full),
        pytest.param("reference", marks=pytest.mark.full),
        pytest.param("iree", marks=pytest.mark.iree),
    ],
)
def test_a_client_computes_beside_endless_loops_and_kills(serving: Serve, device: str) -> None:
    """The load of the others ends with them, and their processes may be killed at any stage."""
    server = serving(device, "--log", "--max-process-memory", "8GiB")
    begun, end, wrong = threading.Event(), threading.Event(), []

    def compute() -> None:
        with connected(server.address) as client:
            executable = client.compile(ADD)
            values = np.arange(4, dtype=np.float32)
            while not end.is_set():
                if not np.array_equal(np.asarray(executable(values)[0]), 2 * values):
                    wrong.append(values)
                begun.set()

    thread = threading.Thread(target=compute)
    thread.start()
    assert begun.wait(PATIENCE)
    for number in range(6):
        before = len(facts_of(server, "session in a process"))
        client = pjrt.client("remote", address=server.address)
        process = facts_of(server, "session in a process")[before]["process"]
        if number % 2:
            for _ in range(20):
                client.compile(LOOP)(np.float32(0))
        else:
            big = [client.buffer_from_host(np.zeros(1 << 22)) for _ in range(4)]
            os.kill(process, signal.SIGKILL)
            with pytest.raises(pjrt.UnavailableError):
                compute_for_ever(client)
            del big
        client.close()
        wait_for_end(process)
    end.set()
    thread.join()
    assert not wrong
    assert server.stop() == 0


@pytest.mark.full
def test_sessions_of_a_token_share_a_process(serving: Serve, tmp_path: Path) -> None:
    words = {name: secrets.token_hex(16) for name in ("alice", "bob")}
    tokens = write_secret(tmp_path / "tokens", "".join(f"{name} {word}\n" for name, word in words.items()))
    files = {name: str(write_secret(tmp_path / name, word)) for name, word in words.items()}
    server = serving("reference", "--log", "--token-file", str(tokens))
    with (
        connected(server.address, token_file=files["alice"]),
        connected(server.address, token_file=files["alice"]) as second,
        connected(server.address, token_file=files["bob"]) as other,
    ):
        first_process, second_process, other_process = (
            each["process"] for each in facts_of(server, "session in a process")
        )
        assert first_process == second_process != other_process
        os.kill(first_process, signal.SIGKILL)
        with pytest.raises(pjrt.UnavailableError):
            np.asarray(second.buffer_from_host(np.arange(3)))
        assert np.asarray(other.buffer_from_host(np.arange(3))).tolist() == [0, 1, 2]
    with connected(server.address, token_file=files["alice"]) as again:
        assert np.asarray(again.buffer_from_host(np.arange(3))).tolist() == [0, 1, 2]


def descendants(process: int) -> set[int]:
    """Return the processes that a process has started, and theirs."""
    found: set[int] = set()
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (stat := _read(folder / "stat")):
            parents[int(folder.name)] = int(stat.rpartition(b")")[2].split()[1])
    new = {process}
    while new := {child for child, parent in parents.items() if parent in new} - found:
        found |= new
    return found


@pytest.mark.full
def test_all_processes_end_with_a_killed_server(serving: Serve) -> None:
    server = serving("reference")
    with MessageClient(server.address):
        started = descendants(server.process.pid)
        assert len(started) >= 3
        server.process.kill()
        for process in started:
            wait_for_end(process)


@pytest.mark.full
def test_a_server_starts_the_processes_anew(serving: Serve) -> None:
    """All sessions end if the process ends from which theirs come, and later ones get new ones."""
    server = serving("reference", "--log")
    with connected(server.address) as client:
        (first,) = (process for process in descendants(server.process.pid) if process in _children(server.process.pid))
        os.kill(first, signal.SIGKILL)
        with pytest.raises(pjrt.UnavailableError):
            compute_for_ever(client)

    def works() -> bool:
        try:
            with connected(server.address) as client:
                return np.asarray(client.buffer_from_host(np.arange(3))).tolist() == [0, 1, 2]
        except pjrt.UnavailableError:
            return False

    wait_until(works, "a new session")


def _children(process: int) -> set[int]:
    return {
        int(folder.name)
        for folder in Path("/proc").iterdir()
        if folder.name.isdigit()
        and re.search(rb"\) \S (\d+) ", _read(folder / "stat") or b") X 0 ")[1] == b"%d" % process
    }


@pytest.mark.full
def test_sessions_that_come_and_go_leave_nothing(tmp_path: Path, serving: Serve) -> None:
    server = serving("reference", "--log", environment={"TMPDIR": str(tmp_path)})
    files = Path(f"/proc/{server.process.pid}/fd")
    with connected(server.address):
        pass
    wait_until(lambda: len(descendants(server.process.pid)) == 3, "the end of the first client")
    before = len(list(files.iterdir()))

    def come_and_go(number: int) -> None:
        for _ in range(4):
            with connected(server.address) as client:
                if number % 3:
                    assert np.array_equal(np.asarray(client.buffer_from_host(np.zeros(1 << 18))), np.zeros(1 << 18))

    threads = [threading.Thread(target=come_and_go, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(facts_of(server, "session in a process")) == 33
    wait_until(lambda: len(descendants(server.process.pid)) == 3, "the end of all clients")  # two parents, one ready
    wait_until(lambda: len(list(tmp_path.iterdir())) == 1, "the end of their folders")
    wait_until(lambda: len(list(files.iterdir())) <= before + 2, "the end of their connections")


@pytest.mark.full
@pytest.mark.parametrize(("part", "count"), [("sessions", 20), ("messages", 300), ("programs", 20), ("beside", 1)])
def test_random_sessions(part: str, count: int) -> None:
    """A short run of the job, which prints what goes wrong."""
    counts = [f"--{each}={count if each == part else 0}" for each in random_sessions.PARTS]
    subprocess.run([sys.executable, random_sessions.__file__, "--device", "reference", *counts], check=True)


def test_ctrl_c_in_a_terminal_ends_the_server_without_a_word() -> None:
    """The terminal sends the signal to the server and to all processes that it has started in the same group."""
    command = [sys.executable, "-m", "pjrt", "serve", "reference"]
    with subprocess.Popen(command, stdout=-1, stderr=-1, start_new_session=True) as process:
        assert process.stdout is not None
        for _ in range(2):
            process.stdout.readline()
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert (errors, process.returncode) == (b"", 0)
