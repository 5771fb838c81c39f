"""The reduction of recordings: the fewest calls with which a wrong plugin is still wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from recorded import record_sums
from wrong_plugin import WrongPlugin

from pjrt import FailedPreconditionError
from pjrt.layers.recording import Recording
from pjrt.layers.replay.reduction import reduce_recording
from pjrt.layers.replay.replay_process import replay


@pytest.fixture(scope="module")
def sums(tiny_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of a sum."""
    path = tmp_path_factory.mktemp("sums") / "sums.rec"
    record_sums(tiny_library, path, count=1)
    return path


@pytest.mark.full
def test_a_crash_needs_what_it_is_called_with(sums: Path, tiny_library: Path, tmp_path: Path) -> None:
    plugin = WrongPlugin(str(tiny_library), "PJRT_LoadedExecutable_Execute", "crash")
    output = tmp_path / "small.rec"
    reduction = reduce_recording(sums, plugin, output, time_limit=120)
    assert reduction.complete
    assert reduction.calls < reduction.of
    functions = [call.function for call in Recording.open(output).calls]
    assert functions == [
        "PJRT_Client_Create", "PJRT_Client_Devices", "PJRT_Client_Compile", "PJRT_Client_BufferFromHostBuffer",
        "PJRT_Client_BufferFromHostBuffer", "PJRT_LoadedExecutable_Execute",
    ]  # fmt: skip
    assert reduction.left_out == 2  # the numbers do not matter
    (finding,) = replay(output, plugin, time_limit=120).findings
    assert finding == reduction.finding
    assert replay(output, tiny_library, time_limit=120).agrees


@pytest.mark.full
def test_a_fault_that_depends_on_the_calls_before_it(sums: Path, tiny_library: Path, tmp_path: Path) -> None:
    plugin = WrongPlugin(str(tiny_library), "PJRT_Client_BufferFromHostBuffer", "fail", calls=1)
    output = tmp_path / "small.rec"
    reduction = reduce_recording(sums, plugin, output, time_limit=120)
    functions = [call.function for call in Recording.open(output).calls]
    assert functions == ["PJRT_Client_Create", "PJRT_Client_Devices", *["PJRT_Client_BufferFromHostBuffer"] * 2]
    assert reduction.finding.kind == "error"


@pytest.mark.full
def test_wrong_data_keeps_what_it_is_made_of(sums: Path, tiny_library: Path, tmp_path: Path) -> None:
    plugin = WrongPlugin(str(tiny_library), "PJRT_Buffer_ToHostBuffer", "flip")
    output = tmp_path / "small.rec"
    reduction = reduce_recording(sums, plugin, output, time_limit=120)
    assert reduction.finding.kind == "data"
    assert reduction.left_out == 0  # with other numbers every plugin would differ
    assert replay(output, tiny_library, time_limit=120).agrees
    assert [finding.kind for finding in replay(output, plugin, time_limit=120).findings] == ["data"]
    assert reduction.calls <= 10


def test_there_must_be_a_failure(sums: Path, tiny_library: Path, tmp_path: Path) -> None:
    with pytest.raises(FailedPreconditionError, match="there is nothing to reduce"):
        reduce_recording(sums, tiny_library, tmp_path / "small.rec", time_limit=120)
    assert not (tmp_path / "small.rec").exists()


@pytest.mark.full
def test_the_time_is_bounded(sums: Path, tiny_library: Path, tmp_path: Path) -> None:
    plugin = WrongPlugin(str(tiny_library), "PJRT_LoadedExecutable_Execute", "crash")
    reduction = reduce_recording(sums, plugin, tmp_path / "small.rec", time_limit=120, total_limit=0)
    assert not reduction.complete
    assert replay(tmp_path / "small.rec", plugin, time_limit=120).findings == (reduction.finding,)
