"""The output of workers: where its lines go."""

from __future__ import annotations

from pathlib import Path

import pytest

from pjrt.clusters.launchers.launcher import WorkerOutput


def test_lines_have_the_host_in_front(capsys: pytest.CaptureFixture[str]) -> None:
    output = WorkerOutput("node1")
    output.write_line("one")
    output.write_line("[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1")
    output.write_line("")
    assert capsys.readouterr() == ("", "[node1] one\n[node1] \n")
    assert output.tail == ["one", ""]
    output.close()
    output.write_line("late")
    assert capsys.readouterr().err == ""
    assert output.tail[-1] == "late"


def test_a_terminal_obeys_colors_alone(capsys: pytest.CaptureFixture[str]) -> None:
    WorkerOutput("node1").write_line("\x1b[31mred\x1b[0m \x1b]0;title\x07\x1b[2J")
    assert capsys.readouterr().err == "[node1] \x1b[31mred\x1b[0m \\x1b]0;title\\x07\\x1b[2J\n"


def test_lines_may_be_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = WorkerOutput("node1", path=tmp_path / "log")
    for number in range(100):
        output.write_line(f"line {number} " + "é" * 600)
    assert (tmp_path / "log").read_text(encoding="utf-8").splitlines()[99] == "line 99 " + "é" * 600
    assert len(output.tail) == 40
    assert output.tail[-1].startswith("line 99 é")
    assert len(output.tail[-1]) == 500
    output.close()
    assert capsys.readouterr().err == ""


def test_lines_for_which_the_disk_has_no_room_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The worker would stand still if nobody read its output any more."""
    (tmp_path / "log").symlink_to("/dev/full")
    output = WorkerOutput("node1", path=tmp_path / "log")
    output.write_line("one")
    output.write_line("two")
    errors = capsys.readouterr().err
    assert errors.endswith("[node1] one\n[node1] two\n")
    assert output.tail == ["one", "two"]
    output.close()


def test_hidden_lines_are_kept_for_errors(capsys: pytest.CaptureFixture[str]) -> None:
    output = WorkerOutput("node1", shown=False)
    output.write_line("secret")
    assert output.tail == ["secret"]
    assert capsys.readouterr().err == ""


def test_a_program_without_a_console(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)
    output = WorkerOutput("node1")
    output.write_line("one")
    assert output.tail == ["one"]
