"""Threads that get no processor are noticed, and told apart from those that sleep."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the state of threads")

PROGRAM = """
import hashlib, os, subprocess, sys, threading, time
from pjrt.system.processes import Starvation

def looks(number):
    for _ in range(number):
        time.sleep(0.03)
        yield starvation.look()

threading.Thread(target=threading.Event().wait, daemon=True).start()
starvation = Starvation()
print("asleep", any(looks(20)))

processor = min(os.sched_getaffinity(0))
busy = [sys.executable, "-c", "while True: pass"]
with subprocess.Popen(busy, preexec_fn=lambda: os.sched_setaffinity(0, {processor})) as other:
    data = bytes(1 << 26)

    def work():
        os.sched_setaffinity(0, {processor})
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        while True:
            hashlib.sha256(data)  # without Python's lock

    threading.Thread(target=work, daemon=True).start()
    while not any(looks(1)):
        pass
    print("put off", flush=True)
    other.kill()
while all(looks(1)):
    pass
print("at work", flush=True)
os._exit(0)
"""


def test_a_thread_without_a_processor_is_noticed() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.splitlines()) == (0, ["asleep False", "put off", "at work"]), done.stderr
