"""Plugins that crash, hang and print, asked for their facts in a subprocess."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import pjrt
from pjrt import plugins
from pjrt.plugins import Declaration
from pjrt.plugins.probe import ProbeResult, probe

pytestmark = pytest.mark.usefixtures("nothing_configured")

GOOD = """
import pjrt
class Abacus(pjrt.Plugin):
    name, api_version, extensions = "abacus", (0, 99), {"Beads": "round", "Wires": "long"}
    attributes = {"stablehlo_current_version": (1, 2, 3), "wood": "oak"}
    def client(self, /, **options):
        return pjrt.client("reference", **options)
"""


def declared(folder: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> Declaration:
    """A plugin of a module with this code."""
    (folder / "abacus_x.py").write_text(code)
    monkeypatch.syspath_prepend(folder)
    return Declaration("abacus", "a test", factory="abacus_x:Abacus")


def test_it_says_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = dict(plugins.loaded())  # tests before this one may have loaded others, of the same name even
    said = probe(declared(tmp_path, GOOD, monkeypatch))
    attributes = {"stablehlo_current_version": [1, 2, 3], "wood": "oak"}
    assert said == ProbeResult((0, 99), attributes, {"Beads": "round", "Wires": "long"})
    assert dict(plugins.loaded()) == before


def test_a_library(tiny_library: Path) -> None:
    said = probe(Declaration("abacus", "a test", library=tiny_library, options={"num_devices": 2}), devices=True)
    assert (said.problem, [device["id"] for device in said.devices]) == ("", [0, 1])
    assert said.api_version is not None
    assert "Layouts" in said.extensions


def test_a_library_by_its_path(tiny_library: Path) -> None:
    said = probe(plugins.declaration(tiny_library), devices=True, options={"num_devices": 3})
    assert (said.problem, len(said.devices)) == ("", 3)


def test_a_built_in_device() -> None:
    said = probe(plugins.declaration("reference"), devices=True)
    assert said.problem == ""
    (device,) = said.devices
    assert (device["kind"], device["memory_spaces"][0]) == ("reference", "device")


def test_what_was_registered_in_this_process() -> None:
    plugins.register(name="abacus-here", factory=lambda **options: pjrt.client("reference", **options))
    try:
        assert len(probe(plugins.declaration("abacus-here"), devices=True, options={"num_devices": 2}).devices) == 2
    finally:
        plugins.unregister("abacus-here")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", r"ended without an answer: SIGSEGV"),
        ("import os\nprint('out of beads', flush=True)\nos._exit(7)", r"exit code 7; it printed 'out of beads'"),
        (
            "import os\nos.write(2, b'x\\nF1 Check failed: beads\\ntrace\\n')\nos.abort()",
            r"SIGABRT.*Check failed: beads",
        ),
        ("import sys\nsys.exit(0)", r"cannot be loaded: .*:2: SystemExit: 0"),
        ("1 / 0", r"cannot be loaded: .*:1: ZeroDivisionError"),
        ("Abacus = 3", r"must be a function that makes clients or a pjrt.Plugin, found int"),
    ],
)
def test_one_that_fails_says_why(
    code: str, reason: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = probe(declared(tmp_path, code, monkeypatch))
    if reason is None:
        assert said.problem == ""
    else:
        assert said.problem
        with pytest.raises(AssertionError, match=reason):
            raise AssertionError(said.problem)


@pytest.mark.full
def test_one_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"open({str(tmp_path / 'began')!r}, 'w').close()\nimport threading\nthreading.Event().wait()"
    said = probe(declared(tmp_path, code, monkeypatch), time_limit=3)
    assert said.problem == "it did not answer within 3 seconds"


def test_one_that_leaves_a_process_behind_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n" + GOOD
    done: list[ProbeResult] = []
    thread = threading.Thread(target=lambda: done.append(probe(declared(tmp_path, code, monkeypatch), time_limit=240)))
    thread.start()
    thread.join(timeout=120)
    assert [answers.problem for answers in done] == [""]


def test_what_it_prints_does_not_get_into_the_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code = "import os\nos.write(1, b'{} noise')\nos.write(2, b'noise')\nprint('{}')\n" + GOOD
    assert probe(declared(tmp_path, code, monkeypatch)).problem == ""
    assert capfd.readouterr() == ("", "")


def test_one_whose_client_fails_still_says_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = GOOD.replace('pjrt.client("reference", **options)', "raise_()")
    said = probe(declared(tmp_path, code, monkeypatch), devices=True)
    assert said.api_version == (0, 99)
    assert "raise_" in said.problem


def test_one_that_cannot_be_used_is_not_loaded() -> None:
    assert probe(Declaration("abacus", "a test", problem="it is broken")) == ProbeResult(problem="it is broken")
