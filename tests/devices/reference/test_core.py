"""The core: reading types, attributes, constants and locations; steps, slots, folding and regions."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pjrt
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.devices.reference import Context, Evaluator, op, rules
from pjrt.devices.reference.compiler import memory_stats
from pjrt.devices.reference.core import mlir
from pjrt.devices.reference.core.block import run_fast
from pjrt.devices.reference.core.mlir import describe
from pjrt.devices.reference.core.op_view import Region
from pjrt.stablehlo.ir.types import TensorType

T = ElementType


def constant(run: Any, body: str, type_: str) -> Any:
    text = f"func.func @main() -> {type_} {{ %0 = stablehlo.constant {body} : {type_} return %0 : {type_} }}"
    return run(text)[0]


@pytest.mark.parametrize(
    ("body", "type_", "expected"),
    [
        ("dense<[1, -2, 7]>", "tensor<3xi4>", np.array([1, -2, 7], ml_dtypes.int4)),
        ("dense<[1, 3]>", "tensor<2xui2>", np.array([1, 3], ml_dtypes.uint2)),
        ("dense<[1, -2]>", "tensor<2xi2>", np.array([1, -2], ml_dtypes.int2)),
        ("dense<[true, false]>", "tensor<2xi1>", np.array([True, False])),
        ("dense<1.5>", "tensor<2x2xbf16>", np.full((2, 2), 1.5, ml_dtypes.bfloat16)),
        ("dense<[1.5, 0x7F80]>", "tensor<2xbf16>", np.array([1.5, np.inf], ml_dtypes.bfloat16)),
        ("dense<[[0.5], [-6.0]]>", "tensor<2x1xf4E2M1FN>", np.array([[0.5], [-6]], ml_dtypes.float4_e2m1fn)),
        ("dense<[1.0, 0x7F]>", "tensor<2xf8E4M3FN>", np.array([1, np.nan], ml_dtypes.float8_e4m3fn)),
        ("dense<(1.0, -0.5)>", "tensor<complex<f64>>", np.array(1 - 0.5j)),
        ("dense<[(0.0, 1.0), (2.0, 0.0)]>", "tensor<2xcomplex<f32>>", np.array([1j, 2], np.complex64)),
        ("dense<(1.0, 2.0)>", "tensor<3xcomplex<f32>>", np.full(3, 1 + 2j, np.complex64)),
        ("dense<[18446744073709551615, 0]>", "tensor<2xui64>", np.array([2**64 - 1, 0], np.uint64)),
        ("dense<>", "tensor<0x3xf32>", np.zeros((0, 3), np.float32)),
        ("dense<>", "tensor<0xbf16>", np.zeros(0, ml_dtypes.bfloat16)),
    ],
)
def test_constants(run: Any, body: str, type_: str, expected: Any) -> None:
    found = constant(run, body, type_)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.int4, ml_dtypes.float8_e5m2, np.complex64, np.float32])
def test_constants_of_more_than_a_hundred_elements(run: Any, dtype: Any) -> None:
    """These are spelled as raw bytes."""
    values = (np.arange(150) % 7).astype(dtype).reshape(3, 50)
    found = constant(run, f'dense<"0x{values.tobytes().hex()}">', f"tensor<3x50x{T.of(dtype).mlir}>")
    assert found.tobytes() == values.tobytes()


@pytest.mark.parametrize("spelled", ["tensor<*xf32>", "tuple<tensor<2x!quant.uniform<i8:f32:{0:1}, {0.5, 0.25}>>>"])
def test_arguments_that_nothing_can_be_computed_with_are_refused_with_their_place(spelled: str) -> None:
    text = f'func.func @main(%x: {spelled} loc("model.py":3:4)) {{ return }}'
    with pytest.raises(UnimplementedError, match=r"main: expected ranked tensors.*as arguments, found .*model.py:3:4"):
        Evaluator(mlir.parse(text))


def test_results_that_nothing_can_be_computed_with_are_refused_with_their_place() -> None:
    text = """func.func @main(%x: tensor<2xf32>) {
      %0 = stablehlo.custom_call @Sharding(%x) : (tensor<2xf32>) -> tensor<*xf32> loc("model.py":7:1)
      return }"""
    with pytest.raises(UnimplementedError, match=r"stablehlo.custom_call .*expected ranked tensors.*model.py:7:1"):
        Evaluator(mlir.parse(text))


def test_a_constant_that_cannot_be_read_is_refused_with_its_place() -> None:
    text = """func.func @main() -> tensor<2xbf16> {
      %0 = stablehlo.constant sparse<[[1]], [2.0]> : tensor<2xbf16> loc("model.py":7:1)
      return %0 : tensor<2xbf16> }"""
    with pytest.raises(UnimplementedError, match=r"stablehlo.constant .*sparse<.*model.py:7:1"):
        Evaluator(mlir.parse(text))


@pytest.mark.parametrize(("spelled", "dtype"), [("si16", np.int16), ("index", np.int64)])
def test_integers_that_say_their_sign_or_no_width(run: Any, spelled: str, dtype: Any) -> None:
    type_ = f"tensor<2x{spelled}>"
    (found,) = run(f"func.func @main(%x: {type_}) -> {type_} {{ return %x : {type_} }}", np.array([1, -2], dtype))
    assert found.dtype == dtype
    assert found.tolist() == [1, -2]


def test_types_print_as_mlir_does() -> None:
    assert str(TensorType((2, None), T.BF16)) == "tensor<2x?xbf16>"
    assert str(TensorType((), T.C64)) == "tensor<complex<f32>>"
    with pytest.raises(UnimplementedError, match="static shape"):
        _ = TensorType((None,), T.F32).sizes


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ('"a.py":3:4', "a.py:3:4"),
        ('"add"("a.py":3:4)', "add at a.py:3:4"),
        ('callsite("a.py":3:4 at "b.py":5:6)', "a.py:3:4, called from b.py:5:6"),
        ('fused["a.py":3:4, "b.py":5:6]', "a.py:3:4, b.py:5:6"),
        ("unknown", "unknown location"),
    ],
)
def test_locations(location: str, expected: str) -> None:
    module = mlir.parse(f"func.func @main() {{ return loc({location}) }}")
    found = module.body.operations[0].regions[0].blocks[0].operations[0].location
    # Older bindings do not tell a stack of callers from places that were fused.
    assert describe(found) in (expected, expected.replace(", ", ", called from "))


def test_an_unknown_op_is_refused_with_types_and_place() -> None:
    text = """func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
      %0 = "sdy.no_such_op"(%x) : (tensor<2xf32>) -> tensor<2xf32> loc("model.py":7:1)
      return %0 : tensor<2xf32> }"""
    module = mlir.parse("module {}")
    module.context.allow_unregistered_dialects = True
    with module.context:
        from jaxlib.mlir import ir

        module = ir.Module.parse(text.replace("sdy.no_such_op", "acme.no_such_op"))
    with pytest.raises(UnimplementedError, match=r"acme.no_such_op \(tensor<2xf32>\).*model.py:7:1"):
        Evaluator(module)


ADD = """func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %y : tensor<4xf32>
  return %0 : tensor<4xf32> }"""


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([np.zeros(4, np.float32)], "expected 2 arguments, found 1"),
        ([np.zeros(4, np.float32), np.zeros(4)], r"expected tensor<4xf32> as argument 1, found an array of float64"),
        ([np.zeros(4, np.float32), np.zeros(5, np.float32)], r"as argument 1, found an array of shape \(5,\)"),
        ([np.zeros((4, 1), np.float32), np.zeros(4, np.float32)], r"as argument 0, found an array of shape \(4, 1\)"),
    ],
)
def test_arguments_that_do_not_fit(args: list[Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Evaluator(mlir.parse(ADD)).run(args)


def test_a_missing_entry_function() -> None:
    with pytest.raises(InvalidArgumentError, match="expected a function start in the module, found main"):
        Evaluator(mlir.parse(ADD), entry="start")


def test_results_share_no_memory() -> None:
    text = """func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<2xf32>, tensor<2xf32>) {
      %c = stablehlo.constant dense<[1.0, 2.0]> : tensor<2xf32>
      return %x, %x, %c, %c : tensor<4xf32>, tensor<4xf32>, tensor<2xf32>, tensor<2xf32> }"""
    evaluator = Evaluator(mlir.parse(text))
    x = np.arange(4, dtype=np.float32)
    results = evaluator(x)
    for result in results:
        result += 10
    assert [r[1] for r in results] == [11, 11, 12, 12]
    assert x[1] == 1
    assert evaluator(x)[2].tolist() == [1, 2]


def test_values_are_freed_after_their_last_use() -> None:
    """Of a chain of ten large values no more than two are alive at a time."""
    alive: list[Any] = []
    largest = 0

    @op("test.watched", foldable=False)
    def watched(view: Any) -> Any:
        def kernel(x: Any) -> Any:
            nonlocal largest
            out = x + 1
            alive.append(weakref.ref(out))
            largest = max(largest, sum(ref() is not None for ref in alive))
            return out

        return kernel

    body = "".join(f'%{i + 1} = "test.watched"(%{i}) : (tensor<9xf32>) -> tensor<9xf32>\n' for i in range(10))
    text = f"""func.func @main(%x: tensor<9xf32>) -> tensor<9xf32> {{
      %0 = stablehlo.negate %x : tensor<9xf32>
      {body} return %10 : tensor<9xf32> }}"""
    try:
        module = mlir.parse("module {}")
        module.context.allow_unregistered_dialects = True
        with module.context:
            from jaxlib.mlir import ir

            evaluator = Evaluator(ir.Module.parse(text))
        gc.disable()
        (found,) = evaluator(np.zeros(9, np.float32))
    finally:
        gc.enable()
        from pjrt.devices.reference.core import registry

        del registry._RULES["test.watched"]
    assert found[0] == 10
    assert largest == 2


def test_what_depends_on_constants_is_computed_once() -> None:
    text = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      %c = stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>
      %0 = stablehlo.exponential %c : tensor<4xf32>
      %1 = stablehlo.add %x, %0 : tensor<4xf32>
      return %1 : tensor<4xf32> }"""
    folded, plain = Evaluator(mlir.parse(text)), Evaluator(mlir.parse(text), fold=False)
    assert [step.name for step in folded.region.block.steps] == ["stablehlo.add"]
    assert [step.name for step in plain.region.block.steps] == ["stablehlo.exponential", "stablehlo.add"]
    x = np.ones(4, np.float32)
    assert np.array_equal(folded(x)[0], plain(x)[0])


