"""The programs that show a failure: they are compiled and run, and meet the same answers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import build

from pjrt.capi import raw
from pjrt.conformance import check_plugin
from pjrt.conformance.plugin.check import Outcome, Verdict
from pjrt.conformance.plugin.reproduction import Reproduction, c_program, python_program

PROGRAMS = Path(__file__).parent / "programs"


def run_c(program: str, library: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    source, target = folder / "reproduction.c", folder / "reproduction"
    source.write_text(program)
    command = [*build.compiler(), "-Wall", "-Wextra", "-Werror", f"-I{build.INCLUDE}", '-DPJRT_HEADER="pjrt_abi.h"']
    subprocess.run([*command, str(source), "-o", str(target), "-ldl"], check=True)
    return subprocess.run([str(target), str(library)], capture_output=True, text=True, timeout=120, check=False)


def run_python(program: str, library: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    source = folder / "reproduction.py"
    source.write_text(program)
    command = [sys.executable, str(source), str(library)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def failure(library: Path, name: str, **settings: float) -> Outcome:
    """Return the outcome of a check that fails."""
    report = check_plugin(library, filters=[name], programs=PROGRAMS, **settings)  # type: ignore[arg-type]
    assert len(report.failures) == 1, str(report)
    return report.failures[0]


@pytest.mark.full
def test_a_call_that_succeeds_though_it_must_fail(
    unruly_library: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("UNRULY", "wrong answer")
    outcome = failure(unruly_library, "client.lookup_device.absent_id[-1]")
    assert outcome.verdict is Verdict.FAILED
    assert outcome.message == "expected PJRT_Client_LookupDevice to fail with INVALID_ARGUMENT, found that it succeeded"
    assert "PJRT_Client_LookupDevice: success" in run_c(outcome.c_program, unruly_library, tmp_path).stdout
    assert (
        "PJRT_Client_LookupDevice: {'device': " in run_python(outcome.python_program, unruly_library, tmp_path).stdout
    )


@pytest.mark.full
def test_a_crash(unruly_library: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UNRULY", "crash")
    outcome = failure(unruly_library, "client.lookup_device.absent_id[-1]")
    for done in (
        run_c(outcome.c_program, unruly_library, tmp_path),
        run_python(outcome.python_program, unruly_library, tmp_path),
    ):
        assert done.returncode == -11
        assert done.stdout.splitlines()[-1] == "PJRT_Client_LookupDevice: "


@pytest.mark.full
def test_wrong_contents(unruly_library: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UNRULY", "wrong data")
    outcome = failure(unruly_library, "buffer.contents.there_and_back[i32]")
    # The six numbers of the array, of which the plugin changes the first one.
    line = "01 00 00 00 01 00 00 00 02 00 00 00 03 00 00 00 04 00 00 00 05 00 00 00"
    assert line in run_c(outcome.c_program, unruly_library, tmp_path).stdout
    assert line in run_python(outcome.python_program, unruly_library, tmp_path).stdout


def test_a_device_in_python_has_a_program_in_python(tmp_path: Path) -> None:
    call = {"number": 1, "thread": 1, "function": "PJRT_Client_Create", "arguments": {}, "returned": True,
            "error": None, "results": {"client": 4096}}  # fmt: skip
    use = {**call, "number": 2, "function": "PJRT_Client_PlatformName", "arguments": {"client": 4096},
           "results": {"platform_name": b"reference"}}  # fmt: skip
    reproduction = Reproduction.of(Outcome("a.check", Verdict.FAILED, transcript=(call, use)))
    done = run_python(python_program(reproduction, "reference"), Path("reference"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "PJRT_Client_PlatformName: {'platform_name': b'reference'" in done.stdout


def test_every_kind_of_argument_can_be_written(tiny_library: Path, tmp_path: Path) -> None:
    """A callback, options of each type, texts with any byte, layouts, lists without elements, extensions."""
    options = [raw.named_value("all_attribute_types", True), raw.named_value('te"xt\\?', "a\n\0\xff1"),
               raw.named_value("numbers", [1, -(1 << 40)]), raw.named_value("real", 0.5),
               raw.named_value("num_devices", 2)]  # fmt: skip
    calls = [
        _call("PJRT_Client_Create", {"create_options": [_struct(each) for each in options]}, {"client": 1 << 40}),
        _call("PJRT_Client_Devices", {"client": 1 << 40}, {"devices": [2 << 40, 3 << 40], "num_devices": 2}),
        _call(
            "PJRT_Client_BufferFromHostBuffer",
            {"client": 1 << 40, "data": _array(4 << 40, bytes(range(8))), "type": "S32", "dims": [2],
             "byte_strides": [4], "device": 3 << 40, "host_buffer_semantics": 0,
             "device_layout": {"struct": "PJRT_Buffer_MemoryLayout", "fields": {"type": 0, "minor_to_major": [0]}}},
            {"buffer": 5 << 40, "done_with_host_buffer": 6 << 40},
        ),
        _call("PJRT_Event_OnReady", {"event": 6 << 40, "callback": {"function": "done"}, "user_arg": 7}, {}),
        _call("PJRT_RawBuffer_CreateRawAliasOfBuffer", {"buffer": 5 << 40}, {"raw_buffer": 7 << 40}),
        _call("PJRT_RawBuffer_GetOnDeviceSizeInBytes", {"buffer": 7 << 40}, {"on_device_size_in_bytes": 8}),
        _call("PJRT_Client_PlatformName", {"client": 1 << 40, "struct_size": 16}, {}),
    ]  # fmt: skip
    transcript = tuple({**each, "number": i + 1} for i, each in enumerate(calls))
    reproduction = Reproduction.of(Outcome("a.check", Verdict.FAILED, rule="It ends here */", transcript=transcript))
    done = run_c(c_program(reproduction), tiny_library, tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if re.match(r"\w+: ", line)]
    assert lines[:6] == [f"{each['function']}: success" for each in calls[:3]] + [
        "PJRT_Event_OnReady: called back: PJRT_Event_OnReadyCallback, null",
        *(f"{each['function']}: success" for each in calls[4:6]),
    ]
    done = run_python(python_program(reproduction, str(tiny_library)), tiny_library, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "called back with (0, 7)" in done.stdout
    assert "'on_device_size_in_bytes': 8" in done.stdout


def _call(function: str, arguments: dict[str, object], results: dict[str, object]) -> dict[str, object]:
    return {"thread": 1, "function": function, "arguments": arguments, "returned": True, "error": None,
            "results": results}  # fmt: skip


def _struct(value: raw.Struct) -> dict[str, object]:
    return {"struct": value.kind, "fields": dict(value.fields)}


def _array(address: int, data: bytes) -> dict[str, object]:
    return {"array": "int32", "shape": [2], "address": address, "size": len(data), "offset": 0, "data": data}
