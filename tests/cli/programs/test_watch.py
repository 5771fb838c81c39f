"""``pjrt run --watch`` as a user has it: in a terminal of its own, while files are saved."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

PROGRAM = "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {{ return %x : tensor<2xf32> }} // {}\n"

DEVICE = """
import pjrt
from amounts import AMOUNT

def make_client(**options):
    return pjrt.StableHloClient("watched", compile=lambda program, options: lambda x: x + {}, **options)
"""

interrupts = pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is sent as a signal")


def save(path: Path, text: str) -> None:
    """As many editors do it: the old file is taken away, then the new one put in its place."""
    scratch = path.with_name(f".{path.name}.swp")
    scratch.write_text(text)
    path.unlink(missing_ok=True)
    os.replace(scratch, path)


class Watching:
    """The command, and what it says, line by line."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pjrt", "run", *arguments, "--watch"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder), "PYTHONUNBUFFERED": "1"},
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))

    def until(self, words: str) -> list[str]:
        """Return the output up to a line with these words."""
        said: list[str] = []
        while not said or words not in said[-1]:
            try:
                said.append(self._lines.get(timeout=120))
            except queue.Empty:
                raise AssertionError(f"expected {words!r}, found {said}") from None
        return said

    def run(self) -> list[str]:
        """Return the output up to the wait for the next change."""
        return self.until("watching ")

    def end(self) -> int:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(60)
        self._reader.join(60)
        return code

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)
        self._reader.join(60)
        if self.process.stdout:
            self.process.stdout.close()


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[Callable[..., Watching]]:
    """Starts the command in a folder with a device, a program and an input."""
    save(tmp_path / "program.mlir", PROGRAM.format("first"))
    save(tmp_path / "amounts.py", "AMOUNT = 1\n")
    save(tmp_path / "device.py", DEVICE.format("AMOUNT"))
    np.save(tmp_path / "x.npy", np.zeros(2, np.float32))
    started: list[Watching] = []

    def start(*arguments: str) -> Watching:
        given = arguments or ("program.mlir", "-i", "x.npy", "-d", "./device.py:make_client", "-o", "y.npy")
        started.append(Watching(tmp_path, *given))
        return started[-1]

    yield start
    for each in started:
        each.kill()


def answer(folder: Path) -> float:
    return float(np.load(folder / "y.npy")[0])


@pytest.mark.full
@interrupts
def test_it_runs_again_when_a_file_is_saved(watching: Callable[..., Watching], tmp_path: Path) -> None:
    command = watching()
    assert any("watched" in line for line in command.run())
    assert answer(tmp_path) == 1
    save(tmp_path / "device.py", DEVICE.format("AMOUNT + 10"))
    said = command.run()
    assert said[0] == f"changed: {tmp_path / 'device.py'}"
    assert answer(tmp_path) == 11
    save(tmp_path / "amounts.py", "AMOUNT = 2\n")
    assert command.run()[0] == f"changed: {tmp_path / 'amounts.py'}"
    assert answer(tmp_path) == 12
    np.save(tmp_path / "x.npy", np.full(2, 100, np.float32))
    assert command.run()[0] == "changed: x.npy"
    assert answer(tmp_path) == 112
    save(tmp_path / "program.mlir", PROGRAM.format("second"))
    assert command.run()[0] == "changed: program.mlir"
    assert command.end() == 0


@pytest.mark.full
@interrupts
@pytest.mark.parametrize(
    ("name", "broken", "said"),
    [
        ("device.py", "def make_client(:\n", "device.py:1: SyntaxError: invalid syntax"),
        ("amounts.py", "AMOUNT = 1 / 0\n", "amounts.py:1: ZeroDivisionError: division by zero"),
        ("device.py", DEVICE.format("nothing"), "name 'nothing' is not defined"),
        ("device.py", "import sys\nsys.exit('leave')\n", "device.py:2: SystemExit: leave"),
        ("device.py", "def make_clients(): ...\n", "has no 'make_client'"),
        ("program.mlir", "func.func @main(", "pjrt: error: "),
        ("x.npy", "no array", "pjrt: error: --input x.npy: "),
    ],
)
def test_an_error_is_told_and_ends_nothing(
    watching: Callable[..., Watching], tmp_path: Path, name: str, broken: str, said: str
) -> None:
    command = watching()
    command.run()
    good = (tmp_path / name).read_bytes()
    save(tmp_path / name, broken)
    told = command.run()
    assert told[0].endswith(name)
    assert any("pjrt: error: " in line and said in line for line in told), told
    assert not any("Traceback" in line for line in told)
    (tmp_path / "y.npy").unlink()
    (tmp_path / name).write_bytes(good)
    assert command.run()[0].endswith(name)
    assert answer(tmp_path) == 1
    assert command.end() == 0


@pytest.mark.full
@interrupts
def test_a_device_that_is_broken_at_first(watching: Callable[..., Watching], tmp_path: Path) -> None:
    save(tmp_path / "device.py", "import +\n")
    command = watching()
    assert any("SyntaxError" in line for line in command.run())
    save(tmp_path / "device.py", DEVICE.format("AMOUNT"))
    for value in (5, 6):  # there may be a run for each of the files
        save(tmp_path / "amounts.py", f"AMOUNT = {value}\n")
        while not (tmp_path / "y.npy").exists() or answer(tmp_path) != value:
            command.run()
    assert command.end() == 0


@pytest.mark.full
@interrupts
def test_many_saves_at_once(watching: Callable[..., Watching], tmp_path: Path) -> None:
    """The last one is what runs in the end, however many of them are seen."""
    command = watching()
    command.run()
    for value in range(60):
        save(tmp_path / "amounts.py", f"AMOUNT = {value} +\n")
        save(tmp_path / "amounts.py", f"AMOUNT = {value}\n")
    while not (tmp_path / "y.npy").exists() or answer(tmp_path) != 59:
        command.run()
    assert command.end() == 0


@pytest.mark.full
@interrupts
def test_a_device_in_the_box_and_json(watching: Callable[..., Watching], tmp_path: Path) -> None:
    command = watching("program.mlir", "-i", "0=x.npy", "-d", "reference", "--json")
    for _ in range(2):
        said = command.run()
        start = said.index("{")
        assert json.loads("\n".join(said[start:-1]))["device"] == "reference"
        assert said[-1] == "watching 2 files; Ctrl-C ends it"
        save(tmp_path / "program.mlir", PROGRAM.format("third"))
    command.run()
    assert command.end() == 0


@interrupts
def test_ctrl_c_while_it_runs(watching: Callable[..., Watching], tmp_path: Path) -> None:
    slow = DEVICE.format("AMOUNT").replace(
        "make_client(**options):",
        "make_client(**options):\n    import time; print('making', flush=True); time.sleep(600)",
    )
    save(tmp_path / "device.py", slow)
    command = watching()
    command.until("making")
    assert command.end() == 0


def test_what_is_no_device_ends_it(watching: Callable[..., Watching]) -> None:
    command = watching("program.mlir", "-i", "x.npy", "-d", "nowhere")
    assert command.process.wait(60) == 2
    assert "there is no device called 'nowhere'" in command.until("nowhere")[-1]
    command = watching("program.mlir", "-i", "x.npy", "-d", "./nothing.py:make_client")
    assert command.process.wait(60) == 2
