from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt import InvalidArgumentError
from pjrt.stablehlo import read, to_module
from pjrt.stablehlo.facts.outline import CallGraph, Outline


def outline(text: str) -> Outline:
    return Outline.of(to_module(read(text)))


def function(name: str, *called: str) -> str:
    calls = "".join(f"func.call @{callee}() : () -> ()\n" for callee in called)
    return f"func.func {'private ' if name != 'main' else ''}@{name}() {{ {calls}return }}\n"


def test_it_counts_operations_types_calls_and_regions() -> None:
    found = outline(
        function("main", "f", "f") + function("f") + "func.func private @g(%p: tensor<i1>, %x: tensor<2xf32>) {"
        ' "stablehlo.if"(%p) ({ stablehlo.return }, { stablehlo.return }) : (tensor<i1>) -> ()\n return }'
    )
    assert found.operations["func.call"] == 2
    assert sorted(map(str, found.types)) == ["tensor<2xf32>", "tensor<i1>"]
    assert (found.functions.entry, dict(found.functions.calls)) == ("main", {"main": {"f"}, "f": set(), "g": set()})
    assert (found.depth, found.functions.depth(), found.chain) == (2, 1, 0)
    found.check()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (function("main", "main"), "main calls itself"),
        (function("main", "f") + function("f", "g") + function("g", "f"), "[fg] calls itself"),
        ("func.func private @main()", "main is to be run and has no body"),
        (function("main", "f") + "func.func private @f()", "f is called and has no body"),
        (
            'func.func @main() { "stablehlo.composite"() {name = "a.b", decomposition = @main} : () -> ()\n return }',
            "main calls itself",
        ),
        ("func.func @main(%x: tensor<9223372036854775807x2xi8>) { return }", "more bytes than can be counted"),
        ("func.func @main(%x: tensor<0x9223372036854775807xf32>) { return }", "more bytes than can be counted"),
        ("func.func @main(%x: tuple<tensor<3037000500x3037000500xi8>>) { return }", "more bytes than can be counted"),
        ('func.func @"\\FF"() { return }', "senseless"),
        ('module @"\\FF" { func.func @main() { return } }', "senseless"),
    ],
)
def test_what_no_device_can_do_anything_with(text: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        outline(text).check()


def test_what_is_declared_and_not_called_is_no_fault() -> None:
    outline(function("main") + "func.func private @f()").check()


def test_a_long_chain_is_counted_where_there_are_many_operations() -> None:
    lines = [f"%{i} = stablehlo.add %{i - 1 if i else 'x'}, %x : tensor<f32>\n" for i in range(2500)]
    assert outline(f"func.func @main(%x: tensor<f32>) {{ {''.join(lines)} return }}").chain == 2500


@given(st.dictionaries(st.sampled_from("abcdef"), st.sets(st.sampled_from("abcdef")), min_size=1))
@settings(max_examples=200, deadline=None)
def test_recursion_is_found_where_a_function_reaches_itself(calls: dict[str, set[str]]) -> None:
    calls = {name: {callee for callee in called if callee in calls} for name, called in calls.items()}

    def reached(name: str) -> set[str]:
        return CallGraph(name, calls, ()).reached()

    circular = {name for name in calls if any(name in reached(called) for called in calls[name])}
    found = [message for _, message in CallGraph(min(calls), calls, ()).faults()]
    assert bool(found) == bool(circular)
    assert not found or found[0].split(" ")[2] in circular
