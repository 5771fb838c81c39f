"""``pjrt serve``, as a user calls it."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from remote_fixtures import RunJax, Serve
from waiting import wait_until

import pjrt
from pjrt.cli import main

DEVICE = """
import pjrt

def make_client(num_devices=1):
    return pjrt.client("reference", num_devices=num_devices)
"""


def refusal(*arguments: str) -> str:
    """Return the message with which the command refuses arguments."""
    before = signal.getsignal(signal.SIGTERM)
    done = CliRunner().invoke(main, ["serve", *arguments])
    assert done.exit_code == 2, done.stdout
    assert not done.stdout
    assert signal.getsignal(signal.SIGTERM) is before
    return done.stderr


@pytest.mark.full
def test_several_devices_at_once(serving: Serve, run_jax: RunJax, tmp_path: Path) -> None:
    """Each device has an address, and one process of JAX uses them all."""
    (tmp_path / "mine.py").write_text(DEVICE)
    server = serving("cpu", f"{tmp_path}/mine.py:make_client", "-O", "num_devices=2", devices=2)
    assert [line.split()[1:5] for line in server.lines] == [
        ["cpu", "with", "2", "devices"],
        [f"{tmp_path}/mine.py:make_client", "with", "2", "devices"],
    ]
    source = """
for name in ("proxy", "proxy1"):
    devices = jax.devices(name)
    print(len(devices), jax.jit(lambda x: x + 1)(jax.device_put(np.float32(1), devices[1])))
"""
    assert run_jax(server.addresses[0], source, server.addresses[1]) == ["2 2.0", "2 2.0"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(serving: Serve, number: int) -> None:
    server = serving("reference")
    assert server.lines[0].startswith("serving reference with 1 device at grpc://127.0.0.1:")
    host, _, port = server.address.removeprefix("grpc://").rpartition(":")
    with socket.create_connection((host, int(port))):  # a client that says nothing does not hold it up
        assert server.stop(number) == 0
    assert server.errors == ""
    with pytest.raises(ConnectionRefusedError), socket.create_connection((host, int(port))):
        pass


def test_metrics_have_an_address(serving: Serve) -> None:
    server = serving("reference", "--metrics-address", "127.0.0.1:0", "--max-sessions", "3")
    assert server.process.stdout is not None
    label, _, url = server.process.stdout.readline().rpartition(" ")
    assert label == "metrics at"
    with urllib.request.urlopen(url.strip(), timeout=60) as page:
        assert b"pjrt_" in page.read()


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "note"),
    [
        (("reference",), "reference: each client has a process of its own"),
        (("reference", "--isolate", "no"), "reference: all clients share one process, and must trust each other"),
        (("mine.py:make", "--isolate", "yes"), "mine.py:make: each client has a process of its own"),
        (("mine.py:make",), "mine.py:make: all clients share one process, and must trust each other"),
    ],
)
def test_the_start_says_whether_clients_share_a_process(
    serving: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], note: str
) -> None:
    (tmp_path / "mine.py").write_text("import pjrt\n\ndef make():\n    return pjrt.client('reference')\n")
    monkeypatch.chdir(tmp_path)
    server = serving(*arguments)
    assert server.process.stdout is not None
    assert server.process.stdout.readline().startswith(note)
    with pjrt.client("remote", address=server.address) as client:
        assert np.asarray(client.buffer_from_host(np.arange(3))).tolist() == [0, 1, 2]


def test_what_cannot_be_served_is_refused() -> None:
    assert "no-such-device" in refusal("no-such-device")
    assert "expected an --address for each of 2 devices, found one" in refusal(
        "cpu", "reference", "--address", "127.0.0.1:1"
    )
    assert "for each of 1 devices, found 2" in refusal("cpu", "--address", "127.0.0.1:0", "--address", "127.0.0.1:0")
    assert "expected a size such as 2GiB" in refusal("cpu", "--max-session-memory", "many")
    assert "no-such-file" in refusal("cpu", "--token-file", "no-such-file")
    assert "expected a port from 0 to 65535" in refusal("cpu", "--address", "127.0.0.1:99999")
    assert "other machines can reach" in refusal("cpu", "--address", "0.0.0.0:0")


def test_connections_that_say_nothing_keep_nobody_out() -> None:
    """Each takes a file of the server until it is dropped; the limit with which the server begins is none for it."""
    few_files = ["sh", "-c", 'ulimit -S -n 128 && exec "$@"', "sh"]
    command = [sys.executable, "-m", "pjrt", "serve", "reference"]
    with subprocess.Popen([*few_files, *command], stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().decode().split()[-1]
            place, _, port = address.removeprefix("grpc://").rpartition(":")
            with contextlib.ExitStack() as silent:
                for _ in range(300):
                    silent.enter_context(socket.create_connection((place, int(port))))
                files = Path(f"/proc/{server.pid}/fd")
                wait_until(lambda: len(list(files.iterdir())) > 300, "the server to accept all connections")
        finally:
            server.terminate()
