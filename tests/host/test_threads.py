"""Eight threads on one client of the host runtime: on every Python, and above all on those without the GIL."""

from __future__ import annotations

import pytest
from scripts import run_python

COMMON = """
import numpy as np
import pjrt, toys
from many_threads import at_once
from waiting import wait_until

X = toys.floats()
"""

WORKS = {
    "executions": """
        with toys.client(lambda x: x + 1, num_devices=2) as client:
            exe, x = client.compile("program"), client.buffer_from_host(X)
            def work(number):
                for _ in range(50):
                    (y,) = exe(x)
                    (z,) = exe(y)
                    assert np.array_equal(np.asarray(z), X + 2)
            at_once(work)
    """,
    "chains of donations": """
        def add(x):
            x += 1
            return x
        with toys.client(add, facts={"aliases": {0: 0}}) as client:
            exe = client.compile("program")
            def work(number):
                for _ in range(10):
                    x = client.buffer_from_host(X)
                    seen = np.asarray(x)
                    for _ in range(5):
                        (x,) = exe(x)
                    assert np.array_equal(np.asarray(x), X + 5)
                    assert np.array_equal(seen, X), "donated memory that is still seen was written to"
            at_once(work)
            wait_until(lambda: sum(space.account.in_use for space in client.devices[0].memory_spaces) == 0)
    """,
    "donation of one buffer by all": """
        def add(x):
            x += 1
            return x
        with toys.client(add, facts={"aliases": {0: 0}}) as client:
            exe = client.compile("program")
            for _ in range(20):
                shared, results = client.buffer_from_host(X), []
                def work(number):
                    try:
                        results.append(exe(shared)[0])
                    except pjrt.FailedPreconditionError:
                        pass
                at_once(work)
                assert len(results) == 1
                assert np.array_equal(np.asarray(results[0]), X + 1)
    """,
    "buffers": """
        with toys.client(lambda x: x + 1, num_devices=2) as client:
            shared = [None] * 8
            def work(number):
                for turn in range(50):
                    shared[number] = client.buffer_from_host(X + turn)
                    other = shared[(number + 1) % 8]
                    if other is not None and turn % 3:
                        other.copy_to(client.devices[1]).ready().exception(toys.TIMEOUT)
            at_once(work)
            del shared[:]
    """,
    "futures": """
        for _ in range(50):
            promise, calls = pjrt.Promise(), []
            followers = [promise.future.then(lambda value: value + 1) for _ in range(4)]
            def work(number):
                if number == 0:
                    promise.set_result(1)
                promise.future.add_done_callback(lambda _: calls.append(number))
                assert [each.result(toys.TIMEOUT) for each in followers] == [2] * 4
            at_once(work)
            assert sorted(calls) == list(range(8))
    """,
    "closing": """
        for _ in range(10):
            client = toys.client(lambda x: x + 1, num_devices=2)
            exe = client.compile("program")
            def work(number):
                try:
                    if number < 2:
                        np.asarray(exe(X)[0])
                        client.close()
                        return
                    while True:
                        np.asarray(exe(X)[0])
                except pjrt.FailedPreconditionError:
                    pass
            at_once(work)
            assert client.is_closed
    """,
}


@pytest.mark.parametrize("work", WORKS)
def test_eight_threads_at_once(work: str) -> None:
    """Nothing crashes, hangs or is computed wrong."""
    body = "\n".join(line.removeprefix("        ") for line in WORKS[work].splitlines())
    done = run_python(f"{COMMON}\n{body}\nprint('finished')", timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "finished\n", "")
