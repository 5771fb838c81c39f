"""The end of commands by signals."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

# A signal comes at each line of `wait`; at one of those of `threading.Event` it holds its lock.
SIGNALLED = """
import signal, sys
from pjrt.cli._console import asked_to_end

def trace(frame, event, _):
    if frame.f_code.co_name == "wait" and event == "line":
        signal.raise_signal(signal.{number})
    return trace

with asked_to_end() as request:
    sys.settrace(trace)
    request.wait()
print("ended")
"""


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_a_signal_may_come_in_the_middle_of_the_wait(number: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED.format(number=number)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "ended\n", done.stderr


# As Ctrl-C in a terminal it reaches the whole group of processes, here while a client is made.
INTERRUPTING = """
import os, signal
from pathlib import Path
import pjrt

def make():
    made = Path(__file__).with_name("made")
    with made.open("a") as file:
        file.write("x")
    if made.stat().st_size == int(os.environ["NUMBER"]):
        os.killpg(int(os.environ["COMMAND"]), signal.SIGINT)
        signal.pause()
    return pjrt.client("reference")
"""
COMMAND = "import os; os.environ['COMMAND'] = str(os.getpid()); from pjrt.cli import main; main()"


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "number", "shown"),
    [
        (("conform", "--filter", "client.lookup"), 1, r"reference.py:make: \d+ not made, in .* s\n"),
        (("conform", "--filter", "client.lookup"), 3, r"reference.py:make: (\d+ passed, )?\d+ not made, in .* s\n"),
        (("test-device", "--group", "behaviour"), 2, r"(.*\n)*not all checks were made: interrupted\n.* passed, .*\n"),
    ],
)
def test_an_interrupted_command_shows_the_checks_made_so_far(
    arguments: tuple[str, ...], number: int, shown: str, tmp_path: Path
) -> None:
    (tmp_path / "reference.py").write_text(INTERRUPTING)
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments, "reference.py:make"],
        cwd=tmp_path,
        env={**os.environ, "NUMBER": str(number)},
        capture_output=True,
        text=True,
        timeout=240,
        start_new_session=True,
    )
    assert done.returncode == 130, done.stdout + done.stderr
    assert re.fullmatch(shown, done.stdout), done.stdout
