"""The end of commands by signals."""

import subprocess
import sys

import pytest

# A signal comes at each line of `wait`; at one of those of `threading.Event` it holds its lock.
SIGNALLED = """
import signal, sys
from pjrt.cli._signals import asked_to_end

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
