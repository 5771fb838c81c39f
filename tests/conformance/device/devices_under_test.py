"""Devices that are right, and devices that are wrong on purpose, each in one way."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
from anydevice.simulated_memory import SimulatedMemory

import pjrt

ADD = "stablehlo.add"
Kernels = dict[str, Any]


def _client(kernels: Kernels, options: dict[str, Any]) -> pjrt.Client:
    return pjrt.StableHloClient("mychip", kernels=kernels, fallback="reference", **options)


def right(**options: Any) -> pjrt.Client:
    return _client({ADD: lambda _, x, y: x + y, "stablehlo.tanh": lambda _, x: np.tanh(x)}, options)


def with_memory(**options: Any) -> pjrt.Client:
    memory = SimulatedMemory()

    def add(operation: Any, x: int, y: int) -> int:
        result = memory.read(x) + memory.read(y)
        handle = memory.allocate(pjrt.ShapeSpec.of(result), None)  # type: ignore[arg-type]
        memory.copy_in(handle, result)
        return handle

    return _client({ADD: add}, {"memory": memory, **options})


def wrong_for_bf16(**options: Any) -> pjrt.Client:
    def tanh(_: Any, x: Any) -> Any:
        return np.tanh(x) * x.dtype.type(1.25 if x.dtype == "bfloat16" else 1)

    return _client({"stablehlo.tanh": tanh}, options)


def wrong_sum(**options: Any) -> pjrt.Client:
    return _client({ADD: lambda _, x, y: x + y + x.dtype.type(1)}, options)


def wrong_sign_of_zero(**options: Any) -> pjrt.Client:
    return _client({"stablehlo.negate": lambda _, x: np.asarray(0 - x, x.dtype)}, options)


def wrong_on_empty(**options: Any) -> pjrt.Client:
    return _client({ADD: lambda _, x, y: x + y if x.size else np.zeros((1, *x.shape), x.dtype)}, options)


def crashes(**options: Any) -> pjrt.Client:
    def add(_: Any, x: Any, y: Any) -> Any:
        if x.dtype == np.int8 and x.size == 0:
            os.abort()
        return x + y

    return _client({ADD: add}, options)


def hangs(**options: Any) -> pjrt.Client:
    def add(_: Any, x: Any, y: Any) -> Any:
        if x.dtype == np.int8 and x.size == 0:
            threading.Event().wait()
        return x + y

    return _client({ADD: add}, options)


def changes_its_argument(**options: Any) -> pjrt.Client:
    memory = SimulatedMemory()

    def add(_: Any, x: int, y: int) -> int:
        memory.copy_in(x, memory.read(x) + memory.read(y))
        return x

    return _client({ADD: add}, {"memory": memory, **options})


def leaks(**options: Any) -> pjrt.Client:
    kept = []

    def add(_: Any, x: Any, y: Any) -> Any:
        kept.append(x + y)
        return kept[-1].copy()

    return _client({ADD: add}, options)


def not_for_threads(**options: Any) -> pjrt.Client:
    busy = threading.Lock()

    def compile(program: pjrt.stablehlo.ParsedProgram, _: Any) -> Any:
        if not busy.acquire(blocking=False):
            raise RuntimeError("two programs at a time")
        try:
            threading.Event().wait(0.05)
            return lambda *arrays: arrays[0] + arrays[1]
        finally:
            busy.release()

    return pjrt.StableHloClient("mychip", compile=compile, operations=[ADD], **options)


def forgets_donation(**options: Any) -> pjrt.Client:
    return pjrt.host.HostClient("mychip", compile=lambda program, _: lambda x, y: x + y, **options)


def forgets_replicas(**options: Any) -> pjrt.Client:
    return _client({"stablehlo.all_reduce": lambda _, x: x}, options)


def has_no_client(**options: Any) -> pjrt.Client:
    raise RuntimeError("no chip in this machine")
