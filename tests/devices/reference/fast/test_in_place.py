"""Updates in place: taken where nobody can tell, and never where somebody could."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt.devices.reference import Context, Evaluator
from pjrt.devices.reference.core import mlir
from pjrt.devices.reference.core.block import Block, run_fast

X = "tensor<6xi32>"
ONE = "tensor<1xi32>"
UPDATES = ("stablehlo.dynamic_update_slice", "stablehlo.scatter")


def addresses(text: str, *args: Any) -> tuple[list[int], list[Any]]:
    """Return the address of each update's result, and the results of the program."""
    found: list[int] = []

    def loop(block: Block, slots: list[Any]) -> None:
        run_fast(block, slots)
        for step in block.steps:
            value = slots[step.outputs[0]] if step.outputs else None
            if step.name in UPDATES and value is not None:
                found.append(value.__array_interface__["data"][0])

    return found, Evaluator(mlir.parse(text)).run(args, Context(loop))


SCATTER = """"stablehlo.scatter"(%x, %i, %u) ({
      ^bb0(%a: tensor<i32>, %b: tensor<i32>):
        %c = stablehlo.add %a, %b : tensor<i32>
        stablehlo.return %c : tensor<i32>
    }) {scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [0],
        scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}
      : (tensor<1000xi32>, tensor<1x1xi32>, tensor<1x1xi32>) -> tensor<1000xi32>"""


def filling(update: str) -> str:
    """A loop that updates one place after the other."""
    return f"""func.func @main(%x0: tensor<1000xi32>, %n: tensor<i32>) -> tensor<1000xi32> {{
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %r:2 = stablehlo.while(%k = %zero, %x = %x0) : tensor<i32>, tensor<1000xi32>
        cond {{
          %p = stablehlo.compare LT, %k, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %p : tensor<i1>
        }} do {{
          {update}
          %next = stablehlo.add %k, %one : tensor<i32>
          stablehlo.return %next, %y : tensor<i32>, tensor<1000xi32>
        }}
      return %r#1 : tensor<1000xi32> }}
    func.func private @put(%x: tensor<1000xi32>, %k: tensor<i32>) -> tensor<1000xi32> {{
      %u = stablehlo.reshape %k : (tensor<i32>) -> tensor<1xi32>
      %y = stablehlo.dynamic_update_slice %x, %u, %k
        : (tensor<1000xi32>, tensor<1xi32>, tensor<i32>) -> tensor<1000xi32>
      return %y : tensor<1000xi32> }}"""


SLICE = """%u = stablehlo.reshape %k : (tensor<i32>) -> tensor<1xi32>
  %y = stablehlo.dynamic_update_slice %x, %u, %k : (tensor<1000xi32>, tensor<1xi32>, tensor<i32>) -> tensor<1000xi32>"""
CALL = "%y = func.call @put(%x, %k) : (tensor<1000xi32>, tensor<i32>) -> tensor<1000xi32>"
ADD = f"""%i = stablehlo.reshape %k : (tensor<i32>) -> tensor<1x1xi32>
  %u = stablehlo.reshape %k : (tensor<i32>) -> tensor<1x1xi32>
  %y = {SCATTER}"""


@pytest.mark.parametrize("update", [SLICE, CALL, ADD], ids=["slice", "call", "scatter"])
def test_a_loop_updates_in_place(update: str) -> None:
    x = np.full(1000, -1, np.int32)
    places, (found,) = addresses(filling(update), x, np.int32(20))
    assert len(places) == 20
    assert len(set(places)) == 1  # the first round copies the argument, the others write where that is
    assert (x == -1).all()
    start = 0 if update is not ADD else -1
    assert found[:20].tolist() == [k + start for k in range(20)]
    assert (found[20:] == -1).all()


def straight(body: str, results: str = "%y, %z") -> str:
    count = results.count("%")
    types = ", ".join([X] * count)
    return f"""func.func @main(%a: {X}, %u: {ONE}, %i: tensor<i32>) -> ({types}) {{
      %x = stablehlo.add %a, %a : {X}
      {body}
      return {results} : {types} }}"""


PUT = f"%y = stablehlo.dynamic_update_slice %x, %u, %i : ({X}, {ONE}, tensor<i32>) -> {X}"
WATCHED = {
    "read later": f"{PUT} %z = stablehlo.negate %x : {X}",
    "returned": PUT + f" %z = stablehlo.negate %y : {X} ",
    "a view of it": f"%v = stablehlo.reverse %x, dims = [0] : {X} {PUT} %z = stablehlo.negate %v : {X}",
    "a view returned": f"%z = stablehlo.reverse %x, dims = [0] : {X} {PUT}",
    "the same by another name": f"%z = stablehlo.optimization_barrier %x : {X} {PUT}",
    "in a tuple": f"""%t = stablehlo.tuple %x, %x : tuple<{X}, {X}> {PUT}
        %z = stablehlo.get_tuple_element %t[1] : (tuple<{X}, {X}>) -> {X}""",
    "captured": f"""{PUT} %p = stablehlo.constant dense<true> : tensor<i1>
        %z = "stablehlo.if"(%p) ({{ %n = stablehlo.negate %x : {X} stablehlo.return %n : {X} }},
          {{ stablehlo.return %x : {X} }}) : (tensor<i1>) -> {X}""",
}


