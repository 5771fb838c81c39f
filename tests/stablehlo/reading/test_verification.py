"""Rules that MLIR's verifier does not know: what breaks one is refused before any device sees it."""

from __future__ import annotations

import re

import pytest

from pjrt import InvalidArgumentError
from pjrt.stablehlo import inspect, read


def einsum(config: str, left: str, right: str, result: str) -> str:
    name = "einsum" if right else "unary_einsum"
    types = [f"tensor<{shape}xf32>" for shape in (left, right) if shape]
    arguments = ", ".join(f"%{i}: {type_}" for i, type_ in enumerate(types))
    operands = ", ".join(f"%{i}" for i in range(len(types)))
    return f"""func.func @main({arguments}) -> tensor<{result}xf32> {{
  %r = "stablehlo.{name}"({operands}) {{einsum_config = "{config}"}} : ({", ".join(types)}) -> tensor<{result}xf32>
  return %r : tensor<{result}xf32> }}"""


def index_select(dimension: int, batches: int, result: str, values: str = "3x4", indices: str = "2") -> str:
    return f"""func.func @main(%x: tensor<{values}xf32>, %i: tensor<{indices}xi32>) -> tensor<{result}xf32> {{
  %r = "stablehlo.torch_index_select"(%x, %i) {{dim = {dimension} : i64, batch_dims = {batches} : i64}}
    : (tensor<{values}xf32>, tensor<{indices}xi32>) -> tensor<{result}xf32>
  return %r : tensor<{result}xf32> }}"""


def gather(widths: str, result: str, indices: str = "2x1") -> str:
    numbers = "offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1"
    return f"""func.func @main(%x: tensor<3x4xf32>, %i: tensor<{indices}xi32>) -> tensor<{result}xf32> {{
  %r = "stablehlo.gather"(%x, %i) <{{dimension_numbers = #stablehlo.gather<{numbers}>,
    slice_sizes = array<i64: {widths}>}}> : (tensor<3x4xf32>, tensor<{indices}xi32>) -> tensor<{result}xf32>
  return %r : tensor<{result}xf32> }}"""


def random_bits(algorithm: str, size: int) -> str:
    return f"""func.func @main(%x: tensor<{size}xui64>) -> (tensor<{size}xui64>, tensor<2xf32>) {{
  %r, %b = stablehlo.rng_bit_generator %x, algorithm = {algorithm}
    : (tensor<{size}xui64>) -> (tensor<{size}xui64>, tensor<2xf32>)
  return %r, %b : tensor<{size}xui64>, tensor<2xf32> }}"""


def window(operation: str, sizes: str) -> str:
    types = ", ".join(f"tensor<{shape}f32>" for shape in ("4x6x", "2x3x", "")[:: 1 if "scatter" in operation else 2])
    result = "4x6" if "scatter" in operation else "2x3"
    region = """({ ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.KIND %a, %b : KIND_TYPE "stablehlo.return"(%s) : (KIND_RESULT) -> () })"""
    add = region.replace("KIND_TYPE", "tensor<f32>").replace("KIND_RESULT", "tensor<f32>").replace("KIND", "add")
    select = region.replace("KIND_TYPE", "(tensor<f32>, tensor<f32>) -> tensor<i1>")
    select = select.replace("KIND_RESULT", "tensor<i1>").replace("KIND", "compare GE,")
    regions = f"({select[1:-1]}, {add[1:-1]})" if "scatter" in operation else add
    names = [f"%{number}" for number in range(types.count("tensor"))]
    arguments = ", ".join(f"{name}: {type_}" for name, type_ in zip(names, types.split(", "), strict=True))
    return f"""func.func @main({arguments}) -> tensor<{result}xf32> {{
  %r = "stablehlo.{operation}"({", ".join(names)}) <{{window_dimensions = array<i64: {sizes}>,
    window_strides = array<i64: 2, 2>}}> {regions} : ({types}) -> tensor<{result}xf32>
  return %r : tensor<{result}xf32> }}"""


