"""Fixtures of the tests of the reference device: run a text, and compute the answer in two independent ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pjrt.api.element_type import ElementType
from pjrt.devices.reference import Evaluator
from pjrt.devices.reference.core import mlir
from pjrt.stablehlo.ir.mlir_attributes import decode_attribute

Run = Callable[..., list[Any]]


@pytest.fixture(scope="session")
def run() -> Run:
    """``run(text, *args)``: the results of the program on the reference device.

    They are the same, bit by bit, without its optimizations, or the test fails.
    """

    def go(text: str, *args: Any) -> list[Any]:
        module = mlir.parse(text)
        results = Evaluator(module).run(args)
        if not any(name in text for name in UNLIKE):
            assert_same_bits(results, Evaluator(module, optimize=False).run(args))
        return results

    return go


@pytest.fixture(scope="session")
def same_bits() -> Callable[[Any, Any], None]:
    """``same_bits(results, others)`` fails where arrays, or tuples of them, differ in any bit."""
    return assert_same_bits


UNLIKE = ('"stablehlo.rng"', "stablehlo.rng ")
"""Ops with other results at each run."""


def assert_same_bits(results: Any, others: Any) -> None:
    """Fails where arrays, or tuples of them, differ in any bit."""
    for a, b in zip(results, others, strict=True):
        if isinstance(a, tuple):
            assert_same_bits(a, b)
        elif isinstance(a, np.ndarray | np.generic):
            assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


@pytest.fixture(scope="session")
def interpret() -> Run:
    """``interpret(text, *args)``: the results of the StableHLO project's own interpreter, an implementation that shares
    nothing with ours. It knows neither partitions nor every element type."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    def go(text: str, *args: Any) -> list[Any]:
        module = mlir.parse(text)
        with module.context, ir.Location.unknown():
            found = stablehlo.eval_module(module, [ir.Attribute.parse(dense(arg)) for arg in args])
            return [decode_attribute(attribute) for attribute in found]

    return go


def dense(array: Any) -> str:
    """Write an array as the text of a dense constant, by its raw bytes."""
    array = np.asarray(array)
    shape = "".join(f"{size}x" for size in array.shape)
    type_ = f"tensor<{shape}{ElementType.of(array.dtype).mlir}>"
    if array.dtype == np.bool_:  # raw booleans are packed
        words = str(array.tolist()).lower()
        return f"dense<{words}> : {type_}"
    return f'dense<"0x{np.ascontiguousarray(array).tobytes().hex()}"> : {type_}'


@pytest.fixture(scope="session")
def nearest() -> Callable[[Any, Any], Any]:
    """``nearest(exact, dtype)``: real numbers rounded to a float type by looking up its values, ties to the even bit
    pattern.
    """
    return _nearest


def _nearest(exact: Any, dtype: Any) -> Any:
    dtype = np.dtype(dtype)
    if dtype in (np.dtype(np.float32), np.dtype(np.float64)):
        with np.errstate(all="ignore"):
            return np.asarray(exact, np.longdouble).astype(dtype)
    values, patterns = _values_of(dtype)
    exact = np.asarray(exact, np.longdouble)
    size = np.abs(exact)
    above = np.clip(np.searchsorted(values, size), 1, len(values) - 1)
    low, high = values[above - 1], values[above]
    up = (size - low > high - size) | ((size - low == high - size) & (patterns[above] % 2 == 0))
    index = np.where(size >= values[-1], len(values) - 1, np.where(up, above, above - 1))
    # Past the largest value: as if there were one more, which then stands for overflow.
    step = values[-1] - values[-2]
    over = (size > values[-1] + step / 2) | ((size == values[-1] + step / 2) & (patterns[-1] % 2 == 1))
    found = values[index].astype(np.float32).astype(dtype)
    with np.errstate(all="ignore"):
        found = np.where(over, np.full((), np.inf, np.float32).astype(dtype), found)
        signed = np.where(np.signbit(exact), np.negative(found.astype(np.float32)).astype(dtype), found)
        return np.where(np.isnan(exact), np.full((), np.nan, np.float32).astype(dtype), signed)


_TABLES: dict[Any, Any] = {}


def _values_of(dtype: Any) -> tuple[Any, Any]:
    """Return all finite values from zero up, with their bit patterns."""
    if dtype not in _TABLES:
        bits = ElementType.of(dtype).bits
        patterns = np.arange(1 << bits, dtype=np.uint16 if dtype.itemsize == 2 else np.uint8)
        with np.errstate(all="ignore"):
            values = patterns.view(dtype).astype(np.float32).astype(np.longdouble)
        keep = np.isfinite(values) & ~np.signbit(values)
        order = np.argsort(values[keep], kind="stable")
        _TABLES[dtype] = values[keep][order], patterns[keep][order].astype(np.int64)
    return _TABLES[dtype]


@pytest.fixture(scope="session")
def on_xla() -> Run:
    """``on_xla(text, *args)``: the results of the program on XLA's CPU device."""
    import pjrt

    client = pjrt.client("cpu")

    def go(text: str, *args: Any) -> list[Any]:
        return [np.asarray(buffer) for buffer in client.compile(text)(*args)]

    return go
