"""Toy devices: small clients of the host runtime with one behaviour each, to test with.

Programs are not read: ``client`` takes the function that computes them. Types are written as XLA spells them, such
as ``f32[2,3]``.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

import pjrt
from pjrt.host import Compiled, HostClient, RunContext

TIMEOUT = 120.0
"""The longest wait of a test for something that should come at once, in seconds."""


def spec(text: str) -> pjrt.ShapeSpec:
    """Parse ``f32[2,3]`` into a ``ShapeSpec``."""
    found = re.fullmatch(r"(\w+)\[([\d,]*)\]", text)
    assert found, text
    shape = tuple(int(size) for size in found[2].split(",") if size)
    return pjrt.ShapeSpec(shape, pjrt.ElementType[found[1].upper()])


def compiled(
    run: Callable[..., Any], parameters: str = "f32[4]", outputs: str | None = "f32[4]", **facts: Any
) -> Compiled:
    """Make a ``Compiled`` with types separated by spaces; ``outputs=None`` declares none."""
    return Compiled(
        run=run,
        parameters=[spec(text) for text in parameters.split()],
        outputs=None if outputs is None else [spec(text) for text in outputs.split()],
        **facts,
    )


def client(
    run: Callable[..., Any],
    parameters: str = "f32[4]",
    outputs: str | None = "f32[4]",
    *,
    facts: dict[str, Any] | None = None,
    name: str = "toy",
    **options: Any,
) -> HostClient:
    """Make a client that computes every program with one function."""
    return HostClient(name, compile=lambda program, _: compiled(run, parameters, outputs, **(facts or {})), **options)


def negate(**options: Any) -> HostClient:
    """Make a client of a device that negates four floats."""
    return client(lambda x: -x, name="negate", **options)


class Gate:
    """A gate in a device's function: the function enters, sets an event, and waits until the test opens the gate."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self._open = threading.Semaphore(0)

    def __call__(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        self.entered.release()
        assert self._open.acquire(timeout=TIMEOUT)
        return x + 1

    def wait_entered(self) -> None:
        """Wait until the device has begun."""
        assert self.entered.acquire(timeout=TIMEOUT)

    def open(self, times: int = 1) -> None:
        """Let that many executions go on."""
        self._open.release(times)


def gated(**options: Any) -> tuple[HostClient, Gate]:
    """Make a client of a device that adds one when its gate opens."""
    gate = Gate()
    return client(gate, name="gated", **options), gate


def failing(error: BaseException, **options: Any) -> HostClient:
    """Make a client of a device that always fails."""

    def fail(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        raise error

    return client(fail, name="failing", **options)


def collective(num_devices: int, **options: Any) -> HostClient:
    """Make a client of devices that add up their arguments."""

    def all_reduce(context: RunContext, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.sum(context.rendezvous("all_reduce", x), axis=0, dtype=x.dtype)

    return client(all_reduce, name="collective", num_devices=num_devices, facts={"takes_context": True}, **options)


def replicas(count: int) -> pjrt.CompileOptions:
    """Compile options for a number of replicas."""
    return pjrt.CompileOptions(num_replicas=count)


def floats(*values: float) -> np.ndarray[Any, Any]:
    """Return four floats: the arguments, or 0, 1, 2, 3."""
    return np.array(values or (0, 1, 2, 3), np.float32)
