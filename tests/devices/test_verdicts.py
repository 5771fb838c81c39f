"""Verdicts held against the truth, on devices in the box: a yes compiles and runs, a no does not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt.api.capability import Capabilities, Effort, Feature, ReasonKind, Verdict
from pjrt.api.element_type import ElementType
from pjrt.api.errors import PjrtError
from pjrt.stablehlo import parse, read, signature

T = ElementType
TYPES = [t for t in T if t not in (T.INVALID, T.TOKEN)]
SIX_BITS = (T.F6E2M3FN, T.F6E3M2FN)
"""Types with which XLA's CPU compiler ends the process, rather than refuse."""

UNARY = (
    *("abs", "cbrt", "ceil", "cosine", "count_leading_zeros", "exponential", "exponential_minus_one", "floor"),
    *("is_finite", "log", "log_plus_one", "logistic", "negate", "not", "popcnt", "real", "imag", "round_nearest_afz"),
    *("round_nearest_even", "rsqrt", "sign", "sine", "sqrt", "tan", "tanh", "optimization_barrier"),
)
BINARY = (
    *("add", "subtract", "multiply", "divide", "remainder", "power", "atan2", "maximum", "minimum"),
    *("and", "or", "xor", "shift_left", "shift_right_arithmetic", "shift_right_logical"),
)
CHLO = ("acos", "asin", "atan", "conj", "cosh", "digamma", "erf", "erf_inv", "lgamma", "sinh", "square", "tan")


def elementwise(t: ElementType) -> Iterator[tuple[str, str]]:
    """Programs of one operation on a type; some are none, for StableHLO does not have them."""
    x = f"tensor<4x{t.mlir}>"
    real = {T.C64: "tensor<4xf32>", T.C128: "tensor<4xf64>"}.get(t, x)
    for name in UNARY:
        result = "tensor<4xi1>" if name == "is_finite" else real if name in ("abs", "real", "imag") else x
        line = f'%0 = "stablehlo.{name}"(%x) : ({x}) -> {result}'
        yield name, f"func.func @main(%x: {x}) -> {result} {{ {line}\n return %0 : {result} }}"
    for name in BINARY:
        line = f'%0 = "stablehlo.{name}"(%x, %y) : ({x}, {x}) -> {x}'
        yield name, f"func.func @main(%x: {x}, %y: {x}) -> {x} {{ {line}\n return %0 : {x} }}"
    for name in CHLO:
        yield name, f'func.func @main(%x: {x}) -> {x} {{ %0 = "chlo.{name}"(%x) : ({x}) -> {x}\n return %0 : {x} }}'


MOVING = {
    "reshape": ("%x: <4xT>", "<2x2xT>", "reshape %x : (<4xT>) -> <2x2xT>"),
    "transpose": ("%x: <2x3xT>", "<3x2xT>", "transpose %x, dims = [1, 0] : (<2x3xT>) -> <3x2xT>"),
    "broadcast": ("%x: <T>", "<4xT>", "broadcast_in_dim %x, dims = [] : (<T>) -> <4xT>"),
    "slice": ("%x: <4xT>", "<2xT>", "slice %x [0:4:2] : (<4xT>) -> <2xT>"),
    "concatenate": ("%x: <4xT>", "<8xT>", "concatenate %x, %x, dim = 0 : (<4xT>, <4xT>) -> <8xT>"),
    "reverse": ("%x: <4xT>", "<4xT>", "reverse %x, dims = [0] : <4xT>"),
    "pad": ("%x: <4xT>, %y: <T>", "<6xT>", "pad %x, %y, low = [1], high = [1], interior = [0] : (<4xT>, <T>) -> <6xT>"),
    "select": ("%p: <4xi1>, %x: <4xT>", "<4xT>", "select %p, %x, %x : <4xi1>, <4xT>"),
    "dynamic_slice": ("%x: <4xT>, %i: <i32>", "<2xT>", "dynamic_slice %x, %i, sizes = [2] : (<4xT>, <i32>) -> <2xT>"),
    "convert": ("%x: <4xT>", "<4xf32>", "convert %x : (<4xT>) -> <4xf32>"),
    "reduce_precision": ("%x: <4xT>", "<4xT>", "reduce_precision %x, format = e4m2 : <4xT>"),
}
"""Arguments, result and operation of programs that move values of a type T."""