def annotation(target: str, given: str, result: str, operands: str = "%x") -> str:
    types = ", ".join([f"tensor<{given}>"] * operands.count("%"))
    return f"""func.func @main(%x: tensor<{given}>) -> tensor<{result}> {{
  %r = stablehlo.custom_call @{target}({operands}) : ({types}) -> tensor<{result}>
  return %r : tensor<{result}> }}"""


@pytest.mark.parametrize(
    ("target", "result"),
    [
        ("Sharding", "4xf32"),
        ("Sharding", "?xf32"),
        ("SPMDFullToShardShape", "2xf32"),
        ("SPMDShardToFullShape", "8xf32"),
    ],
)
def test_annotations_that_are_in_order(target: str, result: str) -> None:
    inspect(read(annotation(target, "4xf32", result)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (einsum("ab", "2x3", "3x4", "2x4"), "expects einsum_config to have a term for each of 2 operands, found 'ab'"),
        (einsum("abc,bc->ac", "2x3", "3x4", "2x4"), "expects 2 letters for the operand [2, 3], found 'abc'"),
        (einsum("a1,bc->ac", "2x3", "3x4", "2x4"), "expects 2 letters for the operand [2, 3], found 'a1'"),
        (einsum("ab,ac->bc", "2x3", "3x4", "3x4"), "expects one size for 'a' of 'ab,ac->bc', found 2 and 3"),
        (einsum("ab,bc->ad", "2x3", "3x4", "2x4"), "expects letters of the operands behind the arrow, each once"),
        (einsum("ab,bc->aa", "2x3", "3x4", "2x2"), "expects letters of the operands behind the arrow, each once"),
        (einsum("ab,bc->ca", "2x3", "3x4", "2x4"), "expects a result of shape [4, 2], found [2, 4]"),
        (einsum("ab->b", "2x3", "", "2"), "expects a result of shape [3], found [2]"),
        (einsum("ab,ab->a", "2x3", "", "2"), "expects einsum_config to have a term for each of 1 operands"),
        (index_select(2, 0, "2x4"), "expects 0 <= batch_dims <= dim < 2 and batch_dims <= 1"),
        (index_select(-1, 0, "3x2"), "found batch_dims 0 and dim -1"),
        (index_select(1, -1, "3x2"), "found batch_dims -1 and dim 1"),
        (index_select(0, 1, "3x4"), "found batch_dims 1 and dim 0"),
        (index_select(1, 1, "3"), "expects operands of equal sizes in batch_dims, found [3, 4] and [2]"),
        (index_select(1, 0, "2x4"), "expects a result of shape [3, 2], found [2, 4]"),
        (index_select(0, 0, "2x4", values="0x4"), "expects elements in dimension 0 to select from, found [0, 4]"),
        (gather("0, 4", "2x4"), "expects slice sizes of 1 in dimensions that the result drops, found [0, 4]"),
        (random_bits("THREE_FRY", 3), "expects a state of 2 ui64 for THREE_FRY, found tensor<3xui64>"),
        (random_bits("PHILOX", 4), "expects a state of 2 or 3 ui64 for PHILOX, found tensor<4xui64>"),
        (annotation("Sharding", "4xf32", "2x2xf32"), "expects a result of the type of the operand for 'Sharding'"),
        (annotation("Sharding", "4xf32", "4xi32"), "found tensor<4xf32> and tensor<4xi32>"),
        (annotation("annotate_device_placement", "4xf32", "5xf32"), "found tensor<4xf32> and tensor<5xf32>"),
        (annotation("SPMDFullToShardShape", "4xf32", "2x2xf32"), "found tensor<4xf32> and tensor<2x2xf32>"),
        (annotation("SPMDShardToFullShape", "4xf32", "4xbf16"), "found tensor<4xf32> and tensor<4xbf16>"),
        (annotation("Sharding", "4xf32", "4xf32", "%x, %x"), "expects one operand and one result for 'Sharding'"),
        (annotation("Sharding", "4xf32", "4xf32", ""), "found 0 and 1"),
        *(
            (window(operation, f"{-(2**63)}, 2"), f"expects window_dimensions above 0, found [{-(2**63)}, 2]")
            for operation in ("reduce_window", "select_and_scatter")
        ),
    ],
)
def test_a_broken_rule(text: str, message: str) -> None:
    with pytest.raises(
        InvalidArgumentError, match=rf"^INVALID_ARGUMENT: line 2, column (8|12): '.*{re.escape(message)}"
    ):
        inspect(read(text))


