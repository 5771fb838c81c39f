"""Ctrl-C in a wait, and work that nobody waits for any more: functions that ask are told, others go on."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import toys
from scripts import run_python

import pjrt


def test_a_device_that_hangs_can_be_interrupted() -> None:
    done = run_python(
        """
        import os, signal, threading, toys, numpy as np
        client, gate = toys.gated()
        (out,) = client.compile("program")(toys.floats())
        gate.wait_entered()
        for wait in (lambda: np.asarray(out), client.close):
            try:
                threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
                wait()
            except KeyboardInterrupt:
                print("interrupted", flush=True)
        gate.open()
        """
    )
    assert done.stdout.splitlines() == ["interrupted"] * 2, done.stderr
    assert done.returncode == 0, done.stderr


def test_work_that_nobody_waits_for_any_more_is_given_up() -> None:
    told: list[str] = []
    begun = threading.Semaphore(0)

    def run(context: pjrt.host.RunContext, x: np.ndarray) -> np.ndarray:
        begun.release()
        try:
            while x[0] == 0:
                threading.Event().wait(0.001)
                context.check()
        except pjrt.AbortedError as error:
            told.append(error.message)
            raise
        return x

    client = toys.client(run, facts={"takes_context": True})
    exe = client.compile("program")
    (under_way,) = exe(toys.floats())
    assert begun.acquire(timeout=toys.TIMEOUT)
    (queued,) = exe(toys.floats())
    alias, _ = client.create_alias_buffer(toys.spec("f32[4]"))
    (waiting,) = exe(alias)
    client.give_up_work(pjrt.CancelledError("gone"))
    for out in (under_way, queued, waiting):
        with pytest.raises(pjrt.CancelledError, match="gone"):
            out.ready().result(toys.TIMEOUT)
    (later,) = exe(toys.floats() + 1)
    np.testing.assert_array_equal(np.asarray(later), toys.floats() + 1)
    assert told == ["the launch was given up: CANCELLED: gone"]
    client.close()


AT_A_PROMPT = """
import code, os, signal, sys, threading, toys, pjrt, numpy as np
signal.signal(signal.SIGINT, signal.default_int_handler)

def run(context, x):
    begun.release()
    try:
        for _ in range(2000):
            if x[0] or proceed.wait(0.05):
                return x
            context.check()
            asked.release()
    except pjrt.AbortedError as error:
        why.append(error.message)
        print("told", flush=True)
        raise
    print("not told in 100 seconds", flush=True)
    return x

why, proceed = [], threading.Event()
begun, asked = threading.Semaphore(0), threading.Semaphore(0)
client = toys.client(run, facts={"takes_context": True})
exe = client.compile("program")
zeros, ones = np.zeros(4, np.float32), np.ones(4, np.float32)
prompt = code.InteractiveInterpreter(globals())

def is_waiting():
    frame = sys._current_frames()[threading.main_thread().ident]
    while frame is not None:
        if frame.f_code.co_name == "_block":
            return True
        frame = frame.f_back
    return False

def press_ctrl_c():
    begun.acquire()
    while not is_waiting():
        threading.Event().wait(0.001)
    os.kill(os.getpid(), signal.SIGINT)

def interrupt(source):
    presses = threading.Thread(target=press_ctrl_c)
    presses.start()
    prompt.runsource(source)  # shows the exception, which is kept as sys.last_value
    presses.join()

def run_the_next():
    print("next", np.asarray(exe(ones)[0])[0], flush=True)
    begun.acquire()
"""


def test_ctrl_c_tells_a_function_whose_results_nobody_holds() -> None:
    done = run_python(
        f"""{AT_A_PROMPT}
def interrupted():
    (out,) = exe(zeros)
    presses = threading.Thread(target=press_ctrl_c)
    presses.start()
    try:
        out.ready().result()
    except KeyboardInterrupt:
        presses.join()
        return out

interrupted()  # and its result is dropped
run_the_next()
held = interrupted()
proceed.set()
print(np.asarray(held)[0], flush=True)
print(why, flush=True)
"""
    )
    assert (done.returncode, done.stderr) == (0, "")
    reason = "Ctrl-C ended a wait for a device, and nothing holds the results of the launch"
    assert done.stdout.splitlines() == ["told", "next 1.0", "0.0", f"['the launch was given up: CANCELLED: {reason}']"]


@pytest.mark.parametrize(
    "wait",
    [
        "np.asarray(exe(zeros)[0])",
        "exe(zeros)[0].to_host().result()",
        "exe(zeros)[0].to_host(np.empty(4, np.float32)).result()",
        "exe(zeros)[0].copy_raw_to_host(np.empty(16, np.uint8)).result()",
        "np.from_dlpack(exe(zeros)[0])",
        "np.asarray(exe(exe(zeros)[0])[0])",
    ],
)
def test_ctrl_c_in_a_wait_for_a_copy_tells_the_function(wait: str) -> None:
    done = run_python(f"{AT_A_PROMPT}\ninterrupt({wait!r})\nrun_the_next()")
    assert (done.returncode, done.stdout.splitlines()) == (0, ["told", "next 1.0"]), done.stderr
    assert "KeyboardInterrupt" in done.stderr


@pytest.mark.parametrize(
    ("work", "wait"),
    [
        ("out = exe(zeros)[0]", "np.asarray(out)"),
        ("out = exe(zeros)[0].to_host()", "out.result()"),
        ("out = exe(exe(zeros)[0])[0]", "np.asarray(out)"),
    ],
)
def test_ctrl_c_in_a_wait_for_what_is_held_lets_the_work_go_on(work: str, wait: str) -> None:
    done = run_python(
        f"""{AT_A_PROMPT}
{work}
interrupt({wait!r})
while asked.acquire(blocking=False):
    pass
for _ in range(3):
    asked.acquire()
proceed.set()
print({wait}[0], flush=True)
run_the_next()
"""
    )
    assert (done.returncode, done.stdout.splitlines()) == (0, ["0.0", "next 1.0"]), done.stderr
    assert "KeyboardInterrupt" in done.stderr


def test_work_that_goes_on_after_ctrl_c_can_be_given_up() -> None:
    done = run_python(
        f"""{AT_A_PROMPT}
out = exe(zeros)[0]
interrupt("np.asarray(out)")
client.give_up_work(pjrt.CancelledError("enough"))
run_the_next()
print(out.ready().exception())
"""
    )
    assert (done.returncode, done.stdout.splitlines()) == (0, ["told", "next 1.0", "CANCELLED: enough"]), done.stderr


def test_ctrl_c_does_not_end_programs_that_are_run_for_their_effects() -> None:
    done = run_python(
        f"""{AT_A_PROMPT}
effects = lambda context, x: [] if run(context, x) is x else None
quiet = toys.client(effects, outputs="", facts={{"takes_context": True}})
futures = []
x = quiet.buffer_from_host(zeros)
quiet.compile("program").execute([[x]], returned_futures=futures)
begun.acquire()
interrupt("np.asarray(exe(zeros)[0])")
while asked.acquire(blocking=False):
    pass
for _ in range(3):
    asked.acquire()
proceed.set()
print(futures[0].result(), flush=True)
"""
    )
    assert (done.returncode, done.stdout.splitlines()) == (0, ["told", "None"]), done.stderr
