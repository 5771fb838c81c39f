"""The progress of the start, as a terminal shows it."""

from __future__ import annotations

import io

import pytest

from pjrt.clusters.workers.workers import ProgressLine, StartProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    line = ProgressLine()
    line(StartProgress([f"n{i}" for i in range(9)], ["serving"] * 2 + ["joining the job"] * 7, 1.0))
    line.clear()
    line.clear()
    _, shown, cleared = terminal.getvalue().split("\r\x1b[2K")
    assert shown == "starting a cluster: 2 of 9 workers serve; waiting for n2 (j"
    assert cleared == ""


def test_only_some_hosts_are_named() -> None:
    progress = StartProgress([f"n{i}" for i in range(9)], ["serving"] + ["joining"] * 8, 1.0)
    assert str(progress).endswith("waiting for n1 (joining), n2 (joining), n3 (joining) and 5 more")
    assert len(progress.awaited) == 8


@pytest.mark.parametrize("stream", [None, io.StringIO()])
def test_nothing_is_shown_elsewhere(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO | None) -> None:
    monkeypatch.setattr("sys.stderr", stream)
    line = ProgressLine()
    line(StartProgress(["n"], ["serving"], 1.0))
    line.clear()
    assert stream is None or stream.getvalue() == ""
