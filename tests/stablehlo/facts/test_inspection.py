from __future__ import annotations

import pytest

from pjrt import ElementType, InvalidArgumentError, NotFoundError, Program
from pjrt.stablehlo import Encoding, TensorType, Version, inspect, read, signature, to_hlo


def test_the_facts_about_a_program(text: Program) -> None:
    info = inspect(text)
    assert (info.name, info.entry, info.encoding) == ("example", "main", Encoding.TEXT)
    assert info.size == len(text)
    assert info.version is None
    assert info.needed_version == Version(0, 9)
    assert (info.num_replicas, info.num_partitions) == (4, 2)
    assert info.functions == ("main", "sort")
    weights, other = info.arguments
    assert (weights.name, str(weights.type), weights.aliases_output) == ("weights", "tensor<4x5xf32>", 1)
    assert (weights.is_donor, weights.sharding, weights.layout) == (False, "", "")
    assert (other.is_donor, other.sharding, other.layout) == (True, "{replicated}", "{1,0}")
    assert [result.name for result in info.results] == ["loss", ""]
    assert info.constant_bytes == 16
    assert not info.has_dynamic_shapes
    assert info.collectives == info.side_effects == ()


def test_a_sharding_that_is_stated_as_a_message_is_spelled() -> None:
    text = """func.func @main(%x: tensor<4x4xf32> {mhlo.sharding = "MESSAGE"}) -> tensor<4x4xf32> {
      return %x : tensor<4x4xf32> }"""
    for message, spelled in (
        (r"\08\03\1A\02\01\02\22\02\01\00", "{devices=[1,2]1,0}"),
        (r"\08\03\1A\01\01\22\01\00", "{replicated}"),
        (r"\08\04", "0804"),
    ):
        assert inspect(read(text.replace("MESSAGE", message))).arguments[0].sharding == spelled


def test_operations_are_counted_with_their_first_locations(text: Program) -> None:
    info = inspect(text)
    counts = {operation.name: operation.count for operation in info.operations}
    assert counts["stablehlo.tanh"] == 2
    assert "func.return" not in counts
    assert info.operations[0].name == "stablehlo.tanh"
    assert [str(location) for location in info.operations[0].locations] == ["model.py:7:3", "other.py:1:2"]
    assert info.num_operations == sum(counts.values()) == 9


def test_an_artifact_says_its_version(artifact: Program) -> None:
    info = inspect(artifact)
    assert (info.encoding, info.version, info.needed_version) == (
        Encoding.PORTABLE_ARTIFACT,
        Version(1, 0),
        Version(0, 9),
    )


def test_every_encoding_has_the_same_signature(any_program: Program) -> None:
    info = inspect(any_program)
    assert [str(argument.type) for argument in info.arguments] == ["tensor<4x5xf32>", "tensor<5x4xf32>"]
    assert [argument.aliases_output for argument in info.arguments] == [1, None]


def test_aliases_survive_hlo() -> None:
    program = read(
        "module { func.func @main(%x: tensor<4xf32> {tf.aliasing_output = 0 : i32}) -> tensor<4xf32> {\n"
        "%0 = stablehlo.add %x, %x : tensor<4xf32>\n return %0 : tensor<4xf32> } }"
    )
    assert [argument.aliases_output for argument in inspect(to_hlo(program)).arguments] == [0]


def test_dynamic_shapes_collectives_and_side_effects() -> None:
    info = inspect(
        read(
            "module { func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {\n"
            '%0 = "stablehlo.all_reduce"(%x) ({ ^bb0(%a: tensor<f32>, %b: tensor<f32>):\n'
            "%c = stablehlo.add %a, %b : tensor<f32>\n stablehlo.return %c : tensor<f32> })"
            " {replica_groups = dense<[[0]]> : tensor<1x1xi64>} : (tensor<?xf32>) -> tensor<?xf32>\n"
            "stablehlo.custom_call @log(%0) {has_side_effect = true} : (tensor<?xf32>) -> ()\n"
            "%1 = stablehlo.custom_call @pure(%0) : (tensor<?xf32>) -> tensor<?xf32>\n"
            "%2 = stablehlo.create_token : !stablehlo.token\n"
            '%3 = "stablehlo.outfeed"(%1, %2) {outfeed_config = ""} : (tensor<?xf32>, !stablehlo.token)'
            " -> !stablehlo.token\n"
            "return %1 : tensor<?xf32> } }"
        )
    )
    assert info.has_dynamic_shapes
    assert info.arguments[0].type == TensorType((None,), ElementType.F32)
    assert info.collectives == ("stablehlo.all_reduce",)
    assert info.side_effects == ("custom_call @log", "stablehlo.outfeed")
    assert info.custom_calls == {"log": 1, "pure": 1}


def test_a_program_that_no_version_holds_says_why() -> None:
    info = inspect(
        read(
            "module { func.func @main(%x: memref<4xf32>) { %c = arith.constant 0 : index\n"
            "%0 = memref.load %x[%c] : memref<4xf32>\n return } }"
        )
    )
    assert info.needed_version is None
    assert "holds operations of other dialects: arith.constant, memref.load" in info.not_portable_because
    assert str(info.arguments[0].type) == "memref<4xf32>"


def test_a_module_without_an_entry_is_refused() -> None:
    with pytest.raises(NotFoundError, match="expected a function main"):
        inspect(read("module {}"))


def test_the_signature_is_the_same_as_inspects(any_program: Program) -> None:
    found, info = signature(any_program), inspect(any_program)
    assert (found.arguments, found.results) == (info.arguments, info.results)
    assert (found.arguments[0].shape, found.arguments[0].element_type) == ((4, 5), ElementType.F32)


def test_what_is_no_tensor_has_no_shape() -> None:
    found = signature(read("func.func @main(%t: !stablehlo.token, %u: tuple<tensor<f32>>) { return }"))
    assert (found.arguments[0].element_type, found.arguments[0].shape) == (ElementType.TOKEN, ())
    with pytest.raises(InvalidArgumentError, match=r"expected a tensor .* found tuple"):
        _ = found.arguments[1].shape
