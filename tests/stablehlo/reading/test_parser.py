from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from pjrt import ElementType, InvalidArgumentError, NotFoundError, Program, UnimplementedError, stablehlo
from pjrt.stablehlo import (
    FutureType,
    OpaqueType,
    Operation,
    ParsedProgram,
    TensorType,
    TokenType,
    TupleType,
    Version,
    current_version,
    parse,
    read,
)
from pjrt.stablehlo.ir import mlir_module
from pjrt.stablehlo.ir.attributes import (
    ChannelHandle,
    ConvDimensionNumbers,
    DotAlgorithm,
    DotDimensionNumbers,
    GatherDimensionNumbers,
    Opaque,
    OutputOperandAlias,
    ResultAccuracy,
    ScatterDimensionNumbers,
)

F32 = ElementType.F32


def parsed(body: str, arguments: str = "", results: str = "") -> ParsedProgram:
    return parse(read(f"module {{ func.func @main({arguments}) -> ({results}) {{\n{body}\nreturn\n}} }}"))


def only(name: str, program: ParsedProgram) -> Operation:
    (found,) = [operation for operation in program.walk() if operation.name == name]
    return found


def test_every_encoding_gives_the_same_view(any_program: Program) -> None:
    program = parse(any_program)
    assert program.name == "example"
    assert [str(t) for t in program.entry.type.arguments] == ["tensor<4x5xf32>", "tensor<5x4xf32>"]
    assert [str(t) for t in program.entry.type.results] == ["tensor<4x4xf32>", "tensor<4x5xf32>"]
    names = {operation.name for operation in program.walk()}
    assert {"stablehlo.dot_general", "stablehlo.tanh", "stablehlo.sort", "stablehlo.add", "func.call"} <= names


def test_functions_values_and_regions(text: Program) -> None:
    program = parse(text)
    assert (program.num_replicas, program.num_partitions) == (4, 2)
    assert list(program.functions) == ["main", "sort"]
    main, sort = program.functions["main"], program.functions["sort"]
    assert (main.is_public, sort.is_public) == (True, False)
    assert main.argument_names == ("weights", "")
    assert main.argument_attributes[0] == {"tf.aliasing_output": 1}
    assert main.argument_attributes[1]["jax.buffer_donor"] is True
    assert main.result_attributes == ({"jax.result_info": "loss"}, {})
    assert main.body is not None
    dot, tanh, *_ = main.body.operations
    assert dot.operands == main.arguments
    assert tanh.operands == dot.results
    assert dot.results[0].owner is dot
    assert main.arguments[1].owner is main.body
    assert [value.name for value in main.arguments] == ["%arg0", "%arg1"]
    assert main.body.outputs[1] is main.arguments[0]
    assert repr(tanh.results[0]) == "%1: tensor<4x4xf32>"
    (region,) = only("stablehlo.sort", program).regions
    assert [value.type for value in region.arguments] == [TensorType((), F32)] * 2
    assert region.operations[-1].name == "stablehlo.return"
    assert (
        repr(dot) == "%0 = stablehlo.dot_general %arg0, %arg1 : (tensor<4x5xf32>, tensor<5x4xf32>) -> (tensor<4x4xf32>)"
    )


def test_locations(text: Program) -> None:
    main = parse(text).entry
    assert main.body is not None
    dot, tanh, *_ = main.body.operations
    assert str(tanh.location) == "model.py:7:3"
    assert dot.location.name == "jit(f)/dot"
    assert [(place.name, place.file) for place in dot.location.places] == [
        ("jit(f)/dot", ""),
        ("layer", "model.py"),
        ("", "main.py"),
    ]
    assert str(dot.location) == "jit(f)/dot at model.py:9:5"


def test_regions_see_the_values_around_them() -> None:
    program = parsed(
        "%0 = stablehlo.constant dense<1.0> : tensor<f32>\n"
        '%1 = "stablehlo.if"(%p) ({ stablehlo.return %0 : tensor<f32> }, { stablehlo.return %x : tensor<f32> })'
        " : (tensor<i1>) -> tensor<f32>",
        "%p: tensor<i1>, %x: tensor<f32>",
    )
    choice = only("stablehlo.if", program)
    assert choice.regions[0].outputs[0].owner is only("stablehlo.constant", program)
    assert choice.regions[1].outputs[0] is program.entry.arguments[1]


