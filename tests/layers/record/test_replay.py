"""Replays: a recording on another plugin, whatever that does."""

from __future__ import annotations

import ast
import ctypes
import threading
from pathlib import Path

import numpy as np
import pytest
from recorded import X, program, record_jax, record_sums
from tiny.life import Life
from wrong_plugin import WrongPlugin

import pjrt
from pjrt.abi.schema import STRUCTS
from pjrt.capi.environment import library_path
from pjrt.capi.raw.struct import Struct
from pjrt.host_memory.array import aligned_empty
from pjrt.host_memory.tolerance import Tolerance
from pjrt.layers import wrap
from pjrt.layers.recording import Call, Handle, Pointer, Recording, write_recording
from pjrt.layers.replay.replay_arguments import (
    Counterparts,
    Raw,
    RecordedStructReader,
    ReplayArguments,
    ReplayCallbacks,
    StructBuilder,
)
from pjrt.layers.replay.replay_process import ReplayResult, Settings, replay

LIMIT = 120.0
ZERO_COPY = pjrt.HostBufferSemantics.IMMUTABLE_ZERO_COPY


@pytest.fixture(scope="session")
def sums(tiny_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of two sums."""
    folder = tmp_path_factory.mktemp("sums")
    recording = record_sums(tiny_library, folder / "open.rec")  # still open: there is room for more behind its end
    write_recording(recording, folder / "sums.rec", recording.calls)
    return folder / "sums.rec"


@pytest.fixture(scope="session")
def step(tiny_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of two training steps of JAX on the tiny plugin."""
    pytest.importorskip("jax")
    path = tmp_path_factory.mktemp("step") / "step.rec"
    done = record_jax(str(tiny_library), library_path(), path)
    assert done.returncode == 0, done.stderr
    first, second = ast.literal_eval(done.stdout)
    assert second < first / 2
    return path


def test_the_same_plugin_does_the_same(sums: Path, tiny_library: Path) -> None:
    result = replay(sums, tiny_library, time_limit=LIMIT)
    assert result.agrees, result.findings
    recording = Recording.open(sums)
    assert result.calls == len([call for call in recording.calls if not call.function.startswith("PJRT_Error_")])
    assert result.skipped == 0


@pytest.mark.full
def test_a_training_step_of_jax_on_the_plugin_in_c(step: Path, tiny_library: Path) -> None:
    result = replay(step, tiny_library, time_limit=LIMIT)
    assert result.agrees, result.findings
    assert result.calls > 100


@pytest.mark.full
def test_a_training_step_of_jax_on_the_exported_reference(step: Path) -> None:
    result = replay(step, "reference", time_limit=LIMIT)
    assert result.agrees, result.findings
    assert "PJRT_Client_PlatformName" in result.notes
    read = [call for call in Recording.open(step).calls if call.read is not None]
    assert len(read) >= 2  # the losses: without them nothing would be compared


def test_a_life_with_every_function(tiny_library: Path, tmp_path: Path) -> None:
    plugin = wrap(tiny_library, ["record"], record={"file": tmp_path / "life.rec"})
    assert Life(plugin).run() == []
    result = replay(tmp_path / "life.rec", tiny_library, time_limit=LIMIT)
    assert {(finding.kind, finding.function) for finding in result.findings} == {
        ("unusable", "PJRT_Client_CreateViewOfDeviceBuffer"),  # of memory of the process
        ("unusable", "PJRT_Transfers_PJRT_Client_MakeCrossHostReceiveBuffers"),
        ("unusable", "PJRT_Transfers_PJRT_Buffer_CopyToRemoteDevice"),
    }
    assert result.calls > 400


def test_what_the_plugin_serialized_may_have_another_size(tmp_path: Path) -> None:
    program = pjrt.Program(b"func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }")
    plugin = wrap("cpu", ["record"], record={"file": tmp_path / "load.rec"})
    client = plugin.client()
    serialized = client.compile(program).executable.serialize()
    np.testing.assert_array_equal(client.deserialize(serialized)(X)[0], X)
    client.close()
    result = replay(tmp_path / "load.rec", "reference", time_limit=LIMIT)
    assert result.agrees, result.findings


def wrong(
    recording: Path, library: Path, function: str, fault: str, calls: int = 0, limit: float = LIMIT
) -> ReplayResult:
    return replay(recording, WrongPlugin(str(library), function, fault, calls), time_limit=limit)


def test_a_crash_is_a_finding(sums: Path, tiny_library: Path) -> None:
    (finding,) = wrong(sums, tiny_library, "PJRT_LoadedExecutable_Execute", "crash", 1).findings
    executions = [call for call in Recording.open(sums).calls if call.function == "PJRT_LoadedExecutable_Execute"]
    assert (finding.kind, finding.call) == ("crash", executions[1].number)
    assert "SIGSEGV" in finding.text


@pytest.mark.full
def test_a_hang_is_a_finding(sums: Path, tiny_library: Path) -> None:
    (finding,) = wrong(sums, tiny_library, "PJRT_Client_Compile", "hang", limit=5.0).findings
    assert (finding.kind, finding.function) == ("hang", "PJRT_Client_Compile")
    assert "made no progress for 5 s" in finding.text


def test_a_missing_function_is_a_finding(sums: Path, tiny_library: Path) -> None:
    result = wrong(sums, tiny_library, "PJRT_LoadedExecutable_GetExecutable", "missing")
    first = result.findings[0]
    assert (first.kind, first.text) == ("missing", "the plugin has no PJRT_LoadedExecutable_GetExecutable")
    assert result.skipped > 0  # the executable's other functions


def test_a_call_that_fails_is_a_finding(sums: Path, tiny_library: Path) -> None:
    result = wrong(sums, tiny_library, "PJRT_Client_BufferFromHostBuffer", "fail", 1)
    first = result.findings[0]
    assert (first.kind, first.function) == ("error", "PJRT_Client_BufferFromHostBuffer")
    assert "succeeded in the recording, failed here with INVALID_ARGUMENT" in first.text
    assert result.skipped > 0


def test_wrong_host_data_is_a_finding(sums: Path, tiny_library: Path) -> None:
    (first, _) = wrong(sums, tiny_library, "PJRT_Buffer_ToHostBuffer", "flip").findings
    assert (first.kind, first.function, first.place) == ("data", "PJRT_Buffer_ToHostBuffer", "dst")
    assert "1 of 4 elements differ" in first.text


def test_a_tolerance_of_host_data(sums: Path, tiny_library: Path) -> None:
    plugin = WrongPlugin(str(tiny_library), "PJRT_Buffer_ToHostBuffer", "nudge")
    assert replay(sums, plugin, time_limit=LIMIT).agrees
    exact = replay(sums, plugin, Settings(tolerance=Tolerance(0.0, 0.0)), time_limit=LIMIT)
    assert [finding.kind for finding in exact.findings] == ["data", "data"]


def test_an_error_that_does_not_come_is_a_finding(tiny_library: Path, tmp_path: Path) -> None:
    file = tmp_path / "errors.rec"
    client = wrap(tiny_library, ["record"], record={"file": file}).client(bytes_limit=10_000)
    with pytest.raises(pjrt.ResourceExhaustedError):
        client.buffer_from_host(np.zeros(10_000, np.float32))
    (result,) = client.compile(program(fails=True))(client.buffer_from_host(X), client.buffer_from_host(X))
    with pytest.raises(pjrt.PjrtError, match="no luck"):
        result.to_host().result()
    client.close()
    assert replay(file, tiny_library, time_limit=LIMIT).agrees
    other = replay(file, tiny_library, Settings(options={"bytes_limit": 1 << 20}), time_limit=LIMIT)
    assert [(finding.kind, finding.function) for finding in other.findings] == [
        ("no error", "PJRT_Client_BufferFromHostBuffer")
    ]


def test_fewer_devices(tiny_library: Path, tmp_path: Path) -> None:
    file = tmp_path / "devices.rec"
    client = wrap(tiny_library, ["record"], record={"file": file}).client(num_devices=2)
    client.buffer_from_host(X, device=client.devices[1]).to_host().result()
    client.close()
    result = replay(file, tiny_library, Settings(options={"num_devices": 1}), time_limit=LIMIT)
    assert "2 elements in the recording, 1 here" in result.notes["PJRT_Client_Devices"]
    assert result.findings[0].kind == "unusable"
    assert "which this plugin does not have" in result.findings[0].text


def test_devices_with_other_identifiers(sums: Path, tiny_library: Path) -> None:
    result = replay(sums, WrongPlugin(str(tiny_library), "PJRT_DeviceDescription_Id", "number"), time_limit=LIMIT)
    assert result.agrees, result.findings
    assert result.notes["PJRT_DeviceDescription_Id"] == "id: 0 in the recording, 7 here"


def test_a_device_is_looked_up_by_the_identifier_of_this_plugin(sums: Path) -> None:
    recording = Recording.open(sums)
    counterparts = Counterparts(recording, ReplayCallbacks(None))  # type: ignore[arg-type]
    counterparts.device_ids[1] = 8
    counterparts.learn(Handle("PJRT_Client", 1), 4096)
    fields = {"struct_size": 40, "client": Handle("PJRT_Client", 1), "id": 1}
    call = Call(1, 1, 0, "PJRT_Client_LookupDevice", Struct("PJRT_Client_LookupDevice_Args", fields))
    address, _ = ReplayArguments(recording, counterparts, Settings()).build(call, 0)
    arguments = RecordedStructReader().read("PJRT_Client_LookupDevice_Args", address)
    assert (arguments.fields["id"], arguments.fields["client"]) == (8, Raw("PJRT_Client", 4096))


def test_data_that_was_left_out_is_made_anew(tiny_library: Path, tmp_path: Path) -> None:
    file = tmp_path / "shapes.rec"
    record_sums(tiny_library, file, data="none")
    result = replay(file, tiny_library, Settings(seed=3), time_limit=LIMIT)
    assert result.agrees, result.findings


def test_a_plugin_that_uses_host_memory_in_place(tmp_path: Path) -> None:
    file = tmp_path / "zero_copy.rec"
    client = wrap("cpu", ["record"], record={"file": file}).client()
    released = threading.Event()
    data = aligned_empty((8,), np.dtype(np.float32))[1:]
    data[...] = 3
    buffer = client.buffer_from_host(data, semantics=ZERO_COPY, on_done_with_host_buffer=released.set)
    assert buffer.to_host().result().tolist() == [3] * 7
    buffer.delete()
    assert released.wait(LIMIT)
    client.close()
    result = replay(file, "reference", time_limit=LIMIT)
    assert result.agrees, result.findings


def test_an_optimized_program_of_another_size(tiny_library: Path, tmp_path: Path) -> None:
    """The framework asks for the size, and gives memory of this size; the replay gives what this plugin needs."""
    file = tmp_path / "program.rec"
    client = wrap(tiny_library, ["record"], record={"file": file}).client()
    size = len(client.compile(program("recorded")).optimized_program().code)
    client.close()
    recording = Recording.open(file)
    long_name = program("recorded_with_a_name_that_is_longer").code
    assert len(long_name) > size
    compiled = next(call for call in recording.calls if call.function == "PJRT_Client_Compile")
    fields = compiled.arguments.fields["program"].fields
    fields |= {"code": long_name, "code_size": len(long_name)}
    write_recording(recording, tmp_path / "longer.rec", recording.calls)
    result = replay(tmp_path / "longer.rec", tiny_library, time_limit=LIMIT)
    assert result.agrees, result.findings


def test_a_text_that_the_plugin_fills_needs_no_memory() -> None:
    """A framework leaves any value in such a field, and in that of its size."""
    builder = StructBuilder(Counterparts(Recording(), ReplayCallbacks(None)))  # type: ignore[arg-type]
    fields = {"code": None, "code_size": 1 << 61, "format": Pointer(0x123), "format_size": 1 << 61}
    address = builder.build_recorded(Struct("PJRT_Program", fields))
    assert ctypes.c_void_p.from_address(address + STRUCTS["PJRT_Program"].fields["format"].offset).value is None


def test_stopping_at_a_call(sums: Path, tiny_library: Path) -> None:
    assert replay(sums, tiny_library, Settings(stop_at=7), time_limit=LIMIT).calls == 7


def test_a_recording_that_ends_in_a_call(sums: Path, tiny_library: Path, tmp_path: Path) -> None:
    recording = Recording.open(sums)
    data = sums.read_bytes()
    for size in range(len(data) // 2, len(data), 16):
        (tmp_path / "cut.rec").write_bytes(data[:size])
        if Recording.open(tmp_path / "cut.rec").calls[-1].duration is None:
            break
    result = replay(tmp_path / "cut.rec", tiny_library, time_limit=LIMIT)
    assert result.agrees
    assert 0 < result.calls < len(recording.calls)


@pytest.mark.parametrize("kind", ["no_symbol", "text", "missing", "directory"])
def test_what_is_no_plugin(sums: Path, no_symbol_library: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "text.so").write_text("no library")
    paths = {"no_symbol": no_symbol_library, "text": tmp_path / "text.so", "missing": tmp_path / "x.so"}
    (finding,) = replay(sums, str(paths.get(kind, tmp_path)), time_limit=LIMIT).findings
    assert (finding.kind, finding.call) == ("unusable", 0)
    assert finding.text.startswith("the plugin cannot be loaded: ")


@pytest.mark.full
def test_a_library_that_hangs_while_it_loads(sums: Path, tmp_path: Path) -> None:
    source, library = tmp_path / "hang.c", tmp_path / "libhang.so"
    source.write_text("#include <unistd.h>\n__attribute__((constructor)) static void f(void) { for (;;) pause(); }\n")
    from tiny.build import build

    library = build([source], tmp_path, "libhang.so")
    (finding,) = replay(sums, library, time_limit=5.0).findings
    assert (finding.kind, finding.function) == ("hang", "loading the plugin")


def test_a_part_of_a_recording(sums: Path, tiny_library: Path, tmp_path: Path) -> None:
    recording = Recording.open(sums)
    kept = [call for call in recording.calls if not call.function.startswith(("PJRT_Device", "PJRT_Memory_"))]
    write_recording(recording, tmp_path / "part.rec", kept)
    result = replay(tmp_path / "part.rec", tiny_library, time_limit=LIMIT)
    assert result.agrees, result.findings
    assert result.calls == len(kept)
