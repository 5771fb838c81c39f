"""Looking into programs for what devices say of themselves: here devices that say all kinds of things."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pjrt.api.capability import (
    ATTRIBUTE,
    Capabilities,
    Effort,
    Feature,
    Reason,
    ReasonKind,
    SourceLocation,
    Support,
    Verdict,
    decide,
    places_in,
    refusal,
)
from pjrt.api.compile_options import CompileOptions
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, PjrtError, StatusCode, UnavailableError
from pjrt.api.program import Program
from pjrt.capi.reports import plugin_capabilities
from pjrt.stablehlo import artifact_version, current_version, read, serialize, supports, to_hlo
from pjrt.stablehlo.facts.compatibility import check_shapes

T = ElementType
F32, S32, F64 = T.F32, T.S32, T.F64
YES, NO, MAYBE = Verdict.YES, Verdict.NO, Verdict.MAYBE

ADD = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  %1 = stablehlo.tanh %0 : tensor<4xf32> loc("jit(f)/tanh"("model.py":7:3))
  return %1 : tensor<4xf32>
}"""

KNOWN = Capabilities(
    num_devices=2,
    element_types=frozenset({F32, S32, T.PRED}),
    memory_kinds=("device",),
    program_formats=("mlir",),
    operations={
        "stablehlo.add": frozenset({F32, S32}),
        "stablehlo.tanh": frozenset({F32}),
        "stablehlo.constant": frozenset({F32, S32}),
        "stablehlo.custom_call": frozenset({F32}),
        "stablehlo.all_reduce": frozenset({F32}),
        "stablehlo.convert": frozenset({F32, S32}),
        "stablehlo.dot_general": None,
        "stablehlo.composite": frozenset({F32}),
    },
    custom_calls=frozenset({"known"}),
    features={Feature.COLLECTIVES: True, Feature.DYNAMIC_SHAPES: False, Feature.LAYOUTS: True},
)


def refuse(*_: object) -> Any:
    raise AssertionError("it should have been decided without compiling")


def main(signature: str, *lines: str) -> str:
    return f"func.func @main{signature} {{\n" + "\n".join(lines) + "\n}"


def only(support: Support) -> Reason:
    assert len(support.reasons) == 1, support.reasons
    return support.reasons[0]


def test_a_program_of_which_all_is_known_is_a_yes_without_compiling() -> None:
    support = supports(ADD, None, KNOWN, compile=refuse)
    assert (support.verdict, support.effort, support.reasons) == (YES, Effort.TYPES, ())
    assert support


def test_names_alone_are_never_enough_for_a_yes() -> None:
    support = supports(ADD, None, KNOWN, effort=Effort.OPS)
    assert (support.verdict, support.effort) == (MAYBE, Effort.OPS)
    assert not support


@pytest.mark.parametrize("effort", [Effort.OPS, Effort.TYPES, None])
def test_an_operation_that_is_not_run_is_a_no_with_its_places(effort: Effort | None) -> None:
    device = Capabilities(operations={"stablehlo.add": None})
    twice = ADD.replace("return %1", "%2 = stablehlo.tanh %0 : tensor<4xf32>\n  return %1")
    support = supports(twice, None, device, effort=effort, compile=refuse)
    reason = only(support)
    assert (support.verdict, reason.kind, reason.subject, reason.count) == (NO, ReasonKind.OP, "stablehlo.tanh", 2)
    assert reason.locations == (
        SourceLocation("jit(f)/tanh", "model.py", 7, 3),
        SourceLocation("", "-", 4, 8),
    )
    assert str(reason) == "the device does not run stablehlo.tanh [jit(f)/tanh at model.py:7:3, <program>:4:8]"


def test_more_places_than_are_shown_are_counted() -> None:
    lines = [f"%{i} = stablehlo.tanh %x : tensor<f32>" for i in range(20)]
    text = main("(%x: tensor<f32>) -> tensor<f32>", *lines, "return %0 : tensor<f32>")
    reason = only(supports(text, None, Capabilities(operations={})))
    assert reason.count == 20
    assert len(reason.locations) == 8
    assert "and 12 more" in str(reason)


def test_where_nothing_is_known_nothing_is_claimed() -> None:
    for effort in (Effort.OPS, Effort.TYPES, None):
        assert supports(ADD, None, Capabilities(), effort=effort).verdict is MAYBE


