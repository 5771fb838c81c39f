"""``pjrt replay``, as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pjrt.cli import main

RECORDING = Path(__file__).resolve().parents[2] / "layers" / "data" / "add.rec"
WRONG = """
from pjrt.devices.reference.client import ReferenceClient

def spoil(step, inputs, outputs):
    if step.name == "stablehlo.add":
        outputs[0][2] = 7

def wrong(**options):
    return ReferenceClient(trace=spoil, **options)
"""


def replay(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["replay", *map(str, arguments)])


@pytest.fixture
def wrong(tmp_path: Path) -> str:
    """A device that adds wrongly."""
    (tmp_path / "wrong.py").write_text(WRONG)
    return f"{tmp_path / 'wrong.py'}:wrong"


@pytest.mark.full
def test_a_plugin_that_agrees() -> None:
    result = replay(RECORDING, "-p", "reference")
    assert result.exit_code == 0, result.output
    assert "reference does what the recording has" in result.output


@pytest.mark.full
def test_a_plugin_that_differs(wrong: str) -> None:
    result = replay(RECORDING, "-p", wrong, "--json")
    assert result.exit_code == 1, result.output
    answer = json.loads(result.stdout)
    assert not answer["agrees"]
    (finding,) = answer["findings"]
    assert (finding["kind"], finding["function"]) == ("data", "PJRT_Buffer_ToHostBuffer")
    assert "1 of 4 elements differ" in finding["text"]
    assert "worst at [2]: 7.0, expected 2.0" in finding["text"]


@pytest.mark.full
def test_stopping_before_the_difference(wrong: str) -> None:
    result = replay(RECORDING, "-p", wrong, "--stop-at", 60)
    assert result.exit_code == 0, result.output
    assert "60 made" in result.output


@pytest.mark.full
def test_a_reduction(wrong: str, tmp_path: Path) -> None:
    small = tmp_path / "small.rec"
    result = replay(RECORDING, "-p", wrong, "--reduce", "-o", small, "--reduce-time", 2)
    assert result.exit_code == 1, result.output
    assert "of 77, after" in result.output
    again = replay(small, "-p", wrong)
    assert again.exit_code == 1
    assert "1 of 4 elements differ" in again.output
    assert replay(small, "-p", "reference").exit_code == 0


def test_a_list_of_the_calls() -> None:
    result = replay(RECORDING, "--list")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert len(lines) == 77
    assert lines[0] == " 1 PJRT_Plugin_Initialize()"
    assert "type=F32, dims=[4]" in lines[36]
    assert lines[67].endswith("-> event=Event#18 <16 bytes>")


@pytest.mark.full
def test_a_recording_that_is_cut_short(tmp_path: Path) -> None:
    (tmp_path / "cut.rec").write_bytes(RECORDING.read_bytes()[:-400])
    result = replay(tmp_path / "cut.rec", "-p", "reference")
    assert result.exit_code == 0, result.output
    assert "cut short" in result.output
    assert "# the file is cut short or damaged in a record at byte" in replay(tmp_path / "cut.rec", "--list").output


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((RECORDING,), "name the plugin with --plugin"),
        ((RECORDING, "-p", "cpu", "--reduce"), "--reduce and --output PATH go together"),
        (("nothing.rec", "-p", "cpu"), "there is no recording nothing.rec"),
        ((__file__, "-p", "cpu"), "expected a recording of the layer record"),
        ((RECORDING, "-p", "cpu", "--reduce", "-o", "x.rec", "--stop-at", 3), "there is nothing to reduce"),
    ],
)
def test_what_cannot_be(arguments: tuple[object, ...], message: str) -> None:
    result = replay(*arguments)
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize("plugin", ["nosuch", "/no/such/plugin.so"])
def test_no_such_plugin(plugin: str) -> None:
    """A name that is wrong is an error, and not a difference of the plugin."""
    result = replay(RECORDING, "-p", plugin)
    assert result.exit_code == 2
    assert plugin in result.output


def test_a_plugin_that_cannot_be_loaded() -> None:
    result = replay(RECORDING, "-p", str(RECORDING))
    assert result.exit_code == 1
    assert "the plugin cannot be loaded" in result.output
