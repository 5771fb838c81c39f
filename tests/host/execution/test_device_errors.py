"""Errors of a device's code: the place in its source reaches whoever meets them, and none of its memory is kept."""

from __future__ import annotations

import os
import subprocess
import sys
import types
import weakref
from pathlib import Path

import numpy as np
import pytest
import toys
from waiting import wait_until_freed

import pjrt
from pjrt.host import Compiled

SOURCE = """\
import numpy as np, pjrt
from pjrt.host import Compiled
SPECS = [pjrt.ShapeSpec((4,), pjrt.ElementType.F32)]

def check(x):
    assert x is None

def run(x):
    check(x)

def singular(x):
    return np.linalg.inv(np.zeros((2, 2)))

def refuse(x):
    raise MemoryError

def compile(program, options):
    kinds = {b"run": run, b"singular": singular, b"refuse": refuse}
    return Compiled(run=kinds[program.code], outputs=SPECS, parameters=SPECS)
"""


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """An author's module, in a file of its own."""
    (tmp_path / "device.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))  # type: ignore[no-untyped-call]
    monkeypatch.delitem(sys.modules, "device", raising=False)
    import device

    return device  # type: ignore[no-any-return]


CASES = [
    ("run", pjrt.InternalError, "AssertionError (device.py:6 in check)"),
    ("singular", pjrt.InvalidArgumentError, "LinAlgError: Singular matrix (device.py:12 in singular)"),
    ("refuse", pjrt.ResourceExhaustedError, "MemoryError (device.py:15 in refuse)"),
]


@pytest.mark.parametrize(("program", "kind", "message"), CASES)
def test_the_innermost_place_of_the_authors_code(
    device: types.ModuleType, program: str, kind: type[pjrt.PjrtError], message: str
) -> None:
    with pjrt.host.HostClient("place", compile=device.compile) as client, pytest.raises(kind) as found:
        client.compile(program)(toys.floats())[0].ready().result(toys.TIMEOUT)
    assert found.value.message == message


@pytest.mark.parametrize(("program", "kind", "message"), CASES)
def test_the_place_crosses_the_c_api(
    device: types.ModuleType, program: str, kind: type[pjrt.PjrtError], message: str
) -> None:
    exported = pjrt.export(lambda **_: pjrt.host.HostClient("place", compile=device.compile), name="place")
    with pjrt.capi.load_capsule(exported.capsule).client() as client:
        with pytest.raises(kind) as found:
            client.compile(pjrt.Program(program.encode(), format="toy"))(toys.floats())[0].ready().result(toys.TIMEOUT)
        assert found.value.message == message


def test_the_place_in_a_compile_function(device: types.ModuleType) -> None:
    with pjrt.host.HostClient("place", compile=device.compile) as client, pytest.raises(pjrt.InternalError) as found:
        client.compile("unknown")
    assert found.value.message == "KeyError: b'unknown' (device.py:19 in compile)"


def test_an_error_that_the_author_words_stays_as_it_is() -> None:
    def refuse(x: object) -> None:
        raise pjrt.UnimplementedError("no such thing here")

    with toys.client(refuse) as client, pytest.raises(pjrt.UnimplementedError) as found:
        np.asarray(client.compile("program")(toys.floats())[0])
    assert found.value.message == "no such thing here"


def test_where_no_python_code_of_the_author_runs_there_is_no_place() -> None:
    with toys.client("not a number".__add__) as client, pytest.raises(pjrt.InvalidArgumentError) as found:
        np.asarray(client.compile("program")(toys.floats())[0])
    assert found.value.message.startswith("TypeError: ")
    assert ".py:" not in found.value.message


def test_the_memory_that_the_code_worked_on_is_not_kept() -> None:
    kept: list[weakref.ref[object]] = []

    def fail(x: np.ndarray) -> None:
        scratch = x + 1
        kept.append(weakref.ref(scratch))
        raise RuntimeError("half done")

    with toys.client(fail) as client:
        (out,) = client.compile("program")(toys.floats())
        error = out.ready().exception(toys.TIMEOUT)
    assert error is not None
    assert "half done (test_device_errors.py:" in error.message
    assert len(kept) == 1
    wait_until_freed(*kept)


def test_callbacks_say_where_they_raise() -> None:
    def take(data: bytes, total: int, done: bool) -> None:
        raise LookupError("nobody is there")

    def run(context: pjrt.host.RunContext, x: np.ndarray) -> np.ndarray:
        context.send(7, x)
        return x

    spec = toys.spec("f32[4]")
    compiled = Compiled(run=run, outputs=[spec], parameters=[spec], takes_context=True)
    with pjrt.host.HostClient("sends", compile=lambda program, options: compiled) as client:
        options = pjrt.ExecuteOptions(send_callbacks=[[pjrt.SendCallback(7, take)]])
        arguments = [client.buffer_from_host(toys.floats())]
        (out,) = client.compile("program").execute_sharded(arguments, client.devices[0], options)
        error = out.ready().exception(toys.TIMEOUT)
    assert error is not None
    assert "LookupError: nobody is there (test_device_errors.py:" in error.message
    assert error.message.endswith("in take)")


@pytest.mark.full
def test_a_variable_has_the_whole_traceback_printed(tmp_path: Path) -> None:
    (tmp_path / "device.py").write_text(SOURCE)
    script = (
        "import device, numpy as np, pjrt\n"
        "exported = pjrt.export(lambda **_: pjrt.host.HostClient('place', compile=device.compile), name='place')\n"
        "client = pjrt.capi.load_capsule(exported.capsule).client()\n"
        "(out,) = client.compile(pjrt.Program(b'run', format='toy'))(np.zeros(4, np.float32))\n"
        "print(out.ready().exception().message)\n"
    )
    for value, count in [("1", 1), ("0", 0), ("", 0)]:
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PJRT_TRACEBACK": value, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.stdout == "AssertionError (device.py:6 in check)\n", done.stderr
        assert done.stderr.count("Traceback (most recent call last)") == count, done.stderr
        assert done.stderr.count("    assert x is None") == count