@pytest.mark.parametrize(
    ("spelled", "type_"),
    [
        ("tensor<f32>", TensorType((), F32)),
        ("tensor<2x?xbf16>", TensorType((2, None), ElementType.BF16)),
        ("tensor<?x4xi4, #stablehlo.bounds<8, ?>>", TensorType((None, 4), ElementType.S4, None, (8, None))),
        ("tensor<3xcomplex<f64>>", TensorType((3,), ElementType.C128)),
        ("tensor<3xindex>", TensorType((3,), ElementType.S64)),
        ("tensor<0x3xi1>", TensorType((0, 3), ElementType.PRED)),
        ("!stablehlo.token", TokenType()),
        ("tuple<tensor<ui8>, tuple<>>", TupleType((TensorType((), ElementType.U8), TupleType(())))),
        ("tensor<*xf32>", OpaqueType("tensor<*xf32>")),
    ],
)
def test_types(spelled: str, type_: object) -> None:
    program = parsed("", f"%x: {spelled}")
    assert program.entry.type.arguments == (type_,)
    assert program.entry.arguments[0].type == type_


def test_quantized_types() -> None:
    (type_,) = parsed("", "%x: tensor<2x!quant.uniform<i8<-100:100>:f32:0, {0.5:3,0.25}>>").entry.type.arguments
    assert isinstance(type_, TensorType)
    assert type_.element is ElementType.S8
    quantization = type_.quantization
    assert quantization is not None
    assert (quantization.scales, quantization.zero_points, quantization.axis) == ((0.5, 0.25), (3, 0), 0)
    assert (quantization.storage_min, quantization.storage_max) == (-100, 100)
    (unsigned,) = parsed("", "%x: tensor<2x!quant.uniform<u8:f32, 0.5>>").entry.type.arguments
    assert isinstance(unsigned, TensorType)
    assert unsigned.quantization is not None
    assert (unsigned.element, unsigned.quantization.storage_max) == (ElementType.U8, 255)


def test_futures() -> None:
    if current_version() < Version(1, 15):
        pytest.skip("the StableHLO of this jaxlib has no futures yet")
    program = parsed(
        '%0 = "stablehlo.async_start"(%x) ({ ^bb0(%a: tensor<4xf32>):\n'
        '%1 = "stablehlo.all_reduce"(%a) ({ ^bb0(%b: tensor<f32>, %c: tensor<f32>):\n'
        "%d = stablehlo.add %b, %c : tensor<f32>\n stablehlo.return %d : tensor<f32>})"
        " {replica_groups = dense<[[0]]> : tensor<1x1xi64>}: (tensor<4xf32>) -> tensor<4xf32>\n"
        "stablehlo.return %1 : tensor<4xf32> }) : (tensor<4xf32>) -> !stablehlo.future<tensor<4xf32>>",
        "%x: tensor<4xf32>",
    )
    assert only("stablehlo.async_start", program).results[0].type == FutureType((TensorType((4,), F32),))


def attributes_of(operation: str, arguments: str = "%x: tensor<4x4xf32>") -> dict[str, object]:
    name = operation.split()[0].strip('"').partition('"')[0].partition("(")[0]
    program = parsed(f"%0 = {operation}", arguments)
    return dict(only(name, program).attributes)


def test_enums_arrays_and_records() -> None:
    found = attributes_of(
        "stablehlo.dot_general %x, %x, batching_dims = [0] x [0], contracting_dims = [2] x [1],"
        " precision = [DEFAULT, DEFAULT],"
        " algorithm = <lhs_precision_type = tf32, rhs_precision_type = tf32, accumulation_type = f32,"
        " lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 1,"
        " allow_imprecise_accumulation = false>"
        " : (tensor<2x4x4xf32>, tensor<2x4x4xf32>) -> tensor<2x4x4xf32>",
        "%x: tensor<2x4x4xf32>",
    )
    assert found["dot_dimension_numbers"] == DotDimensionNumbers((0,), (0,), (2,), (1,))
    assert found["precision_config"] == ("DEFAULT", "DEFAULT")
    algorithm = found["algorithm"]
    assert isinstance(algorithm, DotAlgorithm)
    assert algorithm.lhs_precision_type == OpaqueType("tf32")
    assert (algorithm.accumulation_type, algorithm.allow_imprecise_accumulation) == (TensorType((), F32), False)
    compared = attributes_of(
        "stablehlo.compare LT, %x, %x, TOTALORDER : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xi1>"
    )
    assert compared == {"comparison_direction": "LT", "compare_type": "TOTALORDER"}
    accurate = attributes_of(
        "stablehlo.tan %x {result_accuracy = #stablehlo.result_accuracy<ulps = 10,"
        " mode = #stablehlo.result_accuracy_mode<TOLERANCE>>} : tensor<4x4xf32>"
    )
    accuracy = accurate["result_accuracy"]
    assert isinstance(accuracy, ResultAccuracy)
    assert (accuracy.ulps, accuracy.rtol) == (10, 0.0)
    assert "TOLERANCE" in accuracy.mode


