"""The life of clients: closing, dropping, forks, Ctrl-C and the end of the interpreter, each without hang or crash."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
import toys

import pjrt

HERE = Path(__file__).parent


def run_python(source: str, *, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Runs a script that can import the toys, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-W", "error", "-c", textwrap.dedent(source)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def pjrt_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("pjrt ")]


def test_close_waits_for_work_in_flight_and_may_be_called_again() -> None:
    client, gate = toys.gated()
    exe = client.compile("program")
    (first,) = exe(toys.floats())
    (second,) = exe(first)
    ready = second.ready()
    gate.wait_entered()
    closing = threading.Thread(target=client.close)
    closing.start()
    assert not ready.done()
    gate.open(2)
    closing.join(toys.TIMEOUT)
    assert not closing.is_alive()
    assert ready.result(toys.TIMEOUT) is None
    client.close()
    assert client.is_closed
    assert repr(client) == "<HostClient gated, closed>"


def test_everything_of_a_closed_client_says_that_it_is_closed() -> None:
    client = toys.negate()
    exe = client.compile("program")
    x = client.buffer_from_host(toys.floats())
    client.close()
    uses = [
        lambda: exe.execute_sharded([x], client.devices[0]),
        lambda: exe(toys.floats()),
        lambda: client.compile("program"),
        lambda: client.deserialize(b""),
        lambda: client.load(exe.executable),
        lambda: client.buffer_from_host(toys.floats()),
        lambda: client.buffer_from_dlpack(toys.floats()),
        lambda: client.create_uninitialized_buffer(toys.spec("f32[4]")),
        lambda: client.create_alias_buffer(toys.spec("f32[4]")),
        lambda: np.asarray(x),
        x.ready,
        lambda: x.copy_to(client.devices[0]),
    ]
    for use in uses:
        with pytest.raises(pjrt.FailedPreconditionError, match="closed"):
            use()
    assert x.shape == (4,)
    x.delete()


def test_a_hundred_clients_leave_nothing_behind() -> None:
    gc.collect()
    before = len(pjrt_threads())
    references = []
    for _ in range(100):
        with toys.negate(num_devices=2) as client:
            outs = client.compile("program", toys.replicas(2)).execute(
                [[client.buffer_from_host(toys.floats(), device=d)] for d in client.devices]
            )
            np.testing.assert_array_equal(np.asarray(outs[1][0]), -toys.floats())
        references.append(weakref.ref(client))
    del client, outs
    gc.collect()
    assert [r() for r in references] == [None] * 100
    for thread in pjrt_threads()[before:]:
        thread.join(toys.TIMEOUT)
    assert len(pjrt_threads()) <= before


def test_a_client_that_is_dropped_finishes_its_work_and_ends_its_threads() -> None:
    gc.collect()
    before = set(pjrt_threads())
    client, gate = toys.gated()
    (out,) = client.compile("program")(toys.floats())
    gate.wait_entered()
    (thread,) = set(pjrt_threads()) - before
    ready = out.ready()
    reference = weakref.ref(client)
    del client, out
    gc.collect()
    assert reference() is not None  # its work is under way
    gate.open()
    ready.result(toys.TIMEOUT)
    del gate
    deadline = time.monotonic() + toys.TIMEOUT
    gc.collect()
    while reference() is not None and time.monotonic() < deadline:  # the thread may still be letting go of what it did
        thread.join(0.05)
        gc.collect()
    assert reference() is None
    thread.join(toys.TIMEOUT)
    assert not thread.is_alive()


def test_buffers_and_executables_keep_their_client_alive() -> None:
    client = toys.negate()
    exe = client.compile("program")
    reference = weakref.ref(client)
    del client
    gc.collect()
    (out,) = exe(toys.floats())
    np.testing.assert_array_equal(np.asarray(out), -toys.floats())
    del exe
    gc.collect()
    assert reference() is out.client
    del out
    gc.collect()
    assert reference() is None


def test_a_client_that_never_ran_has_no_threads() -> None:
    gc.collect()
    before = set(pjrt_threads())
    client = toys.negate(num_devices=8)
    client.compile("program")
    np.asarray(client.buffer_from_host(toys.floats()))
    assert set(pjrt_threads()) <= before  # those of tests before this one may end meanwhile


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


def test_the_end_of_the_interpreter_waits_for_work_in_flight() -> None:
    done = run_python(
        """
        import threading, toys

        def run(x):
            begun.set()
            threading.Event().wait(0.3)
            print("finished", flush=True)
            return x

        begun = threading.Event()
        client = toys.client(run)
        exe = client.compile("program")
        (out,) = exe(toys.floats())
        (out,) = exe(out)
        begun.wait()
        """
    )
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, ["finished"] * 2, "")


def test_the_end_of_the_interpreter_waits_for_what_the_work_sets_going() -> None:
    done = run_python(
        """
        import threading, toys, pjrt

        def run(x):
            begun.set()
            threading.Event().wait(0.2)
            print("finished", flush=True)
            return x

        begun = threading.Event()
        client = toys.client(run, num_devices=2)
        on = [client.compile("p", pjrt.CompileOptions(device_ordinal=n)) for n in (0, 1)]
        (out,) = on[0](toys.floats())
        (out,) = on[1].execute_sharded([out.copy_to(client.devices[1])], client.devices[1])
        (out,) = on[0].execute_sharded([out.copy_to(client.devices[0])], client.devices[0])
        begun.wait()
        """
    )
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, ["finished"] * 3, "")


def test_an_error_during_the_end_of_the_interpreter_is_not_lost() -> None:
    done = run_python(
        """
        import threading, toys

        def run(x):
            begun.set()
            while not process_life.is_exiting():
                threading.Event().wait(0.01)
            raise ValueError("too late to be seen")

        from pjrt.host import process_life
        begun = threading.Event()
        client = toys.client(run)
        out = client.compile("program")(toys.floats())
        begun.wait()
        """
    )
    assert done.returncode == 0
    assert "ValueError: too late to be seen" in done.stderr


def test_the_end_of_the_interpreter_gives_up_on_a_device_that_hangs() -> None:
    done = run_python(
        """
        import threading, toys
        from pjrt.api import interpreter_end
        interpreter_end.PATIENCE_SECONDS = 0.3
        client, gate = toys.gated()
        (out,) = client.compile("program")(toys.floats())
        out.ready().add_done_callback(lambda future: print(future.exception(), flush=True))
        gate.wait_entered()
        """,
        timeout=120,
    )
    assert done.returncode == 0
    assert "CANCELLED: the interpreter ended before the work was done" in done.stdout
    assert "gated:0 is still at work after 0.3 s" in done.stderr


def test_a_function_that_asks_is_told_that_the_interpreter_ends() -> None:
    done = run_python(
        """
        import threading, toys, pjrt
        from pjrt.api import interpreter_end
        interpreter_end.PATIENCE_SECONDS = 100

        def run(context, x):
            begun.set()
            try:
                while True:
                    threading.Event().wait(0.01)
                    context.check()
            except pjrt.AbortedError as error:
                print(error.message, flush=True)
                raise

        begun = threading.Event()
        client = toys.client(run, facts={"takes_context": True})
        (out,) = client.compile("program")(toys.floats())
        begun.wait()
        """,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "the launch was given up: CANCELLED: the interpreter is ending\n"


def test_closing_at_the_end_of_the_interpreter_waits_no_longer_than_that() -> None:
    done = run_python(
        """
        import atexit, toys
        from pjrt.api import interpreter_end
        interpreter_end.PATIENCE_SECONDS = 0.3
        client, gate = toys.gated()
        atexit.register(client.close)
        (out,) = client.compile("program")(toys.floats())
        gate.wait_entered()
        """
    )
    assert done.returncode == 0, done.stderr


def test_work_that_nobody_waits_for_any_more_is_given_up() -> None:
    told: list[str] = []
    begun = threading.Semaphore(0)

    def run(context: pjrt.host.ExecutionContext, x: np.ndarray) -> np.ndarray:
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


def test_ctrl_c_tells_a_function_whose_results_nobody_holds() -> None:
    done = run_python(
        """
        import os, signal, threading, toys, pjrt, numpy as np

        def run(context, x):
            begun.set()
            try:
                while x[0] == 0 and not proceed.wait(0.001):
                    context.check()
            except pjrt.AbortedError as error:
                print(error.message, flush=True)
                raise
            return x

        begun, proceed = threading.Event(), threading.Event()
        client = toys.client(run, facts={"takes_context": True})
        exe = client.compile("program")

        def interrupted():
            begun.clear()
            (out,) = exe(toys.floats())
            begun.wait()
            timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            try:
                out.ready().result()
            except KeyboardInterrupt:
                return out

        interrupted()  # and its result is dropped
        print(np.asarray(exe(toys.floats() + 1)[0])[0], flush=True)
        held = interrupted()
        proceed.set()
        print(np.asarray(held)[0], flush=True)
        """
    )
    assert (done.returncode, done.stderr) == (0, "")
    told = "the launch was given up: CANCELLED: Ctrl-C ended a wait for a device, and nobody holds what this would give"
    assert done.stdout.splitlines() == [told, "1.0", "0.0"]


AT_A_PROMPT = """
import code, os, signal, sys, threading, toys, pjrt, numpy as np
signal.signal(signal.SIGINT, signal.default_int_handler)

