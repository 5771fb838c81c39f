"""The layer record: every call, with what goes in and what comes out."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from recorded import X, program, record_sums

import pjrt
from pjrt import InvalidArgumentError, PjrtError
from pjrt.api.client import Client
from pjrt.layers import wrap
from pjrt.layers.recording import Call, Callback, Handle, LeftOut, Recording

FROM_HOST = "PJRT_Client_BufferFromHostBuffer"


@dataclass
class Recorded:
    """A client that is recorded, and the calls that a test makes."""

    client: Client
    file: Path
    first: int = 0

    def calls(self, function: str) -> list[Call]:
        """Return the calls of a function that were made since the test began."""
        recording = Recording.open(self.file)
        return [call for call in recording.calls if call.function == function and call.number > self.first]

    @property
    def size(self) -> int:
        """The bytes that were recorded; behind them there is room for more."""
        return len(self.file.read_bytes().rstrip(b"\0"))

    def callbacks(self) -> list[Callback]:
        """Return all callbacks."""
        return list(Recording.open(self.file).callbacks)

    def array(self, value: Any) -> list[float]:
        """Return the numbers in a recorded array."""
        return array_of(Recording.open(self.file), value)


@pytest.fixture(scope="module")
def recorded_client(tiny_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Path]]:
    """A client that is recorded; one for all, since a process wraps some tables only."""
    file = tmp_path_factory.mktemp("recorded") / "all.rec"
    with wrap(tiny_library, ["record"], record={"file": file}).client() as client:
        yield client, file


@pytest.fixture
def recorded(recorded_client: tuple[Client, Path]) -> Recorded:
    """The recorded client, as a test finds it."""
    return Recorded(*recorded_client, Recording.open(recorded_client[1]).calls[-1].number)


def calls_of(recording: Recording, function: str) -> list[Call]:
    return [call for call in recording.calls if call.function == function]


def array_of(recording: Recording, value: Any) -> list[float]:
    return list(np.frombuffer(recording.data(value) or b"", np.float32).tolist())


def test_host_data_goes_in_and_comes_out(recorded: Recorded) -> None:
    first, second = X[::-1], np.arange(8, dtype=np.float32)[::2]
    (result,) = recorded.client.compile(program())(*map(recorded.client.buffer_from_host, (first, second)))
    assert result.to_host().result().tolist() == [3, 4, 5, 6]
    inputs = recorded.calls(FROM_HOST)
    assert [recorded.array(call.data) for call in inputs] == [[3, 2, 1, 0], [0, 2, 4, 6]]
    assert [call.arguments.fields["byte_strides"] for call in inputs] == [[-4], [8]]
    (read,) = recorded.calls("PJRT_Buffer_ToHostBuffer")
    assert recorded.array(read.read) == [3, 4, 5, 6]
    (run,) = recorded.calls("PJRT_LoadedExecutable_Execute")
    assert run.arguments.fields["argument_lists"] == [
        [call.results.fields["buffer"] for call in inputs if call.results]
    ]
    assert run.results is not None
    assert run.results.fields["output_lists"] == [[read.arguments.fields["src"]]]


def test_data_can_be_left_out(tiny_library: Path, tmp_path: Path) -> None:
    recording = record_sums(tiny_library, tmp_path / "sums.rec", data="none")
    assert {call.data for call in calls_of(recording, FROM_HOST)} == {LeftOut(16)}
    assert {call.read for call in calls_of(recording, "PJRT_Buffer_ToHostBuffer")} == {LeftOut(16)}
    (compilation,) = calls_of(recording, "PJRT_Client_Compile")
    code = compilation.arguments.fields["program"].fields["code"]
    assert b"tiny 1" in bytes(recording.data(code) or b"")  # programs are not host data


def test_equal_data_is_written_once(recorded: Recorded) -> None:
    data = np.random.default_rng(0).random(1 << 16, np.float32)
    before = recorded.size
    recorded.client.buffer_from_host(data)
    once = recorded.size
    recorded.client.buffer_from_host(data.copy())
    assert once - before > data.nbytes
    assert recorded.size - once < 2000
    first, second = recorded.calls(FROM_HOST)
    assert first.data == second.data


def test_errors_and_their_messages(recorded: Recorded) -> None:
    client = recorded.client
    with pytest.raises(PjrtError):
        client.compile(pjrt.Program(b"nonsense", "tiny"))
    (result,) = client.compile(program(fails=True))(client.buffer_from_host(X), client.buffer_from_host(X))
    with pytest.raises(PjrtError, match="no luck"):
        result.to_host().result()
    failed = recorded.calls("PJRT_Client_Compile")[0]
    assert failed.error is not None
    assert failed.error.code == 3
    assert "a tiny program starts with" in failed.error.message
    events = [*recorded.calls("PJRT_Event_Error"), *recorded.calls("PJRT_Event_Await"), *recorded.callbacks()]
    errors = [each.error for each in events if each.error is not None]
    assert any(error.code == 13 and error.message == "no luck" for error in errors)


def test_handles_have_numbers_of_their_own(recorded: Recorded) -> None:
    for _ in range(50):
        recorded.client.buffer_from_host(X).delete()
    made = [call.results.fields["buffer"] for call in recorded.calls(FROM_HOST) if call.results]
    assert len({handle.number for handle in made}) == 50  # the plugin uses addresses again
    assert all(isinstance(handle, Handle) and handle.kind == "PJRT_Buffer" for handle in made)


def test_threads_keep_their_order(recorded: Recorded) -> None:
    def work(value: int) -> None:
        for i in range(20):
            recorded.client.buffer_from_host(np.array([value, i], np.float32)).delete()

    threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    by_thread: dict[int, list[list[float]]] = {}
    recording = Recording.open(recorded.file)
    for call in recorded.calls(FROM_HOST):
        by_thread.setdefault(call.thread, []).append(array_of(recording, call.data))
    assert len(by_thread) == 4
    for rows in by_thread.values():
        assert [row[1] for row in rows] == list(range(20))
        assert len({row[0] for row in rows}) == 1


@settings(max_examples=25, deadline=None)
@given(data=st.data(), shape=hnp.array_shapes(min_dims=0, max_dims=4, max_side=4), steps=st.lists(st.integers(-2, 2)))
def test_arrays_of_any_strides(
    recorded_client: tuple[Client, Path], data: st.DataObject, shape: tuple[int, ...], steps: list[int]
) -> None:
    client, file = recorded_client
    dtype = data.draw(st.sampled_from([np.int8, np.float16, np.int32, np.float64, np.complex64]))
    sizes = [2 * size for size in shape]
    base = np.arange(int(np.prod(sizes))).astype(dtype).reshape(sizes)
    key = tuple(slice(None, None, step or 1) for step in steps[: len(shape)])
    array = base[key].transpose(data.draw(st.permutations(range(len(shape)))))
    client.buffer_from_host(array).delete()
    recording = Recording.open(file)
    assert bytes(recording.data(calls_of(recording, FROM_HOST)[-1].data) or b"") == array.tobytes()


def run(script: str) -> subprocess.CompletedProcess[str]:
    text = f"import sys; sys.path[:] = {sys.path!r}\n{script}"
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=False)


def test_a_process_that_dies_leaves_its_last_call(tiny_library: Path, tmp_path: Path) -> None:
    done = run(f"""
