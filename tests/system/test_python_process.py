"""Python processes that are asked, and the reason of one that ended: what it printed last that says something."""

import contextlib
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

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
