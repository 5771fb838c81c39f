"""Python processes that are asked, and the reason of one that ended: what it printed last that says something."""

import contextlib
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import wait_until

from pjrt.system.python_process import Ended, PythonChild

FRAMES = "*** Check failure stack trace: ***\n    @     0x7f05b4c48174  absl::Flush()\n    @  0x7f05c3cf01bf  Py_Call\n"
PRINTED = {
    "a fatal message in winter, before its stack": (
        f"I1126 01:28:43.4   7 literal.cc:1] news\nF1126 01:28:43.4   7 literal.cc:9] no type\n{FRAMES}",
        "no type",
    ),
    "a fatal message in spring": (
        "F0302 01:28:43.4 7 array.h:3] Check failed: 0 == 1\n",
        "Check failed: 0 == 1",
    ),
    "a failed check of another log": (f"Check failed: half is not whole\n{FRAMES}", "Check failed: half is not whole"),
    "an exception of C++": (
        "terminate called without an exception\nAborted\n",
        "terminate called without an exception",
    ),
    "an error of Python": ("Traceback (most recent call last):\nFound1126: 3\nValueError: no\n\n", "ValueError: no"),
    "nothing": ("", ""),
}


@pytest.mark.parametrize(("errors", "reason"), PRINTED.values(), ids=PRINTED)
def test_the_reason_is_the_line_that_says_it(errors: str, reason: str) -> None:
    assert Ended(-6, b"", errors).reason == reason


_ECHO = """
import os, pickle, sys
answers = os.fdopen(os.dup(1), "wb")
while True:
    try:
        question = pickle.load(sys.stdin.buffer)
    except EOFError:
        sys.exit("no more questions")
    if question == "end":
        sys.exit(3)
    if question != "wait":
        pickle.dump(question, answers)
        answers.flush()
"""


@pytest.fixture
def echo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PythonChild[str]]:
    (tmp_path / "echo_child.py").write_text(_ECHO)
    monkeypatch.syspath_prepend(str(tmp_path))
    with contextlib.closing(PythonChild("echo_child", pickle.load)) as child:
        yield child


def test_a_child_answers_until_it_ends(echo: PythonChild[str]) -> None:
    echo.send("one")
    echo.send("two")
    assert (echo.next(60), echo.next(60)) == ("one", "two")
    echo.send("wait")
    with pytest.raises(TimeoutError):
        echo.next(0)
    echo.send("end")
    assert echo.next(60) is None
    assert str(echo.ended()) == "exit code 3"
    echo.send("after its end")


def test_a_child_sees_the_end_of_its_input(echo: PythonChild[str]) -> None:
    echo.send("last", last=True)
    assert (echo.next(60), echo.next(60)) == ("last", None)
    assert echo.ended().reason == "no more questions"


PARENT = """
import os
from pjrt.system import python_process

def leave(kill):
    os._exit(0)  # as if it was killed while its child computes

python_process.run_module("spin", given=b"", time_limit=0.1, meanwhile=leave)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such limit of another process")
def test_a_child_that_computes_ends_without_its_parent(tmp_path: Path) -> None:
    """Also one that never looks at its input again."""
    (tmp_path / "spin.py").write_text("import os\nos.mkdir(str(os.getpid()))\nwhile True:\n    pass\n")
    (tmp_path / "parent.py").write_text(PARENT)
    subprocess.run([sys.executable, "parent.py"], cwd=tmp_path, check=True, timeout=60)

    def named() -> list[str]:
        return [path.name for path in tmp_path.iterdir() if path.name.isdecimal()]

    wait_until(named, "the start of the child")
    (pid,) = named()
    wait_until(lambda: not Path("/proc", pid).exists(), "the end of the child")