def moving(t: ElementType) -> Iterator[tuple[str, str]]:
    """Programs that move values of a type."""
    for name, (arguments, result, line) in MOVING.items():
        text = f"func.func @main({arguments}) -> {result} {{ %0 = stablehlo.{line}\n return %0 : {result} }}"
        yield name, re.sub(r"(?<=[ (])<", "tensor<", text).replace("T>", f"{t.mlir}>")
    x = f"tensor<4x{t.mlir}>"
    yield "identity", f"func.func @main(%x: {x}) -> {x} {{ return %x : {x} }}"


def programs(every: int) -> list[tuple[str, str]]:
    """Every so many of all that StableHLO has."""
    found = [(f"{name} {t.mlir}", text) for t in TYPES for name, text in (*elementwise(t), *moving(t))]
    return [(name, text) for name, text in found[::every] if is_program(text)]


def is_program(text: str) -> bool:
    try:
        parse(read(text))
    except PjrtError:
        return False
    return True


@cache
def client(name: str) -> pjrt.Client:
    return pjrt.client(name)


def truth(device: pjrt.Client, text: str) -> bool:
    """Whether a program compiles and runs, on zeros."""
    try:
        executable = device.compile(text)
        arguments = [np.zeros(a.shape, np.int8).astype(a.element_type.dtype) for a in signature(read(text)).arguments]
        for result in executable(*arguments):
            np.asarray(result)
    except PjrtError:
        return False
    return True


def held_against_the_truth(device: pjrt.Client, name: str, text: str) -> Verdict:
    is_true = truth(device, text)
    found = Verdict.MAYBE
    for effort in (Effort.OPS, Effort.TYPES, None):
        found = device.supports(text, effort=effort).verdict
        wrong = Verdict.NO if is_true else Verdict.YES
        assert found is not wrong, f"{name} with effort {effort}: {found}"
    return found


@pytest.mark.full
def test_verdicts_of_the_reference_device() -> None:
    counts = dict.fromkeys(Verdict, 0)
    for name, text in programs(every=5):
        counts[held_against_the_truth(client("reference"), name, text)] += 1
    assert counts[Verdict.MAYBE] == 0
    assert counts[Verdict.YES] > 200


@pytest.mark.full
def test_verdicts_of_the_cpu_device() -> None:
    counts = dict.fromkeys(Verdict, 0)
    for name, text in programs(every=23):
        if not any(t.mlir in text for t in SIX_BITS):
            counts[held_against_the_truth(client("cpu"), name, text)] += 1
    assert counts[Verdict.MAYBE] == 0
    assert counts[Verdict.YES] > 40


@pytest.mark.full
@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_element_types(name: str) -> None:
    device = client(name)
    types = device.capabilities.element_types
    assert types is not None
    for t in TYPES:
        text = f"func.func @main(%x: tensor<4x{t.mlir}>) -> tensor<4x{t.mlir}> {{ return %x : tensor<4x{t.mlir}> }}"
        assert (t in types) == truth(device, text), t


