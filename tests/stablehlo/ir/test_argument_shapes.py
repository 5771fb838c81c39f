"""Shapes of arguments: all of them, from some of them or from sizes of symbols."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pjrt
from pjrt.stablehlo.ir.argument_shapes import evaluate, known_shapes, resolve_shapes


@dataclass(frozen=True)
class Argument:
    name: str
    shape: tuple[int | str | None, ...]


ARGUMENTS = [
    Argument("x", ("a", 4)),
    Argument("y", ("2*a + b",)),
    Argument("", ("a*b", "max(a, b)")),
    Argument("w", (3,)),
]


@given(a=st.integers(1, 50), b=st.integers(1, 50), data=st.data())
def test_sizes_that_follow_need_not_be_given(a: int, b: int, data: st.DataObject) -> None:
    def size(stated: int | str | None) -> int:
        assert stated is not None
        return stated if isinstance(stated, int) else evaluate(stated, {"a": a, "b": b})

    shapes = [tuple(map(size, argument.shape)) for argument in ARGUMENTS]
    chosen = data.draw(st.sets(st.sampled_from(["a", "b", 0, 1, 2, 3])), label="given")
    mapping = {key: shapes[key] if isinstance(key, int) else {"a": a, "b": b}[key] for key in chosen}
    known_a = bool(chosen & {"a", 0})
    known_b = "b" in chosen or (known_a and bool(chosen & {1, 2}))
    known_a = known_a or ("b" in chosen and bool(chosen & {1, 2}))
    known = known_shapes(mapping, ARGUMENTS)
    for shape, expected in zip(known, shapes, strict=True):
        assert shape in (expected, None)
    if known_a and known_b:
        assert list(known) == shapes == list(resolve_shapes(mapping, ARGUMENTS))
    elif not {0, 1, 2} <= chosen:
        with pytest.raises(pjrt.InvalidArgumentError, match="expected shapes for all dynamic arguments"):
            resolve_shapes(mapping, ARGUMENTS)


@given(a=st.integers(1, 9), b=st.integers(1, 9), wrong=st.integers(1, 60))
def test_shapes_that_contradict_each_other_are_refused(a: int, b: int, wrong: int) -> None:
    mapping = {"a": a, "b": b, "y": (wrong,)}
    if wrong == 2 * a + b:
        assert resolve_shapes(mapping, ARGUMENTS)[1] == (wrong,)
    else:
        with pytest.raises(pjrt.InvalidArgumentError, match=r"contradict .* found \d+ in \[\d+\] \(a = \d by"):
            resolve_shapes(mapping, ARGUMENTS)


def test_a_name_that_is_a_symbol_too() -> None:
    arguments = [Argument("b", ("b", 2)), Argument("n", ("n",))]
    assert resolve_shapes({"b": 3, "n": 4}, arguments) == ((3, 2), (4,))
    assert resolve_shapes({"b": (3, 2), "n": (4,)}, arguments) == ((3, 2), (4,))
    with pytest.raises(pjrt.InvalidArgumentError, match="one size for the symbol"):
        resolve_shapes({"m": (3, 2)}, [Argument("", ("m", 2))])


def test_arguments_of_the_same_name_need_an_index() -> None:
    arguments = [Argument("x", (None,)), Argument("x", (None,))]
    assert resolve_shapes({0: (3,), "1": (4,)}, arguments) == ((3,), (4,))
    with pytest.raises(pjrt.InvalidArgumentError, match=r"several arguments are called 'x': .* one of \[0, 1\]"):
        resolve_shapes({"x": (3,)}, arguments)


def test_negative_sizes_are_refused() -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match="sizes from 0 up, found -1"):
        resolve_shapes({"b": 1}, [Argument("", ("b - 2",))])