def test_an_element_type_that_an_operation_does_not_take() -> None:
    text = main(
        "(%x: tensor<4xi32>) -> tensor<4xi32>", "%0 = stablehlo.tanh %y : tensor<4xf32>", "return %x : tensor<4xi32>"
    )
    text = text.replace("%0 =", "%y = stablehlo.convert %x : (tensor<4xi32>) -> tensor<4xf32>\n%0 =")
    device = Capabilities(
        element_types=KNOWN.element_types,
        operations={"stablehlo.tanh": frozenset({F64}), "stablehlo.convert": frozenset({S32})},
    )
    support = supports(text, None, device, compile=refuse)
    reason = only(support)
    assert (support.verdict, support.effort) == (NO, Effort.TYPES)
    assert (reason.kind, reason.subject) == (ReasonKind.TYPE, "stablehlo.tanh on f32")
    assert reason.message == "the device does not run stablehlo.tanh on f32, but on f64"
    assert reason.locations == (SourceLocation("", "-", 3, 6),)
    assert supports(text, None, device, effort=Effort.OPS).verdict is MAYBE


@pytest.mark.parametrize(
    ("text", "kind", "subject"),
    [
        (main("(%x: tensor<f64>)", "return"), ReasonKind.TYPE, "f64"),
        (main("(%x: tensor<?xf32>)", "return"), ReasonKind.FEATURE, "dynamic shapes"),
        (
            main("(%x: tensor<f32>)", "%0 = stablehlo.custom_call @odd(%x) : (tensor<f32>) -> tensor<f32>", "return"),
            ReasonKind.OP,
            "custom_call @odd",
        ),
        (
            main("()", "%0 = stablehlo.constant dense<1.0> : tensor<2xf64>", "return"),
            ReasonKind.TYPE,
            "f64",
        ),
    ],
)
def test_what_types_and_attributes_rule_out(text: str, kind: ReasonKind, subject: str) -> None:
    support = supports(text, None, KNOWN, compile=refuse)
    assert support.verdict is NO
    assert (kind, subject) in [(reason.kind, reason.subject) for reason in support.reasons]


@pytest.mark.parametrize(
    "text",
    [
        main("(%x: tensor<?xf32, #stablehlo.bounds<4>>)", "return"),
        main('(%x: tensor<f32> {mhlo.memory_kind = "pinned_host"})', "return"),
        main("(%x: tensor<*xf32>)", "return"),
        main("(%x: tensor<2x!quant.uniform<i32:f32, 0.5>>)", "return"),
        main(
            "(%x: tensor<2x2xf32>)",
            "%0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : "
            "(tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>",
            "return",
        ),
        ADD.replace("@main", "@other"),
        # Attributes that some devices refuse.
        main("(%x: tensor<f32> {tf.aliasing_output = 3 : i32}) -> tensor<f32>", "return %x : tensor<f32>"),
        main('(%x: tensor<f32> {mhlo.sharding = "nonsense"})', "return"),
        # An operation that is not run, in a function that nothing refers to.
        ADD + "\nfunc.func private @idle(%x: tensor<f32>) { %0 = stablehlo.sine %x : tensor<f32>\nreturn }",
    ],
)
def test_what_leaves_it_open(text: str) -> None:
    assert supports(text, None, KNOWN, effort=Effort.TYPES).verdict is MAYBE


def test_functions_count_where_something_refers_to_them() -> None:
    text = """
    func.func private @inner(%x: tensor<f32>) -> tensor<f32> {
      %0 = stablehlo.sine %x : tensor<f32>
      return %0 : tensor<f32>
    }
    func.func private @outer(%x: tensor<f32>) -> tensor<f32> {
      %0 = func.call @inner(%x) : (tensor<f32>) -> tensor<f32>
      return %0 : tensor<f32>
    }
    func.func @main(%x: tensor<f32>) -> tensor<f32> {
      %0 = stablehlo.composite "a.b" %x {decomposition = @outer} : (tensor<f32>) -> tensor<f32>
      return %0 : tensor<f32>
    }"""
    assert supports(text, None, KNOWN, effort=Effort.TYPES).verdict is NO


CALLS = """
func.func private @{first}(%x: tensor<f32>) -> tensor<f32> {{
  %0 = func.call @{second}(%x) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}}
func.func private @{second}(%x: tensor<f32>) -> tensor<f32> {{
  %0 = {back} : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}}
func.func @main(%x: tensor<f32>) -> tensor<f32> {{
  %0 = func.call @{first}(%x) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}}"""