HEAD = "func.func @main"
SPECIAL = {
    "dynamic": f"{HEAD}(%x: tensor<?xf32>) -> tensor<?xf32> {{ return %x : tensor<?xf32> }}",
    "quantized": f"""{HEAD}(%x: tensor<2xf32>) -> tensor<2xf32> {{
        %0 = stablehlo.uniform_quantize %x : (tensor<2xf32>) -> tensor<2x!quant.uniform<i8:f32, 0.5>>
        %1 = stablehlo.uniform_dequantize %0 : (tensor<2x!quant.uniform<i8:f32, 0.5>>) -> tensor<2xf32>
        return %1 : tensor<2xf32> }}""",
    "bounded": f"""{HEAD}(%x: tensor<4xf32>, %n: tensor<i32>) -> tensor<f32> {{
        %0 = stablehlo.set_dimension_size %x, %n, dim = 0
            : (tensor<4xf32>, tensor<i32>) -> tensor<?xf32, #stablehlo.bounds<4>>
        %z = stablehlo.constant dense<0.0> : tensor<f32>
        %1 = stablehlo.reduce(%0 init: %z) applies stablehlo.add across dimensions = [0]
            : (tensor<?xf32, #stablehlo.bounds<4>>, tensor<f32>) -> tensor<f32>
        return %1 : tensor<f32> }}""",
    "sends": f"""{HEAD}(%x: tensor<2xf32>) -> tensor<2xf32> {{
        %t = stablehlo.create_token : !stablehlo.token
        %0 = "stablehlo.send"(%x, %t) {{channel_handle = #stablehlo.channel_handle<handle = 1, type = 2>,
            is_host_transfer = true}} : (tensor<2xf32>, !stablehlo.token) -> !stablehlo.token
        return %x : tensor<2xf32> }}""",
    "collective": f"""{HEAD}(%x: tensor<2xf32>) -> tensor<2xf32> {{
        %0 = "stablehlo.all_gather"(%x) {{all_gather_dim = 0 : i64, replica_groups = dense<0> : tensor<1x1xi64>}}
            : (tensor<2xf32>) -> tensor<2xf32>
        return %0 : tensor<2xf32> }}""",
    "unknown call": f"""{HEAD}(%x: tensor<2xf32>) -> tensor<2xf32> {{
        %0 = stablehlo.custom_call @nobody(%x) : (tensor<2xf32>) -> tensor<2xf32>
        return %0 : tensor<2xf32> }}""",
    "annotation": f"""{HEAD}(%x: tensor<2xf32>) -> tensor<2xf32> {{
        %0 = stablehlo.custom_call @Sharding(%x) {{mhlo.sharding = "{{replicated}}"}} : (tensor<2xf32>) -> tensor<2xf32>
        return %0 : tensor<2xf32> }}""",
    "memory kind": f"""{HEAD}(%x: tensor<2xf32> {{mhlo.memory_kind = "attic"}}) -> tensor<2xf32> {{
        return %x : tensor<2xf32> }}""",
    "unused": f"""func.func private @idle(%x: tensor<2xf32>) -> tensor<2xf32> {{
        %0 = stablehlo.custom_call @nobody(%x) : (tensor<2xf32>) -> tensor<2xf32>
        return %0 : tensor<2xf32> }}
        {HEAD}(%x: tensor<2xf32>) -> tensor<2xf32> {{ return %x : tensor<2xf32> }}""",
    "newer op": f"""{HEAD}(%x: tensor<2xf32>) -> tensor<2xf32> {{
        %0 = chlo.erf_inv %x : tensor<2xf32> -> tensor<2xf32>
        return %0 : tensor<2xf32> }}""",
    "alias of nothing": f"""{HEAD}(%x: tensor<2xf32> {{tf.aliasing_output = 9 : i32}}) -> tensor<2xf32> {{
        return %x : tensor<2xf32> }}""",
    "two aliases of one": f"""{HEAD}(%x: tensor<2xf32> {{tf.aliasing_output = 0 : i32}},
        %y: tensor<2xf32> {{tf.aliasing_output = 0 : i32}}) -> tensor<2xf32> {{ return %x : tensor<2xf32> }}""",
    "alias": f"""{HEAD}(%x: tensor<2xf32> {{tf.aliasing_output = 0 : i32}}) -> tensor<2xf32> {{
        return %x : tensor<2xf32> }}""",
    "sharding": f"""{HEAD}(%x: tensor<2xf32> {{mhlo.sharding = "nonsense"}}) -> tensor<2xf32> {{
        return %x : tensor<2xf32> }}""",
    "no main": "func.func @other(%x: tensor<2xf32>) -> tensor<2xf32> { return %x : tensor<2xf32> }",
}


def compiles(device: pjrt.Client, text: str) -> bool:
    try:
        device.compile(text).delete()
    except PjrtError:
        return False
    return True


@pytest.mark.full
@pytest.mark.parametrize("name", ["cpu", "reference"])
@pytest.mark.parametrize("program", SPECIAL)
def test_what_programs_may_hold(name: str, program: str) -> None:
    device, text = client(name), SPECIAL[program]
    is_true = compiles(device, text)
    for effort in (Effort.OPS, Effort.TYPES):
        assert device.supports(text, effort=effort).verdict is not (Verdict.NO if is_true else Verdict.YES)
    assert device.supports(text).verdict is (Verdict.YES if is_true else Verdict.NO)


