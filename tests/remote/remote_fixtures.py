"""Fixtures with which tests of all packages serve devices in a subprocess, and use them with stock JAX in another."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO

import pytest

PATIENCE = 120
"""Seconds after which a subprocess is taken to hang."""

STOCK_JAX = """
import os, sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pjrt":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Hidden())
import jax, jax.numpy as jnp, numpy as np
from jax.extend import backend
from jax.extend.backend import ifrt_proxy
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

options = ifrt_proxy.ClientConnectionOptions()
options.connection_timeout_in_seconds = 120
for number, address in enumerate(sys.argv[1:]):
    make = lambda address=address: ifrt_proxy.get_client(address, options)
    backend.register_backend_factory(f"proxy{number or ''}", make, priority=-1)
devices = jax.devices()
"""
"""The beginning of a program that uses a server with JAX and without this package."""


@dataclass
class Serving:
    """A running ``pjrt serve``.

    Attributes:
        process: the subprocess.
        lines: the lines with the addresses, one for each device.
        log: the file with its error stream.
    """

    process: subprocess.Popen[str]
    lines: list[str]
    log: IO[str]

    @property
    def errors(self) -> str:
        """Its error stream up to now."""
        self.log.seek(0)
        return self.log.read()

    @property
    def addresses(self) -> list[str]:
        """The address of each device."""
        return [line.split()[-1] for line in self.lines]

    @property
    def address(self) -> str:
        """The address of the only device."""
        (address,) = self.addresses
        return address

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End the server with a signal, and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


Serve = Callable[..., Serving]


def start_serving(*arguments: str, devices: int = 1, environment: Mapping[str, str] | None = None) -> Serving:
    """Start ``pjrt serve`` with these arguments, and wait for its lines, one for each of ``devices``."""
    log = tempfile.TemporaryFile("w+")  # noqa: SIM115 it is open as long as the server runs
    # In the process of the tests this package may have set the level of XLA's log, for itself.
    inherited = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    process = subprocess.Popen(
        [sys.executable, "-m", "pjrt", "serve", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env=inherited | dict(environment or {}),
    )
    assert process.stdout is not None
    killer = threading.Timer(PATIENCE, process.kill)
    killer.start()
    lines = [line.rstrip("\n") for _, line in zip(range(devices), process.stdout, strict=False)]
    killer.cancel()
    serving = Serving(process, lines, log)
    assert len(lines) == devices, f"exit code {process.wait(PATIENCE)}: {serving.errors}"
    assert all(re.fullmatch(r"serving \S+ with \d+ devices? at grpcs?://\S+:\d+", line) for line in lines), lines
    return serving


def end_serving(serving: Serving) -> None:
    """End a server that a test may have ended."""
    if serving.process.poll() is None:
        serving.process.kill()
    serving.process.wait(PATIENCE)
    assert serving.process.stdout is not None
    serving.process.stdout.close()
    serving.log.close()


@pytest.fixture
def serving() -> Iterator[Serve]:
    """Start servers: ``serving("cpu", "-O", "num_devices=4").address``; all are ended after the test."""
    started: list[Serving] = []

    def start(*arguments: str, devices: int = 1, environment: Mapping[str, str] | None = None) -> Serving:
        started.append(start_serving(*arguments, devices=devices, environment=environment))
        return started[-1]

    yield start
    for each in started:
        end_serving(each)


@pytest.fixture(scope="session")
def served_cpu() -> Iterator[str]:
    """The address of a server of the device ``cpu`` with four devices, for all tests that leave it as it is."""
    serving = start_serving("cpu", "-O", "num_devices=4")
    yield serving.address
    end_serving(serving)


RunJax = Callable[..., list[str]]


@pytest.fixture
def run_jax() -> RunJax:
    """Run a program with stock JAX on a server: ``run_jax(address, "print(devices)")`` returns the printed lines.

    The devices of further addresses are those of JAX's platforms ``proxy1``, ``proxy2`` and so on.
    """

    def run(address: str, source: str, *others: str, environment: Mapping[str, str] | None = None) -> list[str]:
        platforms = ",".join(f"proxy{number or ''}" for number in range(1 + len(others)))
        settings = {"IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS": "true", "JAX_PLATFORMS": platforms}
        done = subprocess.run(
            [sys.executable, "-c", STOCK_JAX + source + "\nassert 'pjrt' not in sys.modules\n", address, *others],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env={**os.environ, **settings, **(environment or {})},
        )
        # The client of jaxlib prints a stack trace for each connection that ends.
        errors = "\n".join(line for line in done.stderr.splitlines() if not line.startswith("\t"))
        assert done.returncode == 0, f"{done.stdout}\n{errors[-4000:]}"
        return done.stdout.splitlines()

    return run
