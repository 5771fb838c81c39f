"""The start of a cluster: what the workers get, what the user sees, and what becomes of workers that cannot start."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

import pjrt
from pjrt.clusters.client.client import ClusterClient
from pjrt.clusters.launchers import WorkerHandle, WorkerStart
from pjrt.clusters.launchers.launcher import LocalLauncher
from pjrt.clusters.workers.handshake import Bootstrap
from pjrt.clusters.workers.workers import StartProgress

SECONDS = 120.0

GATED = """
import os
import threading
import pjrt


def device(**options):
    while not os.path.exists("the start was seen"):
        threading.Event().wait(0.01)
    return pjrt.client("cpu", **options)
"""


class RecordingLauncher(LocalLauncher):
    """The local launcher, and what it has started."""

    starts: Sequence[WorkerStart] = ()
    handles: Sequence[WorkerHandle] = ()

    def start(self, starts: Sequence[WorkerStart]) -> Sequence[WorkerHandle]:
        self.starts, self.handles = starts, super().start(starts)
        return self.handles


class Configured:
    """A cluster with all settings of workers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.launcher = RecordingLauncher(["left", "right"], {})
        self.progress: list[StartProgress] = []
        (folder / "gated.py").write_text(GATED)
        self.client = pjrt.cluster(
            device=f"{folder}/gated.py:device",
            launcher=self.launcher,
            options={"num_devices": 2},
            environment={"PJRT_TEST_WORD": "a word"},
            working_directory=folder,
            logs=folder / "logs",
            progress=self._note,
        )

    def _note(self, progress: StartProgress) -> None:
        self.progress.append(progress)
        if all(state.startswith("starting the device ") for state in progress.states):
            (self.folder / "the start was seen").touch()


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Configured]:
    cluster = Configured(tmp_path_factory.mktemp("configured"))
    with cluster.client:
        yield cluster
    assert [handle.poll() for handle in cluster.launcher.handles] == ["exit code 0"] * 2


@pytest.mark.full
def test_workers_have_their_environment_and_folder(configured: Configured) -> None:
    client = configured.client
    assert client.call_on_hosts("os:getenv", "PJRT_TEST_WORD") == ["a word"] * 2
    assert client.call_on_hosts("os:getcwd") == [str(configured.folder)] * 2
    assert [device.description.attributes["host"] for device in client.devices] == ["left", "left", "right", "right"]


def test_the_start_is_reported(configured: Configured) -> None:
    first, *_, last = configured.progress
    assert (first.ready, list(first.awaited)) == (0, ["left", "right"])
    assert re.search(r"0 of 2 workers serve; waiting for left \(\w.*\), right \(\w.*\)$", str(first))
    assert (last.ready, list(last.awaited), list(last.states)) == (2, [], ["serving"] * 2)
    assert str(last) == "starting a cluster: 2 of 2 workers serve"
    assert last.seconds > 0
    device = f"starting the device {configured.folder}/gated.py:device"
    assert any(progress.states == [device] * 2 for progress in configured.progress)


def test_output_is_in_a_file_of_each_worker(configured: Configured) -> None:
    def speak(word: str) -> None:
        print(f"{word} from {os.getpid()}", flush=True)
        os.write(2, b"and an error\n")

    configured.client.call_on_hosts(speak, "hello")
    pids = configured.client.call_on_hosts("os:getpid")
    for name, pid, start in zip(("left", "right"), pids, configured.launcher.starts, strict=True):
        log = configured.folder / "logs" / f"worker-{start.index}-{name}.log"
        wait_until(lambda log=log: "and an error" in log.read_text())  # type: ignore[misc]
        assert f"hello from {pid}\n" in log.read_text()
        assert start.output.tail[-1] == "and an error"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_secret_is_in_arguments_or_the_environment(configured: Configured) -> None:
    for start, pid in zip(configured.launcher.starts, configured.client.call_on_hosts("os:getpid"), strict=True):
        token = Bootstrap.of_json(start.bootstrap).token.encode()
        assert len(token) >= 32
        assert token not in Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
        assert token.decode() not in repr(start)


@pytest.mark.full
def test_a_cluster_outlives_the_thread_that_starts_it(shared_cluster: ClusterClient) -> None:
    """Also: two clusters are in one process at one time."""
    clients: list[ClusterClient] = []
    thread = threading.Thread(
        target=lambda: clients.append(pjrt.cluster(1, "reference", logs="hide", progress=False))  # type: ignore[arg-type]
    )
    thread.start()
    thread.join()
    (client,) = clients
    (pid,) = client.call_on_hosts("os:getpid")
    assert pid not in shared_cluster.call_on_hosts("os:getpid")
    assert client.platform_name == "reference"
    client.close()
    client.close()
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