def test_dimension_numbers() -> None:
    convolved = attributes_of(
        "stablehlo.convolution(%x, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],"
        " window = {stride = [1, 2], pad = [[1, 1], [0, 2]]}"
        " {batch_group_count = 1 : i64, feature_group_count = 1 : i64}"
        " : (tensor<1x8x8x3xf32>, tensor<3x3x3x4xf32>) -> tensor<1x8x4x4xf32>",
        "%x: tensor<1x8x8x3xf32>, %k: tensor<3x3x3x4xf32>",
    )
    assert convolved["dimension_numbers"] == ConvDimensionNumbers(0, 3, (1, 2), 2, 3, (0, 1), 0, 3, (1, 2))
    assert convolved["window_strides"] == (1, 2)
    padding = convolved["padding"]
    assert isinstance(padding, np.ndarray)
    assert padding.tolist() == [[1, 1], [0, 2]]
    gathered = attributes_of(
        '"stablehlo.gather"(%x, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [1],'
        " collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,"
        " indices_are_sorted = true, slice_sizes = array<i64: 1, 4>}>"
        " : (tensor<4x4xf32>, tensor<2x1xi32>) -> tensor<2x4xf32>",
        "%x: tensor<4x4xf32>, %i: tensor<2x1xi32>",
    )
    assert gathered["dimension_numbers"] == GatherDimensionNumbers((1,), (0,), (), (), (0,), 1)
    assert (gathered["slice_sizes"], gathered["indices_are_sorted"]) == ((1, 4), True)
    scattered = attributes_of(
        '"stablehlo.scatter"(%x, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1],'
        " inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({\n"
        "^bb0(%a: tensor<f32>, %b: tensor<f32>): stablehlo.return %b : tensor<f32> })"
        " : (tensor<4x4xf32>, tensor<2x1xi32>, tensor<2x4xf32>) -> tensor<4x4xf32>",
        "%x: tensor<4x4xf32>, %i: tensor<2x1xi32>, %u: tensor<2x4xf32>",
    )
    assert scattered["scatter_dimension_numbers"] == ScatterDimensionNumbers((1,), (0,), (), (), (0,), 1)


def test_custom_calls_and_channels() -> None:
    called = attributes_of(
        'stablehlo.custom_call @target(%x) {has_side_effect = true, backend_config = "\\FF\\00raw",'
        ' api_version = 2 : i32, mhlo.sharding = "{replicated}",'
        ' some.dictionary = {a = 1 : i64, b = [true, "s"], c}, some.type = tensor<2xf32>,'
        " other = #sdy<manual_axes{}>,"
        " output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [],"
        " operand_index = 0, operand_tuple_indices = []>]} : (tensor<4x4xf32>) -> tensor<4x4xf32>"
    )
    assert called["call_target_name"] == "target"
    assert called["backend_config"] == b"\xff\x00raw"
    assert called["has_side_effect"] is True
    assert called["api_version"] == 2
    assert called["some.dictionary"] == {"a": 1, "b": (True, "s"), "c": True}
    assert called["some.type"] == TensorType((2,), F32)
    assert called["output_operand_aliases"] == (OutputOperandAlias((), 0, ()),)
    assert isinstance(called["other"], Opaque)
    gathered = attributes_of(
        '"stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64,'
        " channel_handle = #stablehlo.channel_handle<handle = 3, type = 1>,"
        " replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}>"
        " : (tensor<4x4xf32>) -> tensor<8x4xf32>"
    )
    assert gathered["channel_handle"] == ChannelHandle(3, 1)
    assert gathered["use_global_device_ids"] is True