@pytest.mark.parametrize("body", WATCHED.values(), ids=WATCHED.keys())
def test_what_is_still_seen_is_left_alone(run: Any, body: str) -> None:
    results = "%y, %x" if body.startswith(PUT + " %z = stablehlo.negate %y") else "%y, %z"
    a = np.arange(1, 7, dtype=np.int32)
    y, z = run(straight(body, results), a, np.array([99], np.int32), np.int32(2))
    assert y.tolist() == [2, 4, 99, 8, 10, 12]
    assert sorted(np.abs(z).tolist()) == [2, 4, 6, 8, 10, 12]
    assert a.tolist() == [1, 2, 3, 4, 5, 6]


def test_what_nobody_sees_is_updated_where_it_is() -> None:
    a = np.arange(1, 7, dtype=np.int32)
    twice = straight(
        f"""{PUT} %w = stablehlo.negate %y : {X}
        %y2 = stablehlo.dynamic_update_slice %y, %u, %j : ({X}, {ONE}, tensor<i32>) -> {X}
        %z = stablehlo.dynamic_update_slice %y2, %u, %i : ({X}, {ONE}, tensor<i32>) -> {X}""",
        "%w, %z",
    ).replace("%x = stablehlo.add", "%j = stablehlo.constant dense<5> : tensor<i32> %x = stablehlo.add")
    _, (w, z) = addresses(twice, a, np.array([99], np.int32), np.int32(2))
    assert w.tolist() == [-2, -4, -99, -8, -10, -12]
    assert z.tolist() == [2, 4, 99, 8, 10, 99]


def test_constants_and_arguments_are_left_alone() -> None:
    text = f"""func.func @main(%a: {X}, %u: {ONE}, %i: tensor<i32>) -> ({X}, {X}) {{
      %c = stablehlo.constant dense<[1, 2, 3, 4, 5, 6]> : {X}
      %y = stablehlo.dynamic_update_slice %c, %u, %i : ({X}, {ONE}, tensor<i32>) -> {X}
      %z = stablehlo.dynamic_update_slice %a, %u, %i : ({X}, {ONE}, tensor<i32>) -> {X}
      return %y, %z : {X}, {X} }}"""
    program = Evaluator(mlir.parse(text))
    a, u = np.zeros(6, np.int32), np.array([9], np.int32)
    for place in (0, 3):  # the second run sees what the first one left
        y, z = program(a, u, np.int32(place))
        assert y.tolist() == [9 if k == place else k + 1 for k in range(6)]
        assert z.tolist() == [9 if k == place else 0 for k in range(6)]
    assert a.tolist() == [0] * 6


STEPS = {
    "update": ("stablehlo.dynamic_update_slice %{0}, %u, %i : (" + f"{X}, {ONE}, tensor<i32>) -> {X}", 1),
    "reverse": ("stablehlo.reverse %{0}, dims = [0] : " + X, 1),
    "barrier": ("stablehlo.optimization_barrier %{0} : " + X, 1),
    "reshape": ("stablehlo.reshape %{0} : (" + f"{X}) -> {X}", 1),
    "add": ("stablehlo.add %{0}, %{1} : " + X, 2),
    "call": ("func.call @put(%{0}, %u, %i) : (" + f"{X}, {ONE}, tensor<i32>) -> {X}", 1),
}


@pytest.mark.full
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_program_gives_what_copies_give(run: Any, data: Any) -> None:
    names, values, lines = ["a"], {"a": np.arange(6, dtype=np.int32)}, []
    for number in range(data.draw(st.integers(1, 12))):
        kind = data.draw(st.sampled_from(sorted(STEPS)))
        spelled, count = STEPS[kind]
        chosen = [data.draw(st.sampled_from(names[-4:])) for _ in range(count)]
        name = f"v{number}"
        lines.append(f"%{name} = " + spelled.format(*chosen))
        x = values[chosen[0]]
        if kind in ("update", "call"):
            values[name] = x.copy()
            values[name][2] = 77
        elif kind == "reverse":
            values[name] = x[::-1].copy()
        elif kind == "add":
            values[name] = x + values[chosen[1]]
        else:
            values[name] = x.copy()
        names.append(name)
    outputs = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=4))
    types = ", ".join([X] * len(outputs))
    text = f"""func.func @main(%a: {X}, %u: {ONE}, %i: tensor<i32>) -> ({types}) {{
      {" ".join(lines)}
      return {", ".join("%" + name for name in outputs)} : {types} }}
    func.func private @put(%x: {X}, %u: {ONE}, %i: tensor<i32>) -> {X} {{ {PUT} return %y : {X} }}"""
    found = run(text, values["a"].copy(), np.array([77], np.int32), np.int32(2))
    for array, name in zip(found, outputs, strict=True):
        assert array.tolist() == values[name].tolist()