FAILING = """
import os
import pjrt
from pjrt import distributed


def crash(**options):
    if distributed.process_index() == 1:
        print("I shall crash", flush=True)
        os.abort()
    return pjrt.client("reference")


def wait(**options):
    print(f"process {os.getpid()} waits", flush=True)
    os.read(os.pipe()[0], 1)
"""


@pytest.fixture
def failing(tmp_path: Path) -> Path:
    path = tmp_path / "failing.py"
    path.write_text(FAILING)
    return path


def start(device: object, **options: Any) -> tuple[RecordingLauncher, pjrt.PjrtError]:
    """Start a cluster, which must fail; return its error."""
    launcher = RecordingLauncher(2, {})
    with pytest.raises(pjrt.PjrtError) as raised:
        pjrt.cluster(device=str(device), launcher=launcher, logs="hide", progress=False, **options)
    assert None not in [handle.poll() for handle in launcher.handles]
    return launcher, raised.value


def test_a_wrong_option_of_the_device_is_an_error_with_the_host() -> None:
    _, error = start("reference", number_of_devices=2)
    assert error.code is pjrt.StatusCode.INVALID_ARGUMENT
    expected = r"worker [01] on local[01] \(pid \d+\) could not start: the device 'reference' has no option"
    assert re.match(expected, error.message)


def test_a_worker_that_crashes_is_named_with_its_output(failing: Path) -> None:
    _, error = start(f"{failing}:crash")
    assert error.code is pjrt.StatusCode.UNAVAILABLE
    assert re.match(r"worker 1 on local1 \(pid \d+\) could not start: its process ended: .*SIGABRT", error.message)
    assert "\n  I shall crash" in error.message


@pytest.mark.full
def test_a_worker_that_is_late_is_named_with_its_state(failing: Path) -> None:
    _, error = start(f"{failing}:wait", start_timeout=3)
    assert error.code is pjrt.StatusCode.DEADLINE_EXCEEDED
    assert error.message.startswith("2 of 2 workers have not started within 3 s; waiting for:\n- worker 0 on local0")
    assert "- worker 1 on local1" in error.message
    assert "longer start_timeout" in error.message


def test_a_folder_that_does_not_exist_is_an_error() -> None:
    _, error = start("cpu", working_directory="/no/such/folder")
    assert error.message == "cannot start worker 0 on local0: No such file or directory: '/no/such/folder'"


CONTROLLER = """
import sys
import pjrt

try:
    pjrt.cluster(2, sys.argv[1], progress=False)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.full
def test_ctrl_c_ends_a_start(failing: Path) -> None:
    command = [sys.executable, "-c", CONTROLLER, f"{failing}:wait"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as controller:
        assert controller.stdout is not None
        assert controller.stderr is not None
        try:
            lines = [line for line in (controller.stderr.readline() for _ in range(2)) if line]
            assert sorted(line.partition(" process ")[0] for line in lines) == ["[local0]", "[local1]"]
            controller.send_signal(2)
            assert controller.stdout.readline() == "interrupted\n"
            assert controller.wait(SECONDS) == 0
            for line in lines:
                wait_until(lambda line=line: not Path(f"/proc/{line.split()[2]}").exists())  # type: ignore[misc]
        finally:
            controller.kill()


UNCLOSED = """
import gc, os, sys
import pjrt
from pjrt.clusters.workers import workers

client = pjrt.cluster(1, "reference", progress=False, logs="hide")
(pid,) = client.call_on_hosts("os:getpid")
print(pid, flush=True)
if sys.argv[1] == "collected":
    del client
    gc.collect()
    print("collected", flush=True)
    sys.stdin.readline()
elif sys.argv[1] == "forked":
    child = os.fork()
    if not child:
        workers._close_running()  # as at its end: this must not end the workers
        os._exit(0)  # gRPC's own end would close the connections of the parent, too
    os.waitpid(child, 0)
    child = os.fork()         # and this one must not keep their connections when the controller is killed
    if not child:
        os.read(0, 1)
        os._exit(0)
    assert client.call_on_hosts("os:getpid") == [pid]
    print("still there", flush=True)
    os.waitpid(child, 0)
"""


@pytest.mark.full
@pytest.mark.parametrize("way", ["ended", "collected", "forked"])
def test_the_end_of_the_controller_is_that_of_the_workers(way: str) -> None:
    environment = os.environ | {"PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", UNCLOSED, way]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as controller:
        assert controller.stdout is not None
        try:
            pid = int(controller.stdout.readline())
            if way == "ended":
                assert controller.wait(SECONDS) == 0
            else:
                assert controller.stdout.readline() == {"collected": "collected\n", "forked": "still there\n"}[way]
            if way == "forked":
                controller.kill()
            wait_until(lambda: not Path(f"/proc/{pid}").exists())
            assert way != "collected" or controller.poll() is None
        finally:
            controller.kill()
            if controller.stdin is not None:
                controller.stdin.close()