def reducer(body: str, types: str = "f32", count: int = 2) -> Region:
    """The region of a reduction with this body."""
    params = ", ".join(f"%{name}: tensor<{types}>" for name in "abcd"[:count])
    text = f"""func.func @main({params}) -> tensor<{types}> {{ {body} return %r : tensor<{types}> }}"""
    return Evaluator(mlir.parse(text)).region


@pytest.mark.parametrize(
    ("body", "pattern"),
    [
        ("%r = stablehlo.add %a, %b : tensor<f32>", "add"),
        ("%r = stablehlo.add %b, %a : tensor<f32>", "add"),
        ("%r = stablehlo.multiply %a, %b : tensor<f32>", "multiply"),
        ("%r = stablehlo.maximum %a, %b : tensor<f32>", "maximum"),
        ("%r = stablehlo.minimum %a, %b : tensor<f32>", "minimum"),
        ("%r = stablehlo.add %a, %a : tensor<f32>", None),
        ("%r = stablehlo.subtract %a, %b : tensor<f32>", None),
        ("%c = stablehlo.add %a, %b : tensor<f32> %r = stablehlo.add %c, %b : tensor<f32>", None),
    ],
)
def test_common_bodies_are_recognised(body: str, pattern: str | None) -> None:
    assert reducer(body).pattern == pattern