@pytest.mark.parametrize("device", [KNOWN, Capabilities()], ids=["known", "unknown"])
def test_recursion_is_a_no_for_every_device(device: Capabilities) -> None:
    text = CALLS.format(first="a", second="b", back="func.call @a(%x)")
    reason = only(supports(text, None, device, compile=refuse))
    assert (reason.verdict, reason.subject in "ab", len(reason.locations)) == (NO, True, 1)
    assert "calls itself" in reason.message
    itself = CALLS.format(first="a", second="b", back="func.call @b(%x)")
    assert only(supports(itself, None, device, compile=refuse)).subject == "b"


@pytest.mark.parametrize("device", [KNOWN, Capabilities()], ids=["known", "unknown"])
def test_a_call_of_what_has_no_body_is_a_no_for_every_device(device: Capabilities) -> None:
    gone = "func.func private @gone(tensor<f32>)\n"
    called = gone + main("(%x: tensor<f32>)", "func.call @gone(%x) : (tensor<f32>) -> ()", "return")
    assert only(supports(called, None, device, compile=refuse)).subject == "gone"
    declared = gone + main("(%x: tensor<f32>)", "return")
    assert supports(declared, None, device, effort=Effort.TYPES).verdict is not NO


def test_a_custom_call_with_a_functions_name_does_not_call_it() -> None:
    text = CALLS.format(first="a", second="known", back="stablehlo.custom_call @known(%x)")
    assert supports(text, None, KNOWN, compile=refuse).verdict is YES


def test_layouts_that_a_device_has_are_no_reason() -> None:
    text = main('(%x: tensor<2x2xf32> {mhlo.layout_mode = "{0,1}"})', "return")
    assert supports(text, None, KNOWN, compile=refuse).verdict is YES
    without = KNOWN.completed(Capabilities())
    without = Capabilities(**{**_fields(without), "features": {}})
    assert supports(text, None, without, effort=Effort.TYPES).verdict is MAYBE


def _fields(capabilities: Capabilities) -> dict[str, Any]:
    return {name: getattr(capabilities, name) for name in capabilities.__dataclass_fields__}


def test_a_compiler_may_do_away_with_what_it_could_not_run() -> None:
    compiler = Capabilities(element_types=frozenset({F32}), features={Feature.DYNAMIC_SHAPES: False})
    inside = main("(%x: tensor<f32>)", "%0 = stablehlo.convert %x : (tensor<f32>) -> tensor<f64>", "return")
    argument = main("(%x: tensor<f64>)", "return")
    assert supports(inside, None, compiler, effort=Effort.TYPES).verdict is MAYBE
    assert supports(argument, None, compiler, effort=Effort.TYPES).verdict is NO


@pytest.mark.parametrize(
    ("counts", "verdict"), [((1, 1), YES), ((2, 1), YES), ((1, 2), MAYBE), ((1, 3), NO), ((2, 2), NO)]
)
def test_replicas_and_partitions_are_held_to_the_number_of_devices(counts: tuple[int, int], verdict: Verdict) -> None:
    options = CompileOptions(num_replicas=counts[0], num_partitions=counts[1])
    assert supports(ADD, options, KNOWN, effort=Effort.TYPES).verdict is verdict


def test_formats() -> None:
    proto = to_hlo(read(ADD))
    support = supports(proto, None, KNOWN, effort=Effort.OPS)
    assert (support.verdict, only(support).kind) == (NO, ReasonKind.FORMAT)
    assert "'hlo'" in only(support).message
    own = Program(b"whatever", "mine")
    assert supports(own, None, KNOWN, effort=Effort.OPS).verdict is NO
    assert supports(own, None, Capabilities(program_formats=("mine",)), effort=Effort.TYPES).verdict is MAYBE


def test_an_artifact_that_is_too_new_says_both_versions() -> None:
    old = Capabilities(stablehlo_current_version=(1, 0, 0))
    text = main("(%x: tensor<f4E2M1FN>)", "return")  # since 1.8
    artifact = serialize(read(text), "1.9.0")
    support = supports(artifact, None, old, compile=refuse)
    reason = only(support)
    assert (support.verdict, reason.kind) == (NO, ReasonKind.VERSION)
    assert "1.9.0" in reason.message
    assert "1.0.0" in reason.message
    assert "f4E2M1FN" in reason.message
    # Another that can be written at the device's version is not too new.
    assert supports(serialize(read(ADD), "1.9.0"), None, old, effort=Effort.TYPES).verdict is MAYBE


