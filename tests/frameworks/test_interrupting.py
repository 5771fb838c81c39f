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