def test_bodies_that_return_an_argument_are_recognised() -> None:
    text = "func.func @main(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {{ return %{} : tensor<f32> }}"
    assert Evaluator(mlir.parse(text.format("a"))).region.pattern == "first"
    assert Evaluator(mlir.parse(text.format("b"))).region.pattern == "second"


ELEMENTWISE = """
  %k = stablehlo.constant dense<2.0> : tensor<f32>
  %s = stablehlo.multiply %a, %k : tensor<f32>
  %p = stablehlo.compare LT, %s, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
  %q = stablehlo.reshape %s : (tensor<f32>) -> tensor<f32>
  %r = stablehlo.select %p, %q, %b : tensor<i1>, tensor<f32>"""

BRANCHING = """
  %p = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
  %r = "stablehlo.if"(%p) ({ stablehlo.return %a : tensor<f32> }, {
    %n = stablehlo.negate %b : tensor<f32>
    stablehlo.return %n : tensor<f32> }) : (tensor<i1>) -> tensor<f32>"""


def test_a_scalar_body_is_evaluated_on_whole_arrays() -> None:
    environment = [Context(run_fast)]
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.float32(5)
    one_pass, one_by_one = reducer(ELEMENTWISE), reducer(BRANCHING)
    assert one_pass.elementwise
    assert not one_by_one.elementwise
    (found,) = one_pass.vectorized(environment, a, b)
    assert np.array_equal(found, np.where(a * 2 < b, a * 2, b))
    (found,) = one_by_one.vectorized(environment, a, b)
    assert found.dtype == np.float32
    assert np.array_equal(found, np.where(a < b, a, -b))


def test_a_constant_body_has_the_shape_of_its_arguments() -> None:
    body = "%r = stablehlo.constant dense<7.0> : tensor<f32>"
    (found,) = reducer(body).vectorized([Context(run_fast)], np.zeros((2, 3), np.float32), np.float32(0))
    assert found.shape == (2, 3)
    assert (found == 7).all()


def test_an_op_is_registered_once() -> None:
    with pytest.raises(ValueError, match=r"stablehlo.add is registered twice: in elementwise and in test_core"):
        op("stablehlo.add")(lambda view: lambda x: x)


