"""The launcher ``external``, and ``pjrt worker``, which it waits for."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pjrt
from pjrt.clusters.launchers.launcher import ExternalLauncher
from pjrt.clusters.workers.control_server import Authority, ControlServer, Place
from pjrt.system.processes import reserved_port

SECONDS = 120.0


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.touch(mode=0o600)
    path.write_text("a token of more than sixteen letters\n".replace(" ", "-"))
    return path


@pytest.fixture
def address() -> Iterator[str]:
    with reserved_port() as port:
        yield f"127.0.0.1:{port}"


def worker(address: str, token_file: Path, *further: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pjrt", "worker", "--controller", address, "--token-file", str(token_file)]
    return subprocess.Popen(
        [*command, *further], stderr=subprocess.PIPE, text=True, env=os.environ | {"COLUMNS": "500"}
    )


@pytest.mark.full
def test_workers_join_the_controller(token_file: Path, address: str) -> None:
    """They may start before it. One too many is refused; when the controller ends, so do all."""
    workers = [worker(address, token_file, "--index", "1"), worker(address, token_file)]
    try:
        options = {"controller_address": address, "token_file": str(token_file), "num_devices": 1}
        with pjrt.cluster(2, "reference", launcher="external", progress=False, **options) as client:
            assert client.call_on_hosts("os:getpid") == [workers[1].pid, workers[0].pid]
            hosts = [device.description.attributes["host"] for device in client.devices]
            assert hosts == [socket.gethostname()] * 2
            further = worker(address, token_file)
            workers.append(further)
            _, errors = further.communicate(timeout=SECONDS)
            assert further.returncode == 2
            assert "expected a worker with a number from 0 to 1, found a further one on" in errors
        assert [process.wait(SECONDS) for process in workers] == [0, 0, 2]
    finally:
        for process in workers:
            process.kill()
            process.communicate()


def test_a_worker_with_another_token_is_refused(token_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    place = Place(["127.0.0.1"], "127.0.0.1", 0, folder, Authority())
    server = ControlServer("another-token-of-many-letters", place, lambda facts: (0, {}), lambda index, message: None)
    try:
        process = worker(f"127.0.0.1:{server.port}", token_file)
        _, errors = process.communicate(timeout=SECONDS)
        assert process.returncode == 2
        assert "has not the token of this worker; give both the same one" in errors
    finally:
        server.close()


def test_what_the_controller_needs(token_file: Path) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match="needs token_file, a file with a secret"):
        ExternalLauncher(2, {})
    with pytest.raises(pjrt.InvalidArgumentError, match="must know where the controller is: give controller_address"):
        pjrt.cluster(2, launcher="external", token_file=str(token_file), controller_address="node0")
    token_file.chmod(0o644)
    with pytest.raises(pjrt.PermissionDeniedError, match="is not secret"):
        ExternalLauncher(2, {"token_file": token_file})
