"""The options of the trace layer: what is recorded, and what wrong options say."""

from __future__ import annotations

from pathlib import Path

import pytest
from traced import TracedRun, run_traced

from pjrt.layers.trace.trace_file import TraceOptions
from pjrt.layers.trace.trace_objects import values_of

CODE = """
for _ in range(10):
    client.buffer_from_host(X).delete()
try:
    client.compile(pjrt.Program(b"nonsense", format="tiny"))
except pjrt.PjrtError:
    pass
client.compile(program("a" * 300, statements=[("sleep", 1)]))(X)
"""


def names(run: TracedRun) -> list[str]:
    assert run.returncode == 0, run.output
    return [call.function.name for call in run.trace.calls]


def test_functions_by_name(tiny_library: Path, tmp_path: Path) -> None:
    run = run_traced(CODE, tiny_library, tmp_path, "functions=Client_*|PJRT_Buffer_Delet?|!*Compile,sample=3")
    found = names(run)
    assert {name.removeprefix("PJRT_").partition("_")[0] for name in found} == {"Client", "Buffer"}
    assert "PJRT_Client_Compile" not in found
    # 1 of 3: the first, the fourth, the seventh and the tenth
    assert found.count("PJRT_Client_BufferFromHostBuffer") == 4
    assert found.count("PJRT_Buffer_Delete") == 4
    assert run.trace.sample == 3


def test_only_errors(tiny_library: Path, tmp_path: Path) -> None:
    run = run_traced(CODE, tiny_library, tmp_path, "errors=1")
    assert names(run) == ["PJRT_Client_Compile"]
    assert run.trace.calls[0].message.startswith("Line 1 of the tiny program")


def test_only_slow_calls(tiny_library: Path, tmp_path: Path) -> None:
    code = CODE + "(y,) = client.compile(program('slow', statements=[('sleep', 60)]))(X)\ny.ready().result()\n"
    run = run_traced(code, tiny_library, tmp_path, "slower=20ms")
    assert run.returncode == 0, run.output
    assert all(call.duration >= 20e6 for call in run.trace.calls)


def test_short_texts_and_arrays(tiny_library: Path, tmp_path: Path) -> None:
    run = run_traced(CODE, tiny_library, tmp_path, "text=10,array=0")
    assert run.returncode == 0, run.output
    compile_ = next(call for call in run.trace.calls if call.failed)
    assert compile_.message == "Line 1 of "
    buffer = next(call for call in run.trace.calls if call.function.name == "PJRT_Client_BufferFromHostBuffer")
    assert values_of(run.trace, buffer).arguments["dims"].total == 1
    assert values_of(run.trace, buffer).arguments["dims"].items == []


@pytest.mark.parametrize("ready", ["events", "buffers"])
def test_listening_to_events(ready: str, tiny_library: Path, tmp_path: Path) -> None:
    """Without being asked for by the program, whose calls stay the same."""
    run = run_traced(CODE + "client.close()\n", tiny_library, tmp_path, f"ready={ready}")
    notices = [notice.function.name for notice in run.trace.ready]
    assert names(run).count("PJRT_Buffer_ReadyEvent") == 0
    assert notices.count("PJRT_Client_BufferFromHostBuffer") == (11 if ready == "events" else 22)
    assert notices.count("PJRT_LoadedExecutable_Execute") == (0 if ready == "events" else 1)
    assert all(notice.end >= notice.begin for notice in run.trace.ready)


def test_asking_nothing(tiny_library: Path, tmp_path: Path) -> None:
    run = run_traced(CODE, tiny_library, tmp_path, "ask=0")
    assert run.returncode == 0, run.output
    assert run.trace.notes == [note for note in run.trace.notes if note.text.startswith("plugin ")]
    assert "PJRT_LoadedExecutable_Execute" in names(run)


def test_off_and_on_while_the_process_runs(tiny_library: Path, tmp_path: Path) -> None:
    code = """
from pathlib import Path
from pjrt.layers.trace.trace_file import switch_trace
(file,) = Path(os.environ["FOLDER"]).glob("*.trace")
client.devices[0].memory_stats()
switch_trace(file, on=True)
client.compile(program("seen"))
switch_trace(file, on=False)
client.buffer_from_host(X)
"""
    code = code.replace('os.environ["FOLDER"]', repr(str(tmp_path)))
    run = run_traced(code, tiny_library, tmp_path, "on=0")
    assert set(names(run)) >= {"PJRT_Client_Compile"}
    assert not {"PJRT_Device_MemoryStats", "PJRT_Client_BufferFromHostBuffer", "PJRT_Client_Create"} & set(names(run))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("ring=5", "ring to be a size of at least 128k, such as 64m, found 5"),
        ("color=red", "found color"),
        ("=x", "found =x"),
        ("functions=Nope*", "there is no function Nope*; near are "),
        ("functions=Buffer_*|!Client_Compil", "there is no function Client_Compil; near are Client_Compile, "),
    ],
)
def test_wrong_options(options: str, expected: str, tiny_library: Path, tmp_path: Path) -> None:
    run = run_traced("", tiny_library, tmp_path, options)
    assert run.returncode != 0
    assert expected in run.output
    assert run.traces == []


def test_a_file_that_cannot_be_written(tiny_library: Path, tmp_path: Path) -> None:
    run = run_traced("", tiny_library, tmp_path / "missing", "")
    assert run.returncode != 0
    assert "No such file or directory" in run.output


def test_a_ring_that_the_disk_has_no_room_for(tiny_library: Path, tmp_path: Path) -> None:
    run = run_traced("", tiny_library, tmp_path, "ring=9000g")
    assert run.returncode != 0
    assert "No space left on device" in run.output
    assert list(tmp_path.iterdir()) == []


def test_options_as_text() -> None:
    options = TraceOptions("/a,b/%p.trace", functions=("Client_*", "!*Destroy"), errors=True, slower="1ms", sample=2)
    assert options.as_text() == ("file=/a\\,b/%p.trace,functions=Client_*|!*Destroy,errors=1,slower=1ms,sample=2")
