"""Ctrl-C ends every wait of JAX for a device that hangs, and the process can end. Each test runs a subprocess."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import wait_until

pytest.importorskip("jax")

HANGS = """
import os, signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
import jax, numpy, pjrt

def compile(program, options):
    def run(*arrays):
        print("hanging", flush=True)
        threading.Event().wait()
    return run

exported = pjrt.export(lambda **o: pjrt.StableHloClient("hangs", compile=compile, **o), name="hangs")
platform = pjrt.frameworks.jax.register(exported)
x = jax.device_put(1.0, jax.devices(platform)[0])
"""
INTERRUPTED = """
try:
    try:
        {wait}
    except jax.errors.JaxRuntimeError as error:
        print("JAX says", error)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    os._exit(0)  # the end of a process that hangs has a test of its own
"""


def environment() -> dict[str, str]:
    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}


def interrupt(source: str, after: str = "hanging") -> tuple[list[str], str]:
    """Run a script, press Ctrl-C when it has printed a line and waits; return what it prints later, and its errors."""
    command = [sys.executable, "-c", source]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stdout is not None
        assert after + "\n" in iter(process.stdout.readline, "")
        try:
            wait_until_asleep(process.pid)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 0, err
    return out.splitlines(), err


def wait_until_asleep(pid: int) -> None:
    """Return when the main thread of a process waits: whenever it is looked at, it neither runs nor is to run."""
    looks = 0

    def is_asleep() -> bool:
        nonlocal looks
        state = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        looks = looks + 1 if state == "S" else 0
        return looks == 60

    if sys.platform == "linux":
        wait_until(is_asleep, "the wait of the process")


@pytest.mark.full
@pytest.mark.parametrize(
    "wait",
    [
        "(x + 1).block_until_ready()",
        "float(x + 1)",
        "numpy.asarray(x + 1)",
        "jax.device_get(jax.device_put(x + 1, jax.devices('cpu')[0]))",
    ],
)
def test_ctrl_c(wait: str) -> None:
    lines, _ = interrupt(HANGS + INTERRUPTED.format(wait=wait))
    assert lines[-1] == "interrupted"


IN_A_WORKER = """
import ctypes, threading
import pjrt

function, mutex = ctypes.CDLL(None).pthread_mutex_lock, bytes(64)

def compile(program, options):
    def run(*arrays):
        if "multiply" in str(program):
            return 2 * arrays[0]
        print("hanging", flush=True)
        {waits}
        return arrays[0]
    return run

def make(**options):
    return pjrt.StableHloClient("hangs", compile=compile, **options)
"""
PRESSES = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
import jax, numpy, pjrt

platform = pjrt.frameworks.jax.register(sys.argv[1])
x = jax.device_put(1.0, jax.devices(platform)[0])

def show(name, compute):
    try:
        try:
            print(name, compute(), flush=True)
        except jax.errors.JaxRuntimeError as error:
            print(name, error, flush=True)
    except KeyboardInterrupt:
        print(name, "interrupted", flush=True)
"""
ONCE = ["first interrupted", "next 2.0"]
TWICE = ["first interrupted", "second interrupted", "next 2.0"]
THRICE = ["first interrupted", "second interrupted", "third interrupted"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("waits", "wait", "expected"),
    [
        ("threading.Event().wait()", "(x + 1).block_until_ready()", ONCE),
        ("threading.Event().wait()", "((x + 1) + 1).block_until_ready()", ONCE),
        ("threading.Event().wait()", "numpy.asarray(x + 1)", TWICE),  # JAX holds the array while it copies it
        ("[function(mutex) for _ in range(2)]", "numpy.asarray(x + 1)", THRICE),  # in code that sees no signals
    ],
)
def test_ctrl_c_ends_what_a_worker_computes(waits: str, wait: str, expected: list[str], tmp_path: Path) -> None:
    """An execution whose result nobody holds at once, others when it is pressed again, and at last the worker."""
    (tmp_path / "hangs.py").write_text(IN_A_WORKER.format(waits=waits))
    names = [line.split()[0] for line in expected]
    shown = "".join(f"show({name!r}, lambda: {'float(x * 2)' if n else wait})\n" for n, name in enumerate(names))
    command = [sys.executable, "-c", PRESSES + shown, f"{tmp_path / 'hangs.py'}:make"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
    ) as process:
        assert process.stdout is not None
        assert "[hangs] hanging\n" in iter(process.stdout.readline, "")
        try:
            for line in (line for line in expected if "interrupted" in line):
                wait_until_asleep(process.pid)
                process.send_signal(signal.SIGINT)
                assert process.stdout.readline() == f"{line}\n"
            rest, _ = process.communicate(timeout=120)
        finally:
            process.kill()
    assert rest.splitlines() == [line for line in expected if "interrupted" not in line]