def stated(argument: str, result: str = "", call: str = "") -> str:
    attributes = f'{{call_target_name = "Sharding"{call and ", " + call}}}'
    return f"""func.func @main(%x: tensor<2x2xf32> {{{argument}}}) -> (tensor<2x2xf32> {{{result}}}) {{
  %r = "stablehlo.custom_call"(%x) {attributes} : (tensor<2x2xf32>) -> tensor<2x2xf32>
  return %r : tensor<2x2xf32> }}"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (stated("mhlo.layout_mode = 1 : i32"), "expects mhlo.layout_mode of argument 0 to be a text, found 1"),
        (stated("mhlo.layout_mode"), "expects mhlo.layout_mode of argument 0 to be a text, found unit"),
        (stated("", "mhlo.memory_kind = [1]"), "expects mhlo.memory_kind of result 0 to be a text, found [1"),
        (stated("mhlo.sharding = 7"), "expects mhlo.sharding of argument 0 to be a text, found 7"),
        *(
            (stated("", f'mhlo.sharding = "{text}"'), "expects mhlo.sharding of result 0 such as {devices=[2,1]<=[2]}")
            for text in ("{devices=[1,2]0,1", "{replicated", "replicated}", "{{replicated}", "{nonsense}", "{]", "{}}{")
        ),
        (stated("", "", 'mhlo.sharding = "{devices=[1,2]0,1"'), "expects mhlo.sharding such as {devices"),
        (stated(r'mhlo.sharding = "\08\03"'), "of argument 0 to be a sharding, found corrupt sharding: a grid of ()"),
        (stated("", r'mhlo.sharding = "\08\01"'), "of result 0 to be a sharding, found corrupt sharding: kind 1"),
        (stated("", "", r'mhlo.sharding = "\08\09"'), "mhlo.sharding to be a sharding, found corrupt sharding: k"),
        (stated("", "", r'mhlo.sharding = "\FF\FF"'), "found expected a serialized OpSharding, found 2 other bytes"),
    ],
)
def test_wrong_statements_about_values(text: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(message)):
        inspect(read(text))


@pytest.mark.parametrize(
    "text",
    [
        stated('mhlo.layout_mode = "{0,1}", mhlo.memory_kind = "device", mhlo.sharding = "{replicated}"'),
        *(
            stated("", "", f'mhlo.sharding = "{text}"')
            for text in (
                "",
                "{manual}",
                " { maximal device=0}",
                "{unknown shard_as 1}",
                "{{replicated}, {manual}}",
                "{}",
            )
        ),
        stated("", r'mhlo.sharding = "\08\03\1A\02\01\02\22\02\00\01"'),
        stated("", r'mhlo.sharding = "\08\04"'),
        stated("", "mhlo.sharding = \"{mesh['x'=2], [{'x'}, {}]}\""),
        stated("", 'mhlo.sharding = "{devices=[2,1]<=[2] metadata={op_name=\\22}\\22}}"'),
        einsum("ab,bc->ac", "2x3", "3x4", "2x4"),
        einsum("ab, bc", "2x3", "3x4", "2x4"),
        einsum("ab,bc->ac", "2x1", "3x4", "2x4"),
        einsum("...b,bc->...c", "2x3", "3x4", "2x4"),
        einsum("ab,bc->ac", "?x3", "3x4", "?x4"),
        einsum("ab->ba", "2x3", "", "3x2"),
        index_select(0, 0, "2x4"),
        index_select(1, 1, "3x2", indices="3x2"),
        index_select(1, 0, "?x2", values="?x4"),
        index_select(0, 0, "2x0", values="0x0"),
        random_bits("PHILOX", 3),
        random_bits("DEFAULT", 4),
        gather("1, 4", "2x4"),
        gather("1, 0", "2x0"),
        gather("0, 4", "0x4", indices="0x1"),
    ],
)
def test_what_keeps_the_rules(text: str) -> None:
    assert inspect(read(text)).num_operations == 1


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        ('"foo.bar"(%x) : (tensor<4xf32>) -> tensor<4xf32>', "there is no such operation; programs have operations of"),
        ("foo.bar %x", "there is no operation 'foo.bar'; programs have operations of func, stablehlo, chlo, sdy and"),
        ("stablehlo.xabs %x", "there is no operation 'stablehlo.xabs'; perhaps 'stablehlo.abs' is meant"),
        (
            '"chlo.errf"(%x) : (tensor<4xf32>) -> tensor<4xf32>',
            "there is no operation 'chlo.errf'; perhaps 'chlo.erf' is meant",
        ),
        ("stablehlo.abs %y : tensor<4xf32>", "use of a value that is not defined"),
        ("stablehlo.abs %x : tensor<4xf33>", "expected a type such as tensor<4xf32>"),
        (
            "stablehlo.reshape %x : (tensor<4xf32>) -> tensor<5xf32>",
            "number of output elements (5) doesn't match expected number of elements (4)",
        ),
        (
            "stablehlo.broadcast %x, sizes = [2] : (tensor<4xf32>) -> tensor<4xf32>",
            "'stablehlo.broadcast' op expects 'tensor<2x4xf32>', found 'tensor<4xf32>'",
        ),
        (
            "stablehlo.compare NN, %x, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>",
            "'stablehlo.compare' op expected ComparisonDirection to be one of: EQ, NE, GE, GT, LE, LT",
        ),
        (
            '"chlo.broadcast_compare"(%x, %x) {comparison_direction = "LT"} : '
            "(tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>",
            "attribute 'comparison_direction' must be a comparison_direction, such as EQ",
        ),
        (
            '"stablehlo.reverse"(%x) <{dimensions = "0"}> : (tensor<4xf32>) -> tensor<4xf32>',
            "'stablehlo.reverse' op expects as attribute 'dimensions' a list such as array<i64: 1, 2>, found \"0\"",
        ),
        (
            '"stablehlo.get_dimension_size"(%x) <{dimension = true}> : (tensor<4xf32>) -> tensor<i32>',
            "op attribute 'dimension' must be: a 64-bit integer whose value is non-negative",
        ),
        (
            '"stablehlo.fft"(%x) <{fft_type = 1 : i64, fft_length = array<i64: 4>}> : (tensor<4xf32>) -> tensor<4xf32>',
            "'stablehlo.fft' op expects as attribute 'fft_type' a value of another kind, found 1 : i64",
        ),
    ],
)
def test_a_wrong_attribute_in_plain_words(operation: str, message: str) -> None:
    """The line of the program is behind the message, and no C++ name or word of MLIR's own developers is in it."""
    program = (
        f"func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{\n  %r = {operation}\n  return %x : tensor<4xf32> }}"
    )
    with pytest.raises(InvalidArgumentError) as caught:
        inspect(read(program))
    told, _, line = str(caught.value).partition("; in: ")
    assert re.match("INVALID_ARGUMENT: cannot read the MLIR text: line [23], column ", told)
    assert message in told
    assert not re.search("::|custom op|constraint|inferred|SSA|propert", told)
    assert line.startswith("%r = " + operation[:90])


def test_the_part_of_a_long_line_that_is_wrong() -> None:
    operations = " ".join(f"%{number} = stablehlo.abs %x : tensor<4xf32>" for number in range(20))
    program = (
        f"func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{ {operations} {operations} return %x : tensor<4xf32> }}"
    )
    with pytest.raises(InvalidArgumentError, match=r"redefinition of .*; in: … .{100,120} …$") as caught:
        inspect(read(program))
    assert "%0 = stablehlo.abs" in str(caught.value).partition("; in: ")[2]