def run(context, x):
    begun.set()
    try:
        for _ in range(400):
            if x[0] or proceed.wait(0.05):
                return x
            context.check()
            asked.release()
    except pjrt.AbortedError:
        print("told", flush=True)
        raise
    print("not told in 20 seconds", flush=True)
    return x

begun, proceed, asked = threading.Event(), threading.Event(), threading.Semaphore(0)
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
    begun.wait()
    while not is_waiting():
        threading.Event().wait(0.001)
    os.kill(os.getpid(), signal.SIGINT)

def interrupt(source):
    begun.clear()
    presses = threading.Thread(target=press_ctrl_c)
    presses.start()
    prompt.runsource(source)  # shows the exception, which is kept as sys.last_value
    presses.join()

def run_the_next():
    print("next", np.asarray(exe(ones)[0])[0], flush=True)
"""


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
begun.clear()
futures = []
x = quiet.buffer_from_host(zeros)
quiet.compile("program").execute([[x]], returned_futures=futures)
begun.wait()
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


def test_the_interpreter_ends_with_live_objects_of_every_kind() -> None:
    done = run_python(
        """
        import toys, pjrt, numpy as np
        client = toys.negate(num_devices=2)
        exe = client.compile("program")
        (out,) = exe(toys.floats())
        view = np.asarray(out)
        alias, fulfillment = client.create_alias_buffer(toys.spec("f32[4]"))
        (waits,) = exe(alias)
        manager = client.create_buffers_for_async_host_to_device([toys.spec("f32[4]")])
        pending = manager.retrieve_buffer(0)
        calls = []
        zero_copy = client.buffer_from_host(
            toys.floats(), semantics=pjrt.HostBufferSemantics.IMMUTABLE_ZERO_COPY,
            on_done_with_host_buffer=lambda: calls.append(1))
        closed = toys.negate()
        closed.compile("program")(toys.floats())
        closed.close()
        reference = out.external_reference()
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_work_after_a_fork_is_a_clear_error_in_the_child_and_goes_on_in_the_parent() -> None:
    done = run_python(
        """
        import os, sys, warnings, toys, pjrt, numpy as np
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forks with threads
        client, gate = toys.gated()
        exe = client.compile("program")
        x = client.buffer_from_host(toys.floats())
        (under_way,) = exe(x)
        (queued,) = exe(x)
        (waiting,) = exe(client.create_alias_buffer(toys.spec("f32[4]"))[0])
        gate.wait_entered()
        child = os.fork()
        if child == 0:
            def expect(use):
                try:
                    use()
                except pjrt.FailedPreconditionError as error:
                    assert "fork" in error.message, error
                else:
                    raise AssertionError(use)
            expect(lambda: under_way.ready().result(60))
            expect(lambda: queued.ready().result(60))
            expect(lambda: exe(x))
            expect(lambda: client.buffer_from_host(toys.floats()))
            expect(lambda: client.compile("program"))
            np.testing.assert_array_equal(np.asarray(x), toys.floats())  # the memory is there
            client.close()
            with toys.negate() as fresh:
                np.testing.assert_array_equal(np.asarray(fresh.compile("p")(toys.floats())[0]), -toys.floats())
            print("child is well", flush=True)
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        gate.open(2)
        for out in (under_way, queued):
            np.testing.assert_array_equal(np.asarray(out), toys.floats() + 1)
        print("parent is well", os.waitstatus_to_exitcode(status))
        """
    )
    assert done.stdout.splitlines() == ["child is well", "parent is well 0"], done.stderr
    assert done.returncode == 0, done.stderr