QUEUE = """
import threading
import numpy as np, pjrt
from pjrt.host import Enqueued, Memory

class Chip(Memory):
    def allocate(self, spec, space):
        return np.zeros(spec.shape, spec.element_type.dtype)

    def copy_in(self, handle, array):
        handle[...] = array

    def copy_out(self, handle, array):
        array[...] = handle

class Work:  # it hangs until the driver stops it
    def __init__(self):
        self.over = threading.Event()
        works.append(self)

    def wait(self):
        print("hanging", flush=True)
        self.over.wait()
        raise RuntimeError("chip error 7: stopped")

    def cancel(self):
        self.over.set()

works = []

def hang(operation, x, y):
    return Enqueued(np.zeros_like(x), Work())

def multiply(operation, x, y):  # behind what is in the queue
    return Enqueued(x * y, lambda: [work.over.wait() for work in works])

def make(**options):
    kernels = {"stablehlo.add": hang, "stablehlo.multiply": multiply}
    return pjrt.StableHloClient("hangs", kernels=kernels, fallback="reference", memory=Chip(), **options)
"""
STOPS = """
import os, runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
import jax, jax.numpy as jnp, pjrt
from pjrt import native

where, file, library = sys.argv[1:]
if where == "here":
    plugin = pjrt.export(runpy.run_path(file)["make"], name="hangs")
else:
    plugin = native.write_library(library, f"{file}:make", driver="worker", name="hangs")
x = jax.device_put(1.0, jax.devices(pjrt.frameworks.jax.register(plugin))[0])
try:
    jax.jit(lambda x: WORK)(x).block_until_ready()
except KeyboardInterrupt:
    print("interrupted", flush=True)
value = float(jax.jit(lambda x: x * x)(x))
print(f"next {value}", flush=True)
"""


@pytest.mark.full
@pytest.mark.parametrize("work", ["x + 1", "jnp.sin(x + 1)"])
@pytest.mark.parametrize("where", ["here", "worker"])
def test_ctrl_c_cancels_what_is_in_the_queue(where: str, work: str, tmp_path: Path) -> None:
    """The next program comes behind it, so that its result says so. The host's operation waits for it, too."""
    (tmp_path / "hangs.py").write_text(QUEUE)
    command = [sys.executable, "-c", STOPS.replace("WORK", work), where, tmp_path / "hangs.py", tmp_path / "hangs.so"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
    ) as process:
        assert process.stdout is not None
        assert any(line.endswith("hanging\n") for line in iter(process.stdout.readline, ""))
        try:
            wait_until_asleep(process.pid)
            process.send_signal(signal.SIGINT)
            rest, _ = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 0, rest
    assert [line for line in rest.splitlines() if not line.endswith("hanging")] == ["interrupted", "next 1.0"]


ASKS = """
import os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)
import jax, numpy, pjrt
from pjrt.host import Compiled

runs, proceed, asked = 0, threading.Event(), threading.Event()

def compile(program, options):
    def run(context, *arrays):
        global runs
        runs += 1
        if runs > 1:
            return arrays[0]
        print("hanging", flush=True)
        try:
            while not proceed.wait(0.01):
                context.check()
                asked.set()
            return arrays[0]
        except pjrt.AbortedError as error:
            print("told:", error.message, flush=True)
            raise
    return Compiled(run=run, takes_context=True)

exported = pjrt.export(lambda **o: pjrt.StableHloClient("asks", compile=compile, **o), name="asks")
platform = pjrt.frameworks.jax.register(exported)
x = jax.device_put(1.0, jax.devices(platform)[0])
"""


