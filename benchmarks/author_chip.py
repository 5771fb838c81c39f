"""A chip of an author with a queue: an Adam step of a small MLP, by kernels for some operations and a fallback."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pjrt
from pjrt.host import Enqueued, Memory

SOURCE = Path(__file__).with_suffix(".c")
DOT, COPY = 6, 7
ELEMENTWISE = ("add", "subtract", "multiply", "divide", "maximum", "sqrt")
ENQUEUED = "kernels are enqueued"
F32 = np.dtype(np.float32)


class Driver:
    """The functions of the chip, and the seconds that a program spent in the author's code."""

    def __init__(self, library: Path) -> None:
        self.seconds = 0.0
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self.functions = functions = ctypes.CDLL(str(library))
        functions.chip_allocate.argtypes, functions.chip_allocate.restype = [number], pointer
        functions.chip_free.argtypes = [pointer]
        functions.chip_delay.argtypes = [number]
        functions.chip_busy.restype = functions.chip_blocked.restype = number
        functions.chip_put.argtypes = [ctypes.c_int, number, number, number, pointer, pointer, pointer]
        functions.chip_put.restype = ctypes.c_uint64
        functions.chip_wait.argtypes = [ctypes.c_uint64]
        functions.chip_open()

    def put(self, what: int, sizes: tuple[int, int, int], x: int, y: int | None, out: int) -> Fence:
        """Enqueue a command."""
        return Fence(self, self.functions.chip_put(what, *sizes, x, y, out))


class Fence:
    """The end of a command."""

    __slots__ = ("_driver", "_number")

    def __init__(self, driver: Driver, number: int) -> None:
        self._driver = driver
        self._number = number

    def wait(self) -> None:
        self._driver.functions.chip_wait(self._number)


class ChipMemory(Memory):
    """Memory behind addresses that only the chip reads and writes."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def allocate(self, spec: pjrt.ShapeSpec, space: Any) -> int:
        address: int = self._driver.functions.chip_allocate(spec.size_in_bytes)
        return address

    def free(self, handle: int) -> None:
        self._driver.functions.chip_free(handle)

    def copy_in(self, handle: int, array: Any) -> Fence:
        return self._driver.put(COPY, (array.nbytes, 0, 0), array.ctypes.data, None, handle)

    def copy_out(self, handle: int, array: Any) -> Fence:
        return self._driver.put(COPY, (array.nbytes, 0, 0), handle, None, array.ctypes.data)


def kernels(driver: Driver) -> dict[str, Callable[..., Any]]:
    """Return the author's kernels, which enqueue their work."""

    def elementwise(what: int) -> Callable[..., Any]:
        def kernel(operation: Any, x: int, y: int | None = None) -> Any:
            type_ = operation.results[0].type
            if type_.dtype != F32:
                return NotImplemented
            out = driver.functions.chip_allocate(4 * type_.size)
            return Enqueued(out, driver.put(what, (type_.size, 0, 0), x, y, out))

        return kernel

    def dot(operation: Any, x: int, y: int) -> Any:
        left, right, result = (value.type for value in (*operation.operands, *operation.results))
        numbers = operation.attribute("dot_dimension_numbers")
        plain = list(numbers.lhs_contracting_dimensions) == [1] and list(numbers.rhs_contracting_dimensions) == [0]
        if left.rank != 2 or right.rank != 2 or not plain:
            return NotImplemented
        out = driver.functions.chip_allocate(4 * result.size)
        return Enqueued(out, driver.put(DOT, (left.shape[0], left.shape[1], right.shape[1]), x, y, out))

    named = {f"stablehlo.{name}": elementwise(what) for what, name in enumerate(ELEMENTWISE)}
    return {**named, "stablehlo.dot_general": dot}


def waiting(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel that waits for its own fence."""

    def call(operation: Any, *handles: int) -> Any:
        result = kernel(operation, *handles)
        if result is NotImplemented:
            return result
        result.fence.wait()
        return result.results

    return call


def timed(driver: Driver, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the author's whose time is added up."""

    def call(*arguments: Any) -> Any:
        begin = perf_counter()
        try:
            return function(*arguments)
        finally:
            driver.seconds += perf_counter() - begin

    return call


class TimedMemory(ChipMemory):
    """The same memory, with the time of its methods added up."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        for name in ("allocate", "free", "copy_in", "copy_out"):
            setattr(self, name, timed(driver, getattr(self, name)))


def adam_step(state: Any, x: Any, y: Any) -> Any:
    """Return the state of a small MLP after a step of Adam."""
    parameters, first, second, time = state

    def loss(parameters: Any) -> Any:
        (w1, b1), (w2, b2) = parameters
        return ((jnp.maximum(x @ w1 + b1, 0) @ w2 + b2 - y) ** 2).mean()

    gradient = jax.grad(loss)(parameters)
    time = time + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradient)

    def moved(p: Any, m: Any, v: Any) -> Any:
        return p - 0.01 * (m / (1 - 0.9**time)) / (jnp.sqrt(v / (1 - 0.999**time)) + 1e-8)

    return jax.tree.map(moved, parameters, first, second), first, second, time


def arguments() -> list[Any]:
    """Return the arguments of a step: the state, and a batch."""
    chance = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return chance.standard_normal(shape, np.float32)

    parameters = [(normal(32, 96), np.zeros(96, np.float32)), (normal(96, 8), np.zeros(8, np.float32))]
    zeros = jax.tree.map(np.zeros_like, parameters)
    return [(parameters, zeros, zeros, np.float32(0)), normal(64, 32), normal(64, 8)]


@contextmanager
def chips() -> Iterator[tuple[Driver, dict[str, pjrt.Client]]]:
    """Give the driver, and clients for the chip: with kernels that are enqueued, and that wait for their fences."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "chip.so"
        command = ["cc", "-O2", "-shared", "-fPIC", str(SOURCE), "-o", str(library), "-lm", "-lpthread"]
        subprocess.run(command, check=True)
        driver = Driver(library)
    own = kernels(driver)
    makers: dict[str, dict[str, Any]] = {
        "each kernel waits": {"kernels": {name: waiting(kernel) for name, kernel in own.items()}},
        ENQUEUED: {"kernels": own},
        "timed": {
            "kernels": {name: timed(driver, kernel) for name, kernel in own.items()},
            "memory": TimedMemory(driver),
        },
    }
    yield (
        driver,
        {
            name: pjrt.StableHloClient("queued", fallback="reference", **{"memory": ChipMemory(driver), **options})
            for name, options in makers.items()
        },
    )


def step_of(client: pjrt.Client) -> Callable[[], None]:
    """Return a call that does a step and waits for it, after a check of one step against the reference."""
    values = arguments()
    text = str(jax.jit(adam_step, keep_unused=True).lower(*values).as_text())
    leaves = jax.tree.leaves(values)
    executable = client.compile(text)
    buffers = [client.buffer_from_host(np.asarray(leaf)) for leaf in leaves]
    with pjrt.client("reference") as reference:
        expected = reference.compile(text)(*map(np.asarray, leaves))
        for buffer, wanted in zip(executable(*buffers), expected, strict=True):
            np.testing.assert_allclose(np.asarray(buffer), np.asarray(wanted), rtol=1e-3, atol=1e-4)

    def step() -> None:
        results = executable(*buffers)
        buffers[: len(results)] = results
        for result in results:
            result.ready().result()

    return step
