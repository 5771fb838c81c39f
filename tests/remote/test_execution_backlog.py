"""The backlog of executions: a client that starts programs faster than the device runs them is held back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from protocol_client import PATIENCE, ProtocolClient, connected

import pjrt
from pjrt.remote.server.executables import SessionExecutable
from pjrt.remote.server.session import ExecutionBacklog

PROGRAM = """
func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.tanh %x : tensor<2xf32>
  return %0 : tensor<2xf32>
}
"""


class Launcher:
    """Starts one program again and again, on a device that waits for a gate."""

    def __init__(self, speaker: ProtocolClient, gate: threading.Event) -> None:
        self.gate = gate
        self.speaker = speaker
        self.executable = speaker.session.executables.add(SessionExecutable(speaker.ifrt.compile(PROGRAM)))
        self.argument = speaker.put(np.float32([1, 2]))
        self.last = 0

    def start(self, number: int) -> None:
        for _ in range(number):
            self.last = self.speaker.send(
                "loaded_executable_execute",
                loaded_executable_handle=self.executable,
                args_handles=[self.argument],
                result_array_handle=[self.speaker.handle()],
            )


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    gate = threading.Event()

    def tanh(operation: Any, x: np.ndarray[Any, Any]) -> Any:
        assert gate.wait(PATIENCE)
        return np.tanh(x)

    with (
        pjrt.StableHloClient("slow", kernels={"stablehlo.tanh": tanh}, fallback="reference") as client,
        connected(client) as speaker,
    ):
        speaker.session.backlog = ExecutionBacklog(64)
        yield Launcher(speaker, gate)
        gate.set()


@pytest.mark.full
def test_the_session_takes_no_requests_while_the_backlog_is_full(launcher: Launcher) -> None:
    launcher.start(80)
    further = threading.Thread(target=launcher.start, args=(1000,))
    further.start()
    further.join(0.5)
    assert further.is_alive()
    assert launcher.speaker.session.requests <= 90
    launcher.gate.set()
    further.join(PATIENCE)
    assert not further.is_alive()
    launcher.speaker.wait(launcher.last)


def test_a_full_backlog_does_not_hold_up_the_end_of_a_session(launcher: Launcher) -> None:
    launcher.start(80)
    further = threading.Thread(target=launcher.start, args=(1,))
    further.start()
    launcher.speaker.session._ended.set()
    further.join(PATIENCE)
    assert not further.is_alive()


def test_a_server_stops_while_a_client_is_held_back() -> None:
    gate, full = threading.Event(), threading.Event()

    class Backlog(ExecutionBacklog):
        def wait(self, ended: threading.Event) -> None:
            if len(self._samples) > self._most:
                full.set()
            super().wait(ended)

    def tanh(operation: Any, x: np.ndarray[Any, Any]) -> Any:
        assert gate.wait(PATIENCE)
        return np.tanh(x)

    with pjrt.StableHloClient("slow", kernels={"stablehlo.tanh": tanh}, fallback="reference") as client:
        server = pjrt.remote.serve(client)
        user = pjrt.client("remote", address=server.address)
        executable, argument = user.compile(PROGRAM), user.buffer_from_host(np.float32([1, 2]))
        argument.ready().result(PATIENCE)  # executions that wait for their argument are not under way
        (session,) = server._open_sessions()
        session.backlog = Backlog(64)
        outputs = [executable(argument)[0] for _ in range(500)]
        assert full.wait(PATIENCE)
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        stopping.join(PATIENCE)  # the device still works, and the server does not wait for it
        assert not stopping.is_alive()
        gate.set()
        with pytest.raises(pjrt.PjrtError):
            outputs[-1].ready().result(PATIENCE)
        user.close()
