"""Waits for a device in Python by callers that hold the GIL: they release it, and end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOR_EVENT = """
import ctypes, sys, threading
import pjrt
from every_function import FUNCTIONS, HEADER

exported = pjrt.export(lambda: pjrt.client("reference"), name="waiting")

def function(name, kind):
    slot = exported.address + HEADER + 8 * FUNCTIONS.index(name)
    return kind(ctypes.c_void_p, ctypes.c_void_p)(ctypes.c_void_p.from_address(slot).value)

arguments = (ctypes.c_void_p * 5)(24)
assert not function("PJRT_Event_Create", ctypes.CFUNCTYPE)(ctypes.addressof(arguments))
setting = (ctypes.c_void_p * 6)(48, None, arguments[2])
set_event, gate = function("PJRT_Event_Set", ctypes.CFUNCTYPE), threading.Lock()

def set_when_let():
    with gate:
        set_event(ctypes.addressof(setting))

thread = threading.Thread(target=set_when_let)
waiting = (ctypes.c_void_p * 3)(24, None, arguments[2])
with gate:
    thread.start()
    sys.setswitchinterval(1000)  # from here on the thread has the GIL only where this one lets go of it
assert not function("PJRT_Event_Await", ctypes.PYFUNCTYPE)(ctypes.addressof(waiting))
thread.join()
print("set", flush=True)
"""


def test_an_event_that_is_awaited_with_the_gil() -> None:
    command = [sys.executable, "-X", "faulthandler", "-c", FOR_EVENT]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "set\n"), done.stderr