@pytest.mark.parametrize(
    ("constant", "expected"),
    [
        ("dense<[true, false]> : tensor<2xi1>", np.array([True, False])),
        ("dense<true> : tensor<2x2xi1>", np.ones((2, 2), bool)),
        ("dense<[1, -2]> : tensor<2xi4>", np.array([1, -2], ElementType.S4.dtype)),
        ("dense<[1, 15]> : tensor<2xui4>", np.array([1, 15], ElementType.U4.dtype)),
        ("dense<18446744073709551615> : tensor<ui64>", np.array(2**64 - 1, np.uint64)),
        ("dense<[1.5, 0xFF80]> : tensor<2xbf16>", np.array([1.5, -np.inf], ElementType.BF16.dtype)),
        ("dense<1.5> : tensor<3xf8E4M3FN>", np.full(3, 1.5, ElementType.F8E4M3FN.dtype)),
        ("dense<[(1.0, -2.0), (0.0, 3.0)]> : tensor<2xcomplex<f32>>", np.array([1 - 2j, 3j], np.complex64)),
        ("dense<(1.0, 2.0)> : tensor<2xcomplex<f64>>", np.full(2, 1 + 2j)),
        ("dense<> : tensor<0x2xf32>", np.zeros((0, 2), np.float32)),
        ("dense<[[1.0], [2.0]]> : tensor<2x1xf64>", np.array([[1.0], [2.0]])),
    ],
)
def test_constants(constant: str, expected: np.ndarray) -> None:  # type: ignore[type-arg]
    value = only("stablehlo.constant", parsed(f"%0 = stablehlo.constant {constant}")).attribute("value")
    assert value.dtype == expected.dtype
    assert value.shape == expected.shape
    assert value.tobytes() == expected.tobytes()
    assert not value.flags.writeable


RESOURCES = {
    "f32": ("0000803F000000C0", np.array([1, -2], np.float32)),
    "of equal numbers": ("0000803F0000803F", np.ones(2, np.float32)),
    "f64": (np.array([1.5, -np.inf]).tobytes().hex(), np.array([1.5, -np.inf])),
    "bf16": ("803FC0FF", np.array([1, -np.nan], ElementType.BF16.dtype)),
    "f8E4M3FN": ("38C0", np.array([1, -2], ElementType.F8E4M3FN.dtype)),
    "i4": ("01FE", np.array([1, -2], ElementType.S4.dtype)),
    "i4, packed": ("E1", np.array([1, -2], ElementType.S4.dtype)),
    "ui2, packed": ("0E", np.array([2, 3], ElementType.U2.dtype)),
    "i1": ("0100", np.array([True, False])),
    "i1, packed": ("02", np.array([False, True])),
    "ui64": ("FF" * 8 + "01" + "00" * 7, np.array([2**64 - 1, 1], np.uint64)),
    "complex<f32>": ("0000803F000000C0" * 2, np.full(2, 1 - 2j, np.complex64)),
}


@pytest.mark.parametrize("name", RESOURCES)
@pytest.mark.parametrize("is_bytecode", [False, True])
def test_constants_that_are_resources(name: str, is_bytecode: bool) -> None:
    digits, expected = RESOURCES[name]
    type_ = f"tensor<2x{ElementType.of(expected.dtype).mlir}>"
    code: str | bytes = f"""func.func public @main() -> {type_} {{
  %0 = stablehlo.constant dense_resource<"a b"> : {type_}
  return %0 : {type_}
}}
{{-# dialect_resources: {{ builtin: {{ "a b": "0x04000000{digits}", other: "0x0400000001" }} }} #-}}"""
    if is_bytecode:  # MLIR's own, in which resources stay
        code = mlir_module.write_bytecode(mlir_module.parse(str(code).encode()))
    value = only("stablehlo.constant", parse(code)).attribute("value")
    assert value.dtype == expected.dtype
    assert value.tobytes() == expected.tobytes()


@pytest.mark.parametrize(("element", "expected"), [("f32", 12), ("f6E3M2FN", 3), ("i4", 3), ("i1", 3)])
def test_a_resource_of_another_size_is_refused(element: str, expected: int) -> None:
    code = f"""func.func public @main() -> tensor<3x{element}> {{
  %0 = stablehlo.constant dense_resource<w> : tensor<3x{element}>
  return %0 : tensor<3x{element}>
}}
{{-# dialect_resources: {{ builtin: {{ w: "0x040000000000803F" }} }} #-}}"""
    with pytest.raises(InvalidArgumentError, match=rf"expected {expected} bytes in the resource w .* found 4"):
        parse(code)


@pytest.mark.parametrize("element", ["bf16", "f8E5M2", "i4", "f32"])
def test_large_constants_keep_every_element(element: str) -> None:
    dtype = ElementType.from_mlir(element).dtype
    expected = (np.arange(300) % 7).astype(dtype)
    words = ", ".join(str(int(x)) if element == "i4" else f"{float(x)}" for x in expected)
    value = only("stablehlo.constant", parsed(f"%0 = stablehlo.constant dense<[{words}]> : tensor<300x{element}>"))
    assert value.attribute("value").tobytes() == expected.tobytes()


