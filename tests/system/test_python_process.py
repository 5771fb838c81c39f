"""The reason of a process that ended: what it printed last that says something."""

import pytest

from pjrt.system.python_process import Ended

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