def test_ten_thousand_executions_keep_memory_flat() -> None:
    done = run_python(
        """
        import gc, resource, threading, toys, numpy as np
        client = toys.client(lambda x: x + 1, "f32[1024]", "f32[1024]")
        exe = client.compile("program")
        device = client.devices[0]
        x = client.buffer_from_host(np.zeros(1024, np.float32))

        def one_round():
            global x
            for number in range(2000):
                (x,) = exe.execute_sharded([x], device)
                if number % 100 == 99:  # how many are waiting, and take memory, differs with the threads' pace
                    x.ready().result()
            gc.collect()

        def resident():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * resource.getpagesize()

        memory, objects = [], []
        for _ in range(6):
            one_round()
            memory.append(resident())
            objects.append(len(gc.get_objects()))
        assert float(np.asarray(x)[0]) == 12000
        # A leak adds to each round; what an allocator or a thread takes at times does not.
        steps = lambda values: [after - before for before, after in zip(values, values[1:])]
        assert min(steps(objects)) < 20, objects
        assert min(steps(memory)) < 1 << 20, memory
        assert threading.active_count() == 2
        """
    )
    assert done.returncode == 0, done.stderr


def test_a_wait_with_a_limit_ends() -> None:
    client, gate = toys.gated()
    (out,) = client.compile("program")(toys.floats())
    with pytest.raises(pjrt.DeadlineExceededError, match="goes on"):
        out.ready().result(0.01)
    gate.open()
    out.ready().result(toys.TIMEOUT)
    client.close()