def test_a_missing_attribute_names_the_operation(text: Program) -> None:
    tanh = next(operation for operation in parse(text).walk() if operation.name == "stablehlo.tanh")
    assert tanh.attribute("missing", 3) == 3
    with pytest.raises(InvalidArgumentError, match=r"stablehlo\.tanh.*expected an attribute missing.*model\.py:7:3"):
        tanh.attribute("missing")


def test_the_entry_is_main_or_the_only_public_function() -> None:
    assert parse(read("module { func.func @other() { return } }")).entry.name == "other"
    two = parse(read("module { func.func @a() { return } func.func @b() { return } }"))
    with pytest.raises(NotFoundError, match="found as public ones: a, b"):
        _ = two.entry
    with pytest.raises(NotFoundError, match="none"):
        _ = parse(read("module {}")).entry


def test_declarations_beside_functions_are_kept() -> None:
    program = parse(
        read('module { sdy.mesh @mesh = <["i"=2]>\nfunc.func private @declared(tensor<f32>) -> tensor<f32> }')
    )
    assert [operation.name for operation in program.declarations] == ["sdy.mesh"]
    assert program.functions["declared"].body is None
    assert program.functions["declared"].arguments == ()


def test_branches_between_blocks_are_refused() -> None:
    with pytest.raises(UnimplementedError, match="regions of one block each"):
        parse(read("func.func @main() { cf.br ^end\n^end: return }"))


def test_counts_that_are_none_are_refused() -> None:
    program = parse(read('module attributes {mhlo.num_replicas = "many"} {}'))
    with pytest.raises(InvalidArgumentError, match=r"mhlo\.num_replicas to be a number from 1, found 'many'"):
        _ = program.num_replicas


def test_nothing_of_mlir_stays_alive(text: Program) -> None:
    program = parse(text)
    seen: set[int] = set()
    waiting: list[object] = [program]
    while waiting:
        item = waiting.pop()
        if id(item) in seen or isinstance(item, type):
            continue
        seen.add(id(item))
        assert "jaxlib" not in type(item).__module__
        if type(item).__module__.startswith("pjrt.stablehlo") or isinstance(item, (tuple, list, dict)):
            waiting.extend(gc.get_referents(item))


def test_many_threads_may_parse_at_once(any_program: Program) -> None:
    expected = [repr(operation) for operation in parse(any_program).walk()]
    found: list[list[str]] = []
    threads = [
        threading.Thread(target=lambda: found.append([repr(o) for o in parse(any_program).walk()])) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [expected] * 4


def test_meshes_and_shardings_are_values() -> None:
    program = parse("""
    module attributes {mhlo.num_partitions = 8 : i32} {
      sdy.mesh @mesh = <["x"=4, "y"=2]>
      func.func @main(%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>},
                      %b: tensor<8xf32> {mhlo.sharding = "{devices=[8]<=[8]}"}, %c: tensor<8xf32>)
          -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
        return %a : tensor<8x8xf32>
      }
    }""")
    assert list(program.meshes) == ["mesh"]
    first, second, third = program.argument_shardings()
    assert first is not None
    assert second is not None
    assert first.tiles == (4, 2)
    assert second.tiles == (8,)
    assert third is None
    (result,) = program.result_shardings()
    assert result is not None
    assert result.shard_shape((8, 8)) == (8, 2)


@pytest.mark.parametrize(
    "text",
    [
        'module @"\\FF" { func.func @main(%x: tensor<f32>) -> tensor<f32> { return %x : tensor<f32> } }',
        'func.func @main(%x: tensor<f32>) { stablehlo.custom_call @"\\FF"(%x) : (tensor<f32>) -> () return }',
        'func.func @"\\FF"() { return }',
        'sdy.mesh @"\\FF" = <["x"=2]> func.func @f() { return }',
    ],
    ids=["module", "target of a call", "function", "mesh"],
)
def test_a_name_that_is_not_utf8_is_an_error(text: str) -> None:
    """Names are text; an attribute that is no text is bytes, and one was the name in a page."""
    for look in (parse, stablehlo.inspect, lambda program: stablehlo.with_entry(program, None)):
        with pytest.raises(InvalidArgumentError, match="a name that is not UTF-8"):
            look(text)
