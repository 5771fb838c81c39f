"""Shares: what one client of a server leaves to the others, whatever its programs do."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from message_client import MessageClient
from remote_fixtures import Serve
from toys import TIMEOUT, compiled, floats
from waiting import wait_until

import pjrt
from pjrt import remote
from pjrt.api.program import Stranger, for_stranger, the_stranger
from pjrt.host import HostClient
from pjrt.remote import Limits
from pjrt.stablehlo.encodings import safe_parse
from pjrt.system.confinement import CAN_CONFINE

LOOP = """func.func @main(%x: tensor<f32>) -> tensor<f32> {
  %0 = stablehlo.while(%i = %x) : tensor<f32>
    cond { %c = stablehlo.constant dense<true> : tensor<i1> stablehlo.return %c : tensor<i1> }
    do { stablehlo.return %i : tensor<f32> }
  return %0 : tensor<f32> }"""
ADD = """func.func @main(%x: tensor<f32>) -> tensor<f32> {
  %0 = stablehlo.add %x, %x : tensor<f32>
  return %0 : tensor<f32> }"""


class Compiler:
    """A device whose compiler does not end, for some programs, before the test lets it."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.end = threading.Event()

    def compile(self, program: pjrt.Program, options: Any) -> Any:
        if b"while" in program.code:
            self.begun.release()
            assert self.end.wait(TIMEOUT)
        return compiled(lambda x: x + 1)


@pytest.fixture
def compiler() -> Iterator[Compiler]:
    compiler = Compiler()
    yield compiler
    compiler.end.set()


@pytest.fixture
def device(compiler: Compiler) -> Iterator[HostClient]:
    client = HostClient("toy", compile=compiler.compile)
    yield client
    compiler.end.set()
    client.close()


def compile_many(client: pjrt.Client, count: int) -> None:
    """Have a client compile programs at one time, and do not wait for them."""

    def compile_one() -> None:
        with contextlib.suppress(pjrt.PjrtError):  # the client may be closed meanwhile
            client.compile(LOOP)

    for _ in range(count):
        threading.Thread(target=compile_one, daemon=True).start()


def test_compilations_of_one_client_do_not_hold_up_another(compiler: Compiler, device: HostClient) -> None:
    most = min(32, (os.cpu_count() or 1) + 4) + 1
    with remote.serve(device) as server:
        greedy, modest = (pjrt.client("remote", address=server.address) for _ in range(2))
        compile_many(greedy, most + 2)
        for _ in range(most):
            assert compiler.begun.acquire(timeout=TIMEOUT)
        (result,) = modest.compile(ADD.replace("<f32>", "<4xf32>"))(floats())
        assert np.asarray(result).tolist() == [1, 2, 3, 4]
        compiler.end.set()
        greedy.close()
        modest.close()


def test_a_session_counts_until_its_compilation_ends(compiler: Compiler, device: HostClient) -> None:
    """A client that leaves and comes back would get a further thread each time."""
    with remote.serve(device, limits=Limits(sessions=1)) as server:
        client = pjrt.client("remote", address=server.address)
        compile_many(client, 1)
        assert compiler.begun.acquire(timeout=TIMEOUT)
        client.close()
        wait_until(lambda: not server._open_sessions(), "the end of the session")
        with pytest.raises(pjrt.PjrtError, match="1 sessions are open or still at work"):
            pjrt.client("remote", address=server.address)
        compiler.end.set()
        wait_until(lambda: not server._reception._open, "the end of the compilation")
        pjrt.client("remote", address=server.address).close()


def test_a_compilation_that_does_not_end_does_not_keep_the_server(
    compiler: Compiler, device: HostClient, caplog: pytest.LogCaptureFixture
) -> None:
    server = remote.serve(device)
    client = pjrt.client("remote", address=server.address)
    compile_many(client, 1)
    assert compiler.begun.acquire(timeout=TIMEOUT)
    server.stop(patience=0)
    assert "compilations of its clients go on" in caplog.text
    client.close()