def newer_artifact(old_name: str = "add_v1", new_name: str = "add_v1") -> tuple[Program, Capabilities]:
    """An artifact that says it is seven versions newer than what is read here, and a device that reads that."""
    newest = current_version()
    artifact = serialize(read(ADD), newest)
    beyond = f"StableHLO_v{newest.major}.{newest.minor + 7}.0"
    code = artifact.code.replace(f"StableHLO_v{newest}".encode(), beyond.encode())
    code = code.replace(old_name.encode(), new_name.encode())
    assert len(code) == len(artifact.code)
    program = Program(code)
    assert str(artifact_version(program)) in beyond
    return program, Capabilities(stablehlo_current_version=(newest.major, newest.minor, newest.patch))


def test_an_artifact_that_nobody_here_reads_says_both_versions() -> None:
    program, device = newer_artifact("add_v1", "new_v1")
    support = supports(program, None, device, compile=refuse)
    assert (support.verdict, support.effort, only(support).kind) == (NO, Effort.OPS, ReasonKind.VERSION)
    assert str(current_version()) in only(support).message
    assert str(artifact_version(program)) in only(support).message


def test_a_newer_artifact_with_nothing_new_in_it_is_left_to_the_compiler() -> None:
    program, device = newer_artifact()
    for effort in (Effort.OPS, Effort.TYPES):
        assert supports(program, None, device, effort=effort).verdict is MAYBE
    assert supports(program, None, device, compile=lambda: None).verdict is YES


def test_what_cannot_be_parsed_here_is_left_to_the_device() -> None:
    text = "func.func @main() { mine.op }"
    seen: list[str] = []
    support = supports(text, None, Capabilities(), compile=lambda: seen.append("compiled"))
    assert (support.verdict, seen) == (YES, ["compiled"])
    assert supports(text, None, Capabilities(), effort=Effort.TYPES).verdict is MAYBE


def test_what_is_no_program_is_an_error() -> None:
    with pytest.raises(InvalidArgumentError, match="hello"):
        supports(b"\xffhello", None, KNOWN)


# Compiling.


def fail(error: PjrtError) -> Callable[[], None]:
    def compile() -> None:
        raise error

    return compile


def test_the_compiler_is_asked_only_where_looking_does_not_decide() -> None:
    compiled: list[int] = []
    support = supports(ADD, None, Capabilities(), compile=lambda: compiled.append(1))
    assert (support.verdict, support.effort, compiled) == (YES, Effort.COMPILE, [1])
    supports(ADD, None, Capabilities(), effort=Effort.TYPES, compile=refuse)
    assert supports(ADD, None, KNOWN, effort="compile", compile=fail(InvalidArgumentError("no"))).verdict is NO


def test_a_compilers_no_keeps_the_doubts_that_point_somewhere() -> None:
    text = main("(%x: tensor<f32>)", "%0 = stablehlo.custom_call @odd(%x) : (tensor<f32>) -> tensor<f32>", "return")
    support = supports(text, None, Capabilities(), compile=fail(InvalidArgumentError("no odd")))
    assert support.verdict is NO
    assert [reason.subject for reason in support.reasons] == ["INVALID_ARGUMENT", "custom_call @odd"]
    assert support.reasons[1].locations == (SourceLocation("", "-", 2, 6),)


def test_what_a_compiler_says_of_itself_is_no_verdict_on_the_program() -> None:
    support = supports(ADD, None, Capabilities(), compile=fail(UnavailableError("come back later")))
    assert (support.verdict, support.effort) == (MAYBE, Effort.COMPILE)
    assert "come back later" in support.reasons[0].message