def test_the_registry_lists_every_op_with_a_docstring() -> None:
    Evaluator(mlir.parse(ADD))
    listed = list(rules())
    assert {"stablehlo.add", "stablehlo.while", "stablehlo.convert"} <= {rule.name for rule in listed}
    assert not [rule.name for rule in listed if not rule.compile.__doc__]


@pytest.mark.full
def test_an_op_from_outside_before_the_first_program() -> None:
    """A known name is refused, and leaves the device as it was, whether its own ops are loaded by then or not."""
    script = """
import numpy as np
import pjrt
from pjrt.devices.reference import op

try:
    op("my.negate", "stablehlo.add")(lambda view: None)
except ValueError as error:
    print(error)
op("my.negate")(lambda view: lambda x: -x)  # the refused registration took no name
with pjrt.client("reference") as client:
    kind = "tensor<2xf32>"
    text = f"%0 = stablehlo.add %x, %x : {kind} return %0 : {kind}"
    program = f"func.func @main(%x: {kind}) -> {kind} {{ {text} }}"
    print(np.asarray(client.compile(program)(np.ones(2, np.float32))[0]).tolist())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "stablehlo.add is registered twice: in elementwise and in __main__",
        "[2.0, 2.0]",
    ]


def test_calls_that_are_nested_too_deep_are_refused() -> None:
    """Regions cannot be: the parser takes no text in which brackets are nested that deep."""
    kind, depth = "tensor<f32>", 2000
    text = f"func.func @main(%x: {kind}) -> {kind} {{ %0 = call @f0(%x) : ({kind}) -> {kind} return %0 : {kind} }}\n"
    for number in range(depth):
        called = f"%0 = call @f{number + 1}(%x) : ({kind}) -> {kind} return %0" if number + 1 < depth else "return %x"
        text += f"func.func private @f{number}(%x: {kind}) -> {kind} {{ {called} : {kind} }}\n"
    with pytest.raises(UnimplementedError, match=r"main: regions and calls are nested too deep .*setrecursionlimit"):
        Evaluator(mlir.parse(text))


CONSTANTS = [
    ("f32", "1.5", "stablehlo.add"),
    ("bf16", "1.5", "stablehlo.add"),
    ("f8E4M3FN", "1.5", "stablehlo.add"),
    ("i4", "3", "stablehlo.add"),
    ("ui16", "7", "stablehlo.multiply"),
    ("i1", "true", "stablehlo.xor"),
    ("complex<f32>", "(1.0, 2.0)", "stablehlo.multiply"),
    ("!quant.uniform<u8:f32, 0.5:1>", "9", "stablehlo.add"),
]


@pytest.mark.parametrize(("element", "value", "op"), CONSTANTS, ids=[element for element, *_ in CONSTANTS])
def test_a_constant_of_equal_elements_is_kept_as_one(element: str, value: str, op: str) -> None:
    stored = "i8" if element.startswith("!quant") else element  # MLIR has no elements of quantized types

    def results(size: int) -> tuple[Evaluator, Any]:
        shape = f"{size}x{size}"
        text = f"""func.func @main() -> (tensor<3x2x{element}>, tensor<2x{size}x{element}>) {{
  %0 = "stablehlo.constant"() {{value = dense<{value}> : tensor<{shape}x{stored}>}} : () -> tensor<{shape}x{element}>
  %1 = {op} %0, %0 : tensor<{shape}x{element}>
  %2 = stablehlo.slice %1 [0:3, 2:4] : (tensor<{shape}x{element}>) -> tensor<3x2x{element}>
  %3 = stablehlo.slice %0 [0:2, 0:{size}] : (tensor<{shape}x{element}>) -> tensor<2x{size}x{element}>
  return %2, %3 : tensor<3x2x{element}>, tensor<2x{size}x{element}>
}}"""
        program = Evaluator(mlir.parse(text))
        return program, program()

    (small, (few, _)), (large, (same, row)) = results(8), results(1000)
    assert few.dtype == same.dtype
    assert few.tobytes() == same.tobytes()
    assert row.flags.writeable
    assert row.tobytes() == row[:1, :1].tobytes() * row.size
    sizes = [memory_stats(program, ()).generated_code_size_in_bytes for program in (small, large)]
    assert sizes[1] < sizes[0]


def test_a_constant_that_is_larger_than_memory() -> None:
    type_ = "tensor<4000000x4000000xf32>"
    text = f"func.func @main() -> {type_} {{ %0 = stablehlo.constant dense<1.0> : {type_} return %0 : {type_} }}"
    program = Evaluator(mlir.parse(text))
    with pytest.raises(MemoryError, match="Unable to allocate"):
        program()
    with pjrt.client("reference") as client:
        (result,) = client.compile(text)()
        with pytest.raises(pjrt.ResourceExhaustedError, match="no memory for 64000000000000 bytes of float32"):
            result.to_host().result()