def test_programs_on_the_reference_device_end_when_their_client_leaves() -> None:
    with pjrt.client("reference") as device, remote.serve(device) as server:
        left = pjrt.client("remote", address=server.address)
        endless = left.compile(LOOP)
        results = [endless(np.float32(number)) for number in range(3)]
        stays = pjrt.client("remote", address=server.address)
        (waits,) = stays.compile(ADD)(np.float32(2))
        assert not waits.ready().done()
        left.close()
        waits.ready().result(TIMEOUT)
        assert np.asarray(waits) == 4
        stays.close()
        del results


class Leaves(Stranger):
    """A stranger that leaves as soon as something works for it."""

    def served_by(self, end: Any) -> Any:
        served = super().served_by(end)
        threading.Thread(target=self.leave).start()
        return served


def test_a_process_that_looks_at_a_program_ends_when_its_client_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "does_not_end.py").write_text("import threading; threading.Event().wait()")
    monkeypatch.syspath_prepend(tmp_path)
    with for_stranger(Leaves()), pytest.raises(pjrt.CancelledError, match="has left"):
        safe_parse.run_module("does_not_end", given=b"", time_limit=TIMEOUT)
    gone = Stranger()
    gone.leave()
    with for_stranger(gone), pytest.raises(pjrt.CancelledError, match="has left"):
        safe_parse.run_module("does_not_end", given=b"", time_limit=TIMEOUT)


def test_a_session_that_ends_has_left(device: HostClient) -> None:
    with remote.serve(device) as server:
        client = pjrt.client("remote", address=server.address)
        (session,) = server._open_sessions()
        with session.as_stranger():
            stranger = the_stranger()
        assert stranger is not None
        assert not stranger.has_left
        client.close()
        wait_until(lambda: stranger.has_left, "the end of the session")


ENDLESS = """
import threading

import pjrt
from pjrt.host import Compiled, HostClient

def run(x):
    print("begun", flush=True)
    threading.Event().wait()

def make_client():
    spec = pjrt.ShapeSpec((), pjrt.ElementType.F32)
    return HostClient("endless", compile=lambda program, options: Compiled(run=run, outputs=[spec], parameters=[spec]))
"""


@pytest.mark.full
def test_a_program_that_does_not_end_does_not_keep_the_server(serving: Serve, tmp_path: Path) -> None:
    """The device waits for it, as XLA does for a loop without an end."""
    (tmp_path / "endless.py").write_text(ENDLESS)
    server = serving(f"{tmp_path}/endless.py:make_client", "--grace", "0.01")
    client = pjrt.client("remote", address=server.address)
    (result,) = client.compile(ADD)(np.float32(1))
    assert server.process.stdout is not None
    assert "begun\n" in server.process.stdout
    assert server.stop() == 0
    assert "still at work after 0.01 s: the server ends without them" in server.errors
    with pytest.raises(pjrt.PjrtError):
        result.ready().result(TIMEOUT)
    client.close()


@pytest.mark.parametrize("isolated", [False, *[True] * CAN_CONFINE])
def test_the_memory_of_a_connection_is_freed_at_its_end(isolated: bool) -> None:
    """Not when Python looks for objects that refer to themselves: a server has few, and gRPC's memory is large."""
    gc.collect()
    gc.disable()
    try:
        with contextlib.ExitStack() as stack:
            devices = remote.Isolated("reference") if isolated else stack.enter_context(pjrt.client("reference"))
            server = stack.enter_context(remote.serve(devices))
            with MessageClient(server.address) as speaker:
                speaker.put(1, np.arange(3))
                (session,) = server._open_sessions()
                connection = weakref.ref(session.hang_up.__self__)  # type: ignore[attr-defined]
                del session
            wait_until(lambda: connection() is None, "the end of the connection")
    finally:
        gc.enable()