@pytest.mark.parametrize("name", ["cpu", "reference"])
@pytest.mark.parametrize("called", ["main", "gone"])
def test_calls_that_lead_nowhere_are_found_before_they_meet_a_compiler(name: str, called: str) -> None:
    """XLA's survives neither recursion nor the call of what has no body."""
    text = f"""func.func private @gone(%x: tensor<f32>) -> tensor<f32>
        {HEAD}(%x: tensor<f32>) -> tensor<f32> {{
        %0 = func.call @{called}(%x) : (tensor<f32>) -> tensor<f32>
        return %0 : tensor<f32> }}"""
    support = client(name).supports(text)
    assert (support.verdict, support.effort) == (Verdict.NO, Effort.TYPES)


@pytest.mark.parametrize("name", ["cpu", "reference"])
@pytest.mark.parametrize(
    ("feature", "program"),
    [
        (Feature.BOUNDED_DYNAMIC_SHAPES, "bounded"),
        (Feature.COLLECTIVES, "collective"),
        (Feature.DYNAMIC_SHAPES, "dynamic"),
        (Feature.QUANTIZED_TYPES, "quantized"),
        (Feature.SEND_RECV, "sends"),
    ],
)
def test_a_feature_of_programs_is_as_it_is_described(name: str, feature: Feature, program: str) -> None:
    assert client(name).capabilities.has(feature) is compiles(client(name), SPECIAL[program])


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_partitioning_is_as_it_is_described(name: str) -> None:
    text = SPECIAL["annotation"].replace("{replicated}", "{devices=[2]0,1}")
    with pjrt.client(name, num_devices=2) as device:
        assert device.capabilities.has(Feature.PARTITIONING)
        executable = device.compile(text, pjrt.CompileOptions(num_partitions=2))
        assert executable.num_partitions == 2


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_counts(name: str) -> None:
    text = SPECIAL["collective"]
    with pjrt.client(name, num_devices=2) as device:
        fits, not_so = pjrt.CompileOptions(num_replicas=2), pjrt.CompileOptions(num_replicas=3)
        text = text.replace("dense<0> : tensor<1x1xi64>", "dense<[[0], [1]]> : tensor<2x1xi64>")
        assert device.supports(text, fits).verdict is Verdict.YES
        assert device.supports(text, not_so).reasons[0].kind is ReasonKind.ATTRIBUTE
        assert device.topology.supports(text, not_so).verdict is Verdict.NO


def test_functions_of_the_host_count_once_they_are_there() -> None:
    text = SPECIAL["unknown call"]
    with pjrt.client("reference") as device:
        assert device.supports(text, effort=Effort.TYPES).verdict is Verdict.NO
        device.register_ffi_handler("nobody", lambda x, out: np.copyto(out, x))
        assert device.supports(text).verdict is Verdict.YES
        assert device.topology.supports(text).verdict is Verdict.YES


def test_a_device_of_ones_own() -> None:
    def compile(program: Any, options: Any) -> Any:
        return lambda x: x

    half = frozenset({T.F16})
    capabilities = Capabilities(element_types=half, operations={"stablehlo.add": half, "stablehlo.tanh": None})
    program = "func.func @main(%x: tensor<2xTYPE>) -> tensor<2xTYPE> { %0 = stablehlo.OP\n return %0 : tensor<2xTYPE> }"

    def verdict(operation: str, type_: str) -> tuple[str, str]:
        text = program.replace("OP", f"{operation} : tensor<2xTYPE>").replace("TYPE", type_)
        found = device.supports(text)
        return found.verdict.value, found.effort.value

    with pjrt.StableHloClient("toy", compile=compile, capabilities=capabilities) as device:
        assert verdict("add %x, %x", "f16") == ("yes", "types")
        assert verdict("add %x, %x", "f32") == ("no", "types")
        assert verdict("tanh %x", "f16") == ("yes", "compile")
        assert verdict("sine %x", "f16") == ("no", "ops")
    with pjrt.StableHloClient("toy", compile=compile, operations=["stablehlo.add"]) as device:
        assert device.capabilities.operations == {"stablehlo.add": None}
        assert verdict("add %x, %x", "f16") == ("yes", "compile")
        assert verdict("sine %x", "f16") == ("no", "ops")


def test_a_closed_client_does_not_answer() -> None:
    for name in ("cpu", "reference"):
        device = pjrt.client(name)
        device.close()
        with pytest.raises(pjrt.FailedPreconditionError, match="closed"):
            device.supports(SPECIAL["collective"])
