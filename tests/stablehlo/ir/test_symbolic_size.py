"""Symbolic sizes: their values, and what is no size."""

from __future__ import annotations

import sys

import pytest
from jax import export

from pjrt import InvalidArgumentError
from pjrt.stablehlo.ir.argument_shapes import evaluate, solve, symbols_in

EXPRESSIONS = ("b", "2*b + 1", "b^2 - 3*k", "floordiv(b + k, 3)", "mod(b, 4)", "max(b, k) - min(2, k)", "-1*b + 100")


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_values_are_those_of_jax(expression: str) -> None:
    (size,) = export.symbolic_shape(expression)
    spelled = str(size)  # in JAX's own order
    for sizes in ({"b": 5, "k": 7}, {"b": 12, "k": 1}):
        needed = {name: sizes[name] for name in symbols_in(spelled)}
        assert evaluate(spelled, needed) == size._evaluate(sizes)


def test_one_symbol_is_solved() -> None:
    assert solve("2*b + 1", 9, {}) == ("b", 4)
    assert solve("2*b + 1", 8, {}) is None
    assert solve("b + k", 8, {"k": 3}) == ("b", 5)
    assert solve("b + k", 8, {}) is None
    assert solve("b^2", 9, {}) is None


@pytest.mark.parametrize("text", ["", "b b", "b.c", "import os", "b + ", "(" * 500, "f(b", "b" * 2000])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="expected a symbolic size"):
        symbols_in(text)


@pytest.mark.parametrize("text", ["((((b^64)^64)^64)^64)^64", "floordiv(b, b - 2)", "f(b, b)"])
def test_a_size_without_a_value_is_an_error_at_once(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        evaluate(text, {"b": 2})


def test_a_size_that_is_nested_too_deep_is_an_error() -> None:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(800)  # some libraries raise it for the whole process
    try:
        with pytest.raises(InvalidArgumentError, match="recursion"):
            evaluate("-" * 999 + "b", {"b": 2})
    finally:
        sys.setrecursionlimit(before)
