"""The command in a terminal of 80 columns."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pjrt import cli
from pjrt.api.printable import printable
from pjrt.cli import main

COLUMNS = 80
ADD = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32> loc("a_folder_with_a_rather_long_name/and_a_file_in_it.py":12:9)
  return %0 : tensor<4xf32>
}
"""


def lines(*arguments: str, cwd: Path) -> list[str]:
    """Return the text that the command shows, without colours and overdrawn text."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    command = [sys.executable, "-m", "pjrt", *arguments]
    environment = {**os.environ, "TERM": "xterm", "TF_CPP_MIN_LOG_LEVEL": "3"}
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=environment, cwd=cwd) as process:
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:  # how Linux says that nobody holds the other end any more
            pass
        os.close(ours)
    assert process.returncode == 0, shown
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()).replace("\r", "").splitlines()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "add.mlir").write_text(ADD)
    return tmp_path


def test_no_summary_is_cut(tmp_path: Path) -> None:
    shown = lines("--help", cwd=tmp_path)
    assert not [line for line in shown[1:] if "..." in line]
    assert max(map(len, shown)) <= COLUMNS


def test_examples_fit() -> None:
    context = click.Context(main)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        examples = [line for line in (command.epilog or "").splitlines() if line.startswith("  pjrt")]
        assert examples, name
        # In the help they are indented by two more.
        assert max(map(len, (command.epilog or "").splitlines())) + 2 <= COLUMNS, name
        assert "..." not in command.get_short_help_str(COLUMNS - 20), name


@pytest.mark.full
def test_a_bar_is_on_one_line(folder: Path) -> None:
    shown = lines("compile", "add.mlir", "-t", "cpu", cwd=folder)
    bars = [line for line in shown if "█" in line or "░" in line]
    assert len(bars) == 5
    assert all(line.rstrip().endswith("%") for line in bars)
    assert max(map(len, shown)) <= COLUMNS


def test_a_table_for_another_program_is_as_wide_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    from pjrt.cli._console import print_table

    def widest(columns: str) -> int:
        monkeypatch.setenv("COLUMNS", columns)
        return max(map(len, _output(lambda: print_table(["name", "text"], [["x", "word " * 30]])).splitlines()))

    assert widest("60") <= 60
    assert 150 < widest("") <= 200
    assert 150 < widest("0") <= 200


@pytest.mark.full
def test_words_are_whole(folder: Path) -> None:
    shown = lines("inspect", "add.mlir", cwd=folder)
    assert any("a_folder_with_a_rather_long_name/and_a_file_in_it.py:12:9" in line for line in shown)
    assert max(map(len, shown)) > COLUMNS  # for no terminal of this width holds that table
    devices = lines("devices", "cpu", "reference", cwd=folder)
    assert max(map(len, devices)) <= COLUMNS
    words = {word for line in devices for word in line.split()}
    assert {"device,", "pinned_host,", "unpinned_host", "StableHLO", "reference"} <= words


def test_needed_is_said_not_to_be_the_sum_where_it_is_not(folder: Path) -> None:
    from pjrt.cli._compilation import _print_memory

    names = ("argument", "output", "alias", "temp", "generated_code")
    memory = {f"{name}_size_in_bytes": 10 for name in names}
    assert "sum of the rows" not in _output(lambda: _print_memory(memory, 30, None, None))
    assert "'needed' is the compiler's peak" in _output(lambda: _print_memory(memory, 31, None, None))


def test_a_time_that_the_compiler_does_not_know_is_not_shown() -> None:
    from pjrt.cli._compilation import print_cost

    assert "time at best            2 s" in _output(lambda: print_cost({"flops": 4.0, "optimal_seconds": 2.0}, None))
    unknown = _output(lambda: print_cost({"flops": 4.0, "optimal_seconds": -2.0}, None))
    assert "FLOPs" in unknown
    assert "time" not in unknown


def test_text_between_colons_is_no_emoji() -> None:
    from pjrt.cli._console import print_table

    assert "x:smile:y" in _output(lambda: print_table(["name"], [["x:smile:y"]]))


def test_a_process_does_not_search_for_garbage_at_its_end() -> None:
    code = (
        "import atexit, gc, sys\nfrom pjrt.__main__ import run\n"
        "atexit.register(lambda: print('frozen', gc.get_freeze_count() > 10_000))\n"
        "sys.argv = ['pjrt', '--help']\nrun()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.endswith("frozen True\n"), done.stdout + done.stderr


def _output(show: object) -> str:
    from click.testing import CliRunner

    return CliRunner().invoke(click.Command("show", callback=show), []).output  # type: ignore[arg-type]


RARE = [
    "html",
    "pjrt.artifacts.compilation_cache",
    "pjrt.artifacts.saved_executable",
    "pjrt.models.comparison",
    "pjrt.models.offloading",
    "pjrt.models.report",
    "pjrt.plugins.subprocess_support",
    "pjrt.stablehlo.transforms.refinement",
    "pjrt.stablehlo.transforms.partitioner",
    "rich._emoji_codes",
]
"""Modules that no command needs for a program of one device and static shapes."""


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["--help"], ["pjrt.cli.run", "pjrt.models", "pjrt.stablehlo", "asyncio"]),
        (["run", "add.mlir", "-i", "zeros", "-d", "reference"], ["asyncio", "jax", *RARE]),
        (["run", "add.mlir", "-i", "zeros", "-d", "cpu"], ["hashlib", *RARE]),
        (["inspect", "add.mlir"], ["hashlib", "jax", "pjrt.models.model", *RARE]),
    ],
)
def test_commands_import_only_what_they_need(tmp_path: Path, arguments: list[str], absent: list[str]) -> None:
    (tmp_path / "add.mlir").write_text(
        "func.func @main(%x: tensor<f32>) -> tensor<f32> {\n  return %x : tensor<f32>\n}"
    )
    code = (
        "import sys\nfrom pjrt.cli import main\n"
        f"main({arguments!r}, standalone_mode=False)\n"
        f"print('imported', [name for name in {absent!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.stdout.endswith("imported []\n"), done.stdout + done.stderr


HOSTILE = """module @"title\\1B]0;stolen\\07" {
  func.func public @main(%x: tensor<4xf32> {jax.arg_info = "a\\1B[2J"})
      -> (tensor<4xf32> {jax.result_info = "r\\1B[31m"}) {
    CALL
    return %y : tensor<4xf32> loc("l\\1B[5n\\C2\\9B31m\\E2\\80\\AE":1:2)
  }
}"""
CALL = """%y = stablehlo.custom_call @"evil\\1B[2Jx"(%x) : (tensor<4xf32>) -> tensor<4xf32> loc("l\\1B[5n":1:2)"""
ADD_THERE = """%y = stablehlo.add %x, %x : tensor<4xf32> loc("l\\1B[5n\\C2\\9B31m\\E2\\80\\AE":1:2)"""
FILE = "m\x1b[2J.mlir"
COMMANDS = [
    "inspect",
    "inspect --text --locations",
    "inspect --json",
    "inspect --dot",
    "check --device cpu",
    "check --device reference",
    "compile -t cpu",
    "run -d cpu -i random:0",
    "run -d reference -i random:0",
    "run -d reference -i random:0 --profile",
    "run -d reference -i random:0 --json",
    "run -d reference -i absent\x1b[2J.npy",
    "bench -d reference",
    "compare -d reference -d cpu",
]


@pytest.mark.full
@pytest.mark.parametrize("call", [CALL, ADD_THERE], ids=["refused", "accepted"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_terminal_obeys_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, call: str) -> None:
    """Names, locations and errors could set its title, clear it, or let it answer as if the user had typed."""
    monkeypatch.chdir(tmp_path)
    Path(FILE).write_text(HOSTILE.replace("CALL", call))
    done = CliRunner().invoke(main, [*command.split(), FILE], color=True)  # as it is for a terminal
    assert not isinstance(done.exception, Exception), done.exception
    assert [c for c in done.output if not c.isprintable() and c != "\n"] == []
    assert done.output


def test_texts_reach_the_terminal_in_one_way() -> None:
    """Which makes them harmless. ``launch`` shows the lines of the user's own programs, with their colors."""
    folder = Path(cli.__file__).parent
    others = {path.name for path in folder.glob("*.py") if re.search(r"(click\.s?echo|\bprint)\(", path.read_text())}
    assert others == {"_console.py", "launch.py"}


def test_what_a_terminal_may_get() -> None:
    assert printable("a\tb\nc é 漢 █ 🙂") == "a\tb\nc é 漢 █ 🙂"
    assert printable("\x1b[31m\x07\r\x7f\x9b\u202e\u2028\ud800") == r"\x1b[31m\x07\r\x7f\x9b\u202e\u2028\ud800"
    assert printable("\x1b[1;31mred\x1b[0m\x1b[2J", colors=True) == "\x1b[1;31mred\x1b[0m\\x1b[2J"