@pytest.mark.full
def test_a_function_that_asks_is_told_of_ctrl_c_and_the_next_program_runs() -> None:
    source = (
        ASKS
        + """
try:
    try:
        (x + 1).block_until_ready()
    except jax.errors.JaxRuntimeError:
        pass
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(float(x * 2))
"""
    )
    lines, err = interrupt(source)
    assert sum(line.startswith("told: the launch was given up: CANCELLED: Ctrl-C ended") for line in lines) == 1, err
    assert {"interrupted", "1.0"} <= set(lines), (lines, err)


PROMPT = """
import code
from pjrt.capi import interrupts
interrupts.PATIENCE_SECONDS = 60.0  # JAX sees Ctrl-C itself, however slow the machine is
prompt = code.InteractiveInterpreter(globals())

def run(source):
    try:
        prompt.runsource(source)
    except KeyboardInterrupt as error:  # it came while the prompt showed an error that JAX made of it
        sys.excepthook(KeyboardInterrupt, error, error.__traceback__)
        sys.last_value = error

def value_of(array):
    try:
        return float(array)
    except jax.errors.JaxRuntimeError as error:  # on a busy machine jaxlib's interrupted wait may cancel its array
        assert "CANCELLED: KeyboardInterrupt" in str(error), error
        return "cancelled by jaxlib"
"""


def interrupt_at_a_prompt(source: str, after: str = "hanging") -> list[str]:
    """Run a script with a prompt in it, interrupt it, and return what it prints after that."""
    lines, err = interrupt(source, after)
    assert "KeyboardInterrupt" in err
    return lines


@pytest.mark.full
@pytest.mark.parametrize(
    "wait", ["numpy.asarray(x + 1)", "jax.block_until_ready(x + 1)", "jax.device_get([x + 1])", "float((x + 1) + 1)"]
)
def test_a_prompt_that_shows_ctrl_c_does_not_keep_the_work_up(wait: str) -> None:
    lines = interrupt_at_a_prompt(f"{ASKS}{PROMPT}\nrun({wait!r})\nprint('next', float(x * 2))")
    told = "told: the launch was given up: CANCELLED: Ctrl-C ended a wait for a device, and nothing holds the"
    assert [line for line in lines if line.startswith(told)], lines
    assert lines[-1] == "next 1.0"


@pytest.mark.full
@pytest.mark.parametrize("wait", ["numpy.asarray(y)", "jax.block_until_ready(y)"])
def test_work_whose_array_is_held_goes_on_after_ctrl_c(wait: str) -> None:
    lines = interrupt_at_a_prompt(
        f"""{ASKS}{PROMPT}
run("y = x + 1; asked.wait(); print('held', flush=True); {wait}")
asked.clear()
for _ in range(3):
    asked.wait()
    asked.clear()
proceed.set()
print("the first", value_of(y))
print("the next", float(x * 2))
""",
        after="held",
    )
    # The function asked three times more, so it went on; nobody told it to stop.
    assert lines in (["the first 1.0", "the next 1.0"], ["the first cancelled by jaxlib", "the next 1.0"])


@pytest.mark.full
def test_a_function_that_asks_is_told_that_the_interpreter_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASKS + "import pjrt.api.waits as end\nend.PATIENCE_SECONDS = 600\ny = x + 1"],
        capture_output=True,
        text=True,
        timeout=250,  # less than it would be waited for
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    assert "told: the launch was given up: CANCELLED: the Python interpreter" in done.stdout, done


@pytest.mark.full
def test_the_process_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", HANGS + "y = x + 1\nprint('end')"],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    assert "Fatal" not in done.stderr
    assert "end" in done.stdout


@pytest.mark.full
@pytest.mark.parametrize("waits", ["threading.Event().wait()", "[function(mutex) for _ in range(2)]"])
def test_the_process_ends_although_its_worker_hangs(waits: str, tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text(IN_A_WORKER.format(waits=waits))
    command = [sys.executable, "-c", f"{PRESSES}y = x + 1\nprint('end')", f"{tmp_path / 'hangs.py'}:make"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment())
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr
