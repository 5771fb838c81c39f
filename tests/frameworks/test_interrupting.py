"""A device that hangs does not keep JAX: Ctrl-C ends every wait, and the process can end. Each in its own process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

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
    command = [sys.executable, "-c", HANGS + INTERRUPTED.format(wait=wait)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as done:
        assert done.stdout is not None
        assert done.stdout.readline() == "hanging\n"
        done.send_signal(signal.SIGINT)
        try:
            out, err = done.communicate(timeout=120)
        finally:
            done.kill()
    assert done.returncode == 0, err
    assert out.splitlines()[-1] == "interrupted"


ASKS = """
import os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)
import jax, numpy, pjrt
from pjrt.host import Compiled

runs = 0

def compile(program, options):
    def run(context, *arrays):
        global runs
        runs += 1
        if runs > 1:
            return arrays[0]
        print("hanging", flush=True)
        try:
            while True:
                threading.Event().wait(0.01)
                context.check()
        except pjrt.AbortedError as error:
            print("told:", error.message, flush=True)
            raise
    return Compiled(run=run, takes_context=True)

exported = pjrt.export(lambda **o: pjrt.StableHloClient("asks", compile=compile, **o), name="asks")
platform = pjrt.frameworks.jax.register(exported)
x = jax.device_put(1.0, jax.devices(platform)[0])
"""


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
    with subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as done:
        assert done.stdout is not None
        assert done.stdout.readline() == "hanging\n"
        done.send_signal(signal.SIGINT)
        try:
            out, err = done.communicate(timeout=120)
        finally:
            done.kill()
    assert done.returncode == 0, err
    lines = out.splitlines()
    assert sum(line.startswith("told: the launch was given up: CANCELLED: Ctrl-C ended") for line in lines) == 1, err
    assert {"interrupted", "1.0"} <= set(lines), (out, err)


def test_a_function_that_asks_is_told_that_the_interpreter_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASKS + "import pjrt.api.interpreter_end as end\nend.PATIENCE_SECONDS = 60\ny = x + 1"],
        capture_output=True,
        text=True,
        timeout=45,  # less than it would be waited for
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    assert "told: the launch was given up: CANCELLED: the Python interpreter" in done.stdout, done


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
