"""Small StableHLO programs as text, values to run them on, and comparison by bits, for the tests of single ops."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType

T = ElementType
TYPES = [t for t in T if t not in (T.INVALID, T.TOKEN, T.S1, T.U1)]
"""Every element type that a tensor can have."""
FLOATS = [t for t in TYPES if t.is_floating]
INTEGERS = [t for t in TYPES if t.is_integer]


def tensor(shape: Iterable[int], t: ElementType = T.S32) -> str:
    """Return the spelling of a tensor type."""
    return f"tensor<{''.join(f'{size}x' for size in shape)}{t.mlir}>"


def program(
    op: str,
    operands: Sequence[str],
    results: str | Sequence[str],
    attributes: str = "",
    regions: str | Sequence[str] = (),
) -> str:
    """Return a function that runs one StableHLO op on its arguments.

    Args:
        op: the op's name without its dialect.
        operands, results: types; a single result needs no list.
        attributes: in generic form, ``name = value, …``.
        regions: the text of each region, ``^bb0(…): …``.
    """
    results = [results] if isinstance(results, str) else results
    regions = [regions] if isinstance(regions, str) else regions
    params = ", ".join(f"%arg{i}: {t}" for i, t in enumerate(operands))
    names = ", ".join(f"%arg{i}" for i in range(len(operands)))
    given = f"({', '.join(results)})"
    outs = ", ".join(f"%result#{i}" for i in range(len(results))) if len(results) > 1 else "%result"
    bodies = f" ({', '.join(f'{{ {region} }}' for region in regions)})" if regions else ""
    head = f"%result:{len(results)}" if len(results) > 1 else "%result"
    call = f'{head} = "stablehlo.{op}"({names}){bodies} {{{attributes}}} : ({", ".join(operands)}) -> {given}'
    return f"func.func @main({params}) -> {given} {{ {call} return {outs} : {', '.join(results)} }}"


def binary_body(op: str, t: ElementType) -> str:
    """Return a region that applies one op to two scalars."""
    s = tensor((), t)
    call = f'%b = "stablehlo.{op}"(%x, %y) : ({s}, {s}) -> {s}'
    return f'^bb0(%x: {s}, %y: {s}): {call} "stablehlo.return"(%b) : ({s}) -> ()'


def array(numbers: Iterable[int]) -> str:
    """Return the spelling of an attribute that is a list of integers."""
    numbers = list(numbers)
    return f"array<i64: {', '.join(map(str, numbers))}>" if numbers else "array<i64>"


def sample(t: ElementType, shape: tuple[int, ...], seed: int = 0) -> Any:
    """Return random bits as values of a type, so that NaN and every other value can be among them."""
    random = np.random.default_rng(seed)
    raw = random.integers(0, 256, (math.prod(shape), t.dtype.itemsize), np.uint8)
    if t is T.PRED:
        raw &= 1
    elif t.is_integer and t.bits < 8:
        return raw.astype(t.dtype).reshape(shape)
    elif t.bits < 8:
        raw &= (1 << t.bits) - 1
    return raw.view(t.dtype).reshape(shape)


def same(found: Any, expected: Any) -> None:
    """Whether shape, type and every bit are the same."""
    expected = np.asarray(expected)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert found.tobytes() == expected.tobytes()