@pytest.mark.parametrize(
    ("message", "subject", "places"),
    [
        ("-:1:60: error: 'arith.addf' op unsupported op", "arith.addf", ["<program>:1:60"]),
        ("stablehlo.sine (t) -> (t): not here [jit(f)/sin at model.py:7:3]", "stablehlo.sine", ["model.py:7:3"]),
        ('loc("a b.py":7:3): failed to legalize operation', "UNIMPLEMENTED", ["a b.py:7:3"]),
        ("cannot read the MLIR text: line 1, column 60: x", "UNIMPLEMENTED", ["<program>:1:60"]),
        ("no emitter. Suspected Python Code Location: -:3", "UNIMPLEMENTED", ["<program>:3"]),
        ("no emitter\n\nSuspected Python Code Location:\n  step.py:13", "UNIMPLEMENTED", ["step.py:13"]),
        ("RET_CHECK failure (external/xla/compiler.cc:546) at compiler.cc:1:2", "UNIMPLEMENTED", []),
    ],
)
def test_operations_and_places_are_found_in_what_compilers_say(message: str, subject: str, places: list[str]) -> None:
    reason = refusal(PjrtError.of(StatusCode.UNIMPLEMENTED, message))
    assert (reason.verdict, reason.subject) == (NO, subject)
    assert list(map(str, reason.locations)) == places
    assert [str(place) for place in places_in(message)] == places


# Values.


def test_support_goes_through_json() -> None:
    support = supports(ADD, None, Capabilities(operations={}))
    assert Support.from_dict(support.as_dict()) == support


def test_an_effort_is_one_of_three() -> None:
    with pytest.raises(InvalidArgumentError, match="much"):
        decide("much", lambda effort: (), None)


kinds = st.frozensets(st.sampled_from(sorted(T)))
names = st.text("abc._", min_size=1, max_size=6)
many = st.builds(
    Capabilities,
    num_devices=st.none() | st.integers(1, 9),
    element_types=st.none() | kinds,
    memory_kinds=st.none() | st.lists(names, max_size=3).map(tuple),
    program_formats=st.none() | st.lists(names, max_size=3).map(tuple),
    stablehlo_current_version=st.none() | st.tuples(*[st.integers(0, 99)] * 3),
    operations=st.none() | st.dictionaries(names, st.none() | kinds, max_size=5),
    custom_calls=st.none() | st.frozensets(names, max_size=4),
    features=st.dictionaries(st.sampled_from(Feature), st.booleans()),
    variants=st.dictionaries(names, st.booleans() | st.integers(-9, 9) | names, max_size=4),
)


@given(many)
def test_capabilities_go_through_an_attribute(capabilities: Capabilities) -> None:
    assert Capabilities.from_attributes({"pjrt.capabilities": capabilities.to_json()}) == capabilities


@given(many, many)
def test_what_is_known_stays_when_it_is_completed(first: Capabilities, second: Capabilities) -> None:
    both = first.completed(second)
    for name in Capabilities.__dataclass_fields__:
        mine, theirs, found = (getattr(each, name) for each in (first, second, both))
        if name in ("features", "variants"):
            assert dict(found) == {**theirs, **mine}
        else:
            assert found == (theirs if mine is None else mine)


def test_arguments_of_unknown_sizes_are_refused_before_a_compiler_crashes_over_them() -> None:
    without = Capabilities(features={Feature.DYNAMIC_SHAPES: False})
    dynamic = read(main("(%x: tensor<?x2xf32>, %y: tensor<2xf32>)", "return"))
    bounded = read(main("(%x: tensor<?xf32, #stablehlo.bounds<4>>)", "return"))
    with pytest.raises(InvalidArgumentError, match=r"does not compile programs with dynamic shapes, .*\(0 \[\?, 2\]\)"):
        check_shapes(dynamic, without)
    check_shapes(bounded, without)
    check_shapes(read(main("(%x: tensor<4xf32>)", "return")), without)
    check_shapes(dynamic, Capabilities())
    check_shapes(dynamic, Capabilities(features={Feature.DYNAMIC_SHAPES: True}))


@pytest.mark.parametrize(("extension", "has"), [("TpuTopology", False), ("Triton", False), ("FFI", None)])
def test_plugins_made_of_xla_have_no_unknown_sizes(extension: str, has: bool | None) -> None:
    api = SimpleNamespace(functions=(), extensions={extension: 1})
    assert plugin_capabilities(api, {}).has(Feature.DYNAMIC_SHAPES) is has
    of_export = {ATTRIBUTE: Capabilities(features={Feature.DYNAMIC_SHAPES: True}).to_json()}
    assert plugin_capabilities(api, of_export).has(Feature.DYNAMIC_SHAPES) is True