import os, signal
from pjrt.layers import wrap
from recorded import X
client = wrap({str(tiny_library)!r}, ["record"], record={{"file": {str(tmp_path / "dead.rec")!r}}}).client()
client.buffer_from_host(X)
os.kill(os.getpid(), signal.SIGKILL)
""")
    assert done.returncode == -9, done.stderr
    recording = Recording.open(tmp_path / "dead.rec")
    assert recording.problem == "the process ended before the recording was closed"
    (call,) = calls_of(recording, FROM_HOST)
    assert array_of(recording, call.data) == X.tolist()


def test_a_forked_child_leaves_the_file_alone(tiny_library: Path, tmp_path: Path) -> None:
    file = tmp_path / "forked.rec"
    done = run(f"""
import ctypes, os
from pjrt.layers import wrap
from recorded import X
client = wrap({str(tiny_library)!r}, ["record"], record={{"file": {str(file)!r}}}).client()
child = os.fork()
if child == 0:
    ctypes.CDLL(None).exit(0)  # with all that C does when a process ends
os.waitpid(child, 0)
client.buffer_from_host(X)
client.close()
""")
    assert done.returncode == 0, done.stderr
    recording = Recording.open(file)
    assert not recording.problem
    assert len(calls_of(recording, FROM_HOST)) == len(calls_of(recording, "PJRT_Client_Destroy")) == 1


def test_plugins_of_one_process_have_files_of_their_own(tiny_library: Path, tmp_path: Path) -> None:
    file = tmp_path / "both.rec"
    done = run(f"""
from pjrt.layers import wrap
for library, layers in [({str(tiny_library)!r}, ["record"]), ({str(tiny_library)!r}, ["pass", "record"])]:
    wrap(library, layers, record={{"file": {str(file)!r}}}).client().close()
""")
    assert done.returncode == 0, done.stderr
    for path in (file, tmp_path / "both.1.rec"):
        recording = Recording.open(path)
        assert not recording.problem
        assert len(calls_of(recording, "PJRT_Client_Create")) == 1


def test_a_disk_that_is_full_stops_the_recording_only(tiny_library: Path) -> None:
    done = run(f"""
from pjrt.layers import wrap
client = wrap({str(tiny_library)!r}, ["record"], record={{"file": "/dev/full"}}).client()
assert client.devices
""")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the recording /dev/full ends here, and the program goes on without it") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": "some"}, "expected data=all, or data=none"),
        ({"size": 3}, "expected the options file and data, found size"),
        ({"file": "/nowhere/x.rec"}, "cannot write the recording /nowhere/x.rec: No such file"),
    ],
)
def test_wrong_options(tiny_library: Path, tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        wrap(tiny_library, ["record"], record={"file": tmp_path / "x.rec"} | options)
