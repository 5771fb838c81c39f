"""Chains of integers on few elements, and the loops that become part of them: the same bits as step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pjrt.devices.reference import Evaluator
from pjrt.devices.reference.core import mlir
from pjrt.devices.reference.fast.integer_chain import OPERATIONS, IntegerChain

UNARY = ("stablehlo.negate", "stablehlo.not")


def steps(text: str) -> list[str]:
    return [step.name for step in Evaluator(mlir.parse(text)).region.block.steps]


@st.composite
def chains(draw: st.DrawFn) -> tuple[str, list[Any]]:
    """A program of a chain, with values of its shape, a scalar and a constant; and its arguments."""
    name = draw(st.sampled_from(["i32", "ui32", "i64", "ui64"]))
    shape = draw(st.sampled_from([(), (1,), (2,), (3, 5), (2, 1, 3), (130,), (0, 4)]))
    tensor = f"tensor<{''.join(f'{n}x' for n in shape)}{name}>"
    values, lines = ["%x", "%y", "%b", "%c"], []
    for number in range(draw(st.integers(1, 30))):
        operation = draw(st.sampled_from(sorted(OPERATIONS)))
        operands = [draw(st.sampled_from(values)) for _ in range(1 if operation in UNARY else 2)]
        lines.append(f"%{number} = {operation} {', '.join(operands)} : {tensor}")
        values.append(f"%{number}")
    results = draw(st.lists(st.sampled_from(values), min_size=1, max_size=4))
    types = ", ".join([tensor] * len(results))
    text = f"""func.func @main(%x: {tensor}, %y: {tensor}, %s: tensor<{name}>) -> ({types}) {{
      %b = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<{name}>) -> {tensor}
      %c = stablehlo.constant dense<{draw(st.integers(0, 70))}> : {tensor}
      {chr(10).join(lines)}
      return {", ".join(results)} : {types}
    }}"""
    dtype = np.dtype(name.replace("ui", "uint") if name[0] == "u" else name.replace("i", "int"))
    bits = np.random.default_rng(draw(st.integers(0, 99)))
    arrays = [np.asarray(bits.integers(0, 1 << 63, shape, np.int64)).astype(dtype) for _ in range(2)]
    return text, [*arrays, dtype.type(draw(st.integers(0, 70)))]


@given(chains())
def test_any_chain(run: Callable[..., Any], chain: tuple[str, list[Any]]) -> None:
    text, arguments = chain
    run(text, *arguments)  # fails where the result is not that of the plain path


ROUNDS = """func.func @main(%x: tensor<3xui32>, %n: tensor<i32>) -> tensor<3xui32> {{
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %r:2 = stablehlo.while(%i = {begin}, %v = %x) : tensor<i32>, tensor<3xui32>
  cond {{
    %limit = stablehlo.constant dense<{rounds}> : tensor<i32>
    %go = stablehlo.compare LT, %i, %limit, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  }} do {{
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    %word = stablehlo.convert %next : (tensor<i32>) -> tensor<ui32>
    %b = stablehlo.broadcast_in_dim %word, dims = [] : (tensor<ui32>) -> tensor<3xui32>
    %0 = stablehlo.multiply %v, %x : tensor<3xui32>
    %1 = stablehlo.xor %0, %b : tensor<3xui32>
    stablehlo.return %next, %1 : tensor<i32>, tensor<3xui32>
  }}
  return %r#1 : tensor<3xui32>
}}"""


@pytest.mark.parametrize(
    ("begin", "rounds", "expected"),
    [
        pytest.param("%zero", 7, ["14 fused elementwise ops"], id="few"),
        pytest.param("%zero", 0, [], id="none"),
        pytest.param("%zero", 500, ["stablehlo.while"], id="many"),
        pytest.param("%n", 7, ["stablehlo.while"], id="unknown"),
    ],
)
def test_rounds_become_a_chain(run: Callable[..., Any], begin: str, rounds: int, expected: list[str]) -> None:
    text = ROUNDS.format(begin=begin, rounds=rounds)
    found = steps(text)
    assert [name for name in found if "ops" in name or "while" in name] == expected
    run(text, np.array([3, 5, 1 << 31], np.uint32), np.int32(2))


def draws(key: Any) -> Any:
    """Random numbers of one key, and of several."""
    keys = jax.random.split(jax.random.wrap_key_data(key), 3)
    many = jax.vmap(lambda each: jax.random.bits(each, (2,)))(keys)
    return jax.random.key_data(keys), jax.random.bits(keys[0], (4, 3)), jax.random.bits(keys[1]), many


def test_random_bits_of_jax(run: Callable[..., Any]) -> None:
    key = np.array([7, 1 << 31], np.uint32)
    text = jax.jit(draws).lower(key).as_text()
    for found, expected in zip(run(text, key), draws(key), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert not any("while" in name for name in steps(text))


def test_chains_end_where_another_depends_on_them(run: Callable[..., Any]) -> None:
    """Two of different shapes grow at the same time, until one reads the other's result."""
    lines = [
        f"%a{n + 1} = stablehlo.add %a{n}, %a0 : tensor<2xi32>\n%b{n + 1} = stablehlo.not %b{n} : tensor<3xi32>"
        for n in range(4)
    ]
    text = f"""func.func @main(%a0: tensor<2xi32>, %b0: tensor<3xi32>) -> (tensor<2xi32>, tensor<3xi32>) {{
      {chr(10).join(lines)}
      %c = stablehlo.slice %b4 [1:3] : (tensor<3xi32>) -> tensor<2xi32>
      %d = stablehlo.multiply %c, %a4 : tensor<2xi32>
      return %d, %b4 : tensor<2xi32>, tensor<3xi32>
    }}"""
    run(text, np.array([1, -2], np.int32), np.array([5, 6, 7], np.int32))
    assert steps(text) == ["4 fused elementwise ops", "stablehlo.slice", "5 fused elementwise ops"]


def test_a_chain_takes_arrays_of_its_size_alone() -> None:
    double = IntegerChain([(OPERATIONS["stablehlo.add"], 1, 0, 0)], 1, [1], (3,), np.dtype(np.uint32))
    with pytest.raises(ValueError, match="expected 4 or 12 bytes, found 8"):
        double([np.zeros(2, np.uint32)])
