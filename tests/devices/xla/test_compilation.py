"""Compiling: every form of program, options, and what is said of a program that cannot be read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt.devices.xla import compilation
from pjrt.devices.xla._jaxlib import hlo, jax
from pjrt.stablehlo.encodings.jaxlib import load

X = np.arange(4, dtype=np.float32)


def artifact(text: str, version: str) -> bytes:
    """A portable artifact, made by the StableHLO project's own code."""
    stablehlo = load("mlir.dialects.stablehlo", "make artifacts for tests")
    made: bytes = stablehlo.serialize_portable_artifact_str(text, version)
    return made


def bytecode(text: str) -> bytes:
    import io

    ir = load("mlir.ir", "make bytecode for tests")
    context = ir.Context()
    load("mlir.dialects.stablehlo", "make bytecode for tests").register_dialect(context)
    registry = ir.DialectRegistry()
    load("mlir._mlir_libs._jax_mlir_ext", "make bytecode for tests").register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    with context:
        out = io.BytesIO()
        ir.Module.parse(text).operation.write_bytecode(out)
        return out.getvalue()


@pytest.mark.parametrize("target", ["SPMDFullToShardShape", "SPMDShardToFullShape"])
def test_a_program_for_several_partitions_that_is_compiled_for_one(client: pjrt.Client, target: str) -> None:
    text = f"""func.func @main(%x: tensor<4xf32>) -> tensor<2xf32> {{
      %0 = stablehlo.custom_call @{target}(%x) {{mhlo.sharding = "{{manual}}"}} : (tensor<4xf32>) -> tensor<2xf32>
      return %0 : tensor<2xf32> }}"""
    with pytest.raises(pjrt.InvalidArgumentError, match="is compiled for one; compile it for as many partitions"):
        client.compile(text)


@pytest.mark.parametrize("form", ["text", "bytes", "program", "bytecode", "artifact", "hlo"])
def test_every_form_of_program(client: pjrt.Client, add: pjrt.LoadedExecutable, programs: Any, form: str) -> None:
    program: Any = {
        "text": lambda: programs.add,
        "bytes": lambda: programs.add.encode(),
        "program": lambda: pjrt.Program(programs.add.encode()),
        "bytecode": lambda: bytecode(programs.add),
        "artifact": lambda: artifact(programs.add, "1.0.0"),
        "hlo": lambda: add.optimized_program(),
    }[form]()
    (result,) = client.compile(program)(X, X)
    assert np.asarray(result).tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize(
    ("program", "error", "message"),
    [
        ("func.func public @main(", pjrt.InvalidArgumentError, "cannot read the MLIR text: line 1, column 23"),
        ("", pjrt.InvalidArgumentError, "found nothing: 0 bytes"),
        ("module {}", pjrt.InvalidArgumentError, "must have a main function"),
        (b"\x00\x01\x02", pjrt.InvalidArgumentError, "found 3 bytes that begin with"),
        (b"ML\xefR", pjrt.PjrtError, "."),
        (b"ML\xefR\x06\x01junk", pjrt.PjrtError, "."),
        (pjrt.Program(b"\xff\xff\xff", "hlo"), pjrt.InvalidArgumentError, "expected a program .* found 3 bytes"),
        (pjrt.Program(b"x", "tpu_binary"), pjrt.InvalidArgumentError, "mlir, hlo, hlo_with_config, found 'tpu_binary'"),
        (3, pjrt.InvalidArgumentError, "expected a program as pjrt.Program, str, bytes or a path, found int"),
    ],
)
def test_what_is_no_program(client: pjrt.Client, program: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        client.compile(program)
    assert "forward incompatibility" not in str(caught.value)


def test_a_wrong_program(client: pjrt.Client) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match="expects different type than prior uses"):
        client.compile(
            "func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {"
            " %0 = stablehlo.add %x, %x : tensor<5xf32> return %0 : tensor<4xf32> }"
        )


def test_an_artifact_that_is_too_new_names_both_versions(client: pjrt.Client, programs: Any) -> None:
    stablehlo = load("mlir.dialects.stablehlo", "make artifacts for tests")
    current = stablehlo.get_current_version()
    code = artifact(programs.add, current)
    spelled = f"StableHLO_v{current}".encode()
    assert spelled in code
    assert b"add_v1" in code
    # What makes an artifact unreadable is an operation of a later version than this one knows.
    major, _, patch = current.split(".")
    newer = code.replace(spelled, f"StableHLO_v{major}.99.{patch}".encode()).replace(b"add_v1", b"add_v9")
    with pytest.raises(pjrt.PjrtError) as caught:
        client.compile(newer)
    assert f"{major}.99.{patch}" in str(caught.value)
    assert current in str(caught.value)


def test_a_program_with_tokens_at_its_ends(client: pjrt.Client) -> None:
    executable = client.compile("""
        func.func public @main(%t: !stablehlo.token, %x: tensor<f32>) -> (!stablehlo.token, tensor<f32>) {
          %u = stablehlo.after_all %t : !stablehlo.token
          %y = stablehlo.add %x, %x : tensor<f32>
          return %u, %y : !stablehlo.token, tensor<f32>
        }""")
    assert list(executable.output_element_types) == [pjrt.ElementType.TOKEN, pjrt.ElementType.F32]
    token, y = executable(np.zeros(0, np.bool_), np.float32(2))
    assert token.ready().result() is None
    assert (token.shape, token.on_device_size, np.asarray(token).size) == ((0,), 0, 0)
    _, z = executable(token, y)
    assert np.asarray(z) == 8


def test_option_overrides(client: pjrt.Client, programs: Any) -> None:
    fast = pjrt.CompileOptions(option_overrides={"xla_cpu_enable_fast_math": True})
    assert np.asarray(client.compile(programs.add, fast)(X, X)[0]).tolist() == [0, 2, 4, 6]
    for overrides, message in (
        ({"no_such_flag": True}, "XLA has no flag 'no_such_flag'; the fields of DebugOptions"),
        ({"xla_cpu_enable_fast_mat": True}, "no flag 'xla_cpu_enable_fast_mat'; perhaps 'xla_cpu_enable_fast_math' is"),
        ({"xla_cpu_enable_fast_math": "maybe"}, "'maybe' is not a valid bool value"),
    ):
        with pytest.raises(pjrt.InvalidArgumentError, match=message):
            client.compile(programs.add, pjrt.CompileOptions(option_overrides=overrides))


@pytest.mark.parametrize(
    "options",
    [
        None,
        pjrt.CompileOptions(device_ordinal=2),
        pjrt.CompileOptions.from_proto(
            pjrt.CompileOptions(option_overrides={"xla_cpu_enable_fast_math": False}).to_proto()
        ),
    ],
)
def test_the_larger_of_a_number_and_nan_is_nan_with_all_options(
    client: pjrt.Client, options: pjrt.CompileOptions | None
) -> None:
    """XLA's own default loses the NaN; jaxlib's does not, and applies to options that state no debug options."""
    executable = client.compile(
        """
        func.func @main(%x: tensor<324xf32>, %y: tensor<324xf32>) -> tensor<324xf32> {
          %z = stablehlo.maximum %x, %y : tensor<324xf32>
          return %z : tensor<324xf32>
        }""",
        options,
    )
    x = np.repeat(np.array([0, 1, np.nan], np.float32), 108)
    y = np.tile(np.array([0, 1, np.nan], np.float32), 108)
    np.testing.assert_array_equal(np.asarray(executable(x, y)[0]), np.maximum(x, y))


def test_a_device_is_chosen_by_assignment_or_ordinal(client: pjrt.Client, programs: Any) -> None:
    assigned = pjrt.CompileOptions(device_assignment=pjrt.DeviceAssignment.of([2]))
    for options in (assigned, pjrt.CompileOptions(device_ordinal=2)):
        executable = client.compile(programs.add, options)
        assert [d.id for d in executable.addressable_devices] == [2]
        (result,) = executable(X, X)
        assert result.device.id == 2


def test_the_compiler_is_told_what_travels_in_base(client: pjrt.Client, programs: Any) -> None:
    """A flag inside the serialized options that this package has no name for reaches XLA."""
    base = pjrt.CompileOptions(option_overrides={"xla_cpu_enable_fast_math": True}).to_proto()
    executable = client.compile(programs.add, pjrt.CompileOptions.from_proto(base))
    assert executable.compile_options().option_overrides == {"xla_cpu_enable_fast_math": True}


IN_HLO = "HloModule m\nENTRY e {{ {} }}"
SUM = "p = f32[4]{0} parameter(0) a = f32[4]{0} add(p, p)"


@pytest.mark.parametrize(
    ("body", "arguments", "results"),
    [
        (f"{SUM} ROOT t = (f32[4]{{0}}) tuple(a)", [1], [1]),
        (f"{SUM} ROOT t = (f32[4]{{0}}, f32[4]{{0}}) tuple(a, a)", [1], [1, 1]),
        (f"{SUM} u = (f32[4]{{0}}) tuple(a) ROOT t = ((f32[4]{{0}}), f32[4]{{0}}) tuple(u, a)", [1], [[1], 1]),
        ("p = (f32[4]{0}) parameter(0) x = f32[4]{0} get-tuple-element(p), index=0 ROOT a = add(x, x)", [[1]], 1),
    ],
    ids=["a tuple of one", "a tuple of two", "a tuple in a tuple", "a tuple as argument"],
)
def test_layouts_of_tuples_in_the_options(client: pjrt.Client, body: str, arguments: Any, results: Any) -> None:
    """TensorFlow states the layouts of the tuples that its programs in HLO take and return."""

    def shape(nested: Any) -> Any:
        if isinstance(nested, list):
            return hlo.Shape.tuple_shape([shape(each) for each in nested])
        return hlo.Shape.array_shape(np.dtype(np.float32), (4,), (0,))

    options = jax.CompileOptions()
    options.argument_layouts = [shape(each) for each in arguments]
    options.executable_build_options.result_layout = shape(results)
    stated = pjrt.CompileOptions.from_proto(options.SerializeAsString())
    found = client.compile(IN_HLO.format(body), stated)(X)
    assert all(np.asarray(each).tolist() == [0, 2, 4, 6] for each in found)


def test_layouts_in_a_program_are_kept_apart(client: pjrt.Client) -> None:
    column_major = '{mhlo.layout_mode = "{0,1}"}'
    executable = client.compile(
        f"func.func public @main(%x: tensor<2x3xf32> {column_major})"
        f" -> (tensor<2x3xf32> {column_major}, tensor<2x3xf32>) {{"
        " %0 = stablehlo.add %x, %x : tensor<2x3xf32> return %0, %0 : tensor<2x3xf32>, tensor<2x3xf32> }"
    )
    order = pjrt.TiledLayout((0, 1))
    assert executable.parameter_layouts == [order]
    assert executable.output_layouts == [order, pjrt.TiledLayout((1, 0))]
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    with pytest.raises(pjrt.InvalidArgumentError, match=r"with the layout \{0,1\}, found \{1,0\}; pass layout="):
        executable(x)
    given = client.buffer_from_host(x, layout=order)
    assert given.layout == order
    assert np.asarray(given).tolist() == x.tolist()
    first, second = executable(given)
    assert (first.layout, second.layout) == (order, pjrt.TiledLayout((1, 0)))
    assert np.asarray(first).tolist() == np.asarray(second).tolist() == (2 * x).tolist()
    raw = np.empty(6, np.float32)
    first.copy_raw_to_host(raw).result()
    assert raw.tolist() == (2 * x).T.ravel().tolist()


def test_memory_kinds_in_a_program(client: pjrt.Client) -> None:
    pinned = '{mhlo.memory_kind = "pinned_host"}'
    executable = client.compile(
        f"func.func public @main(%x: tensor<4xf32> {pinned}) -> (tensor<4xf32> {pinned}, tensor<4xf32>) {{"
        " %0 = stablehlo.add %x, %x : tensor<4xf32> return %0, %0 : tensor<4xf32>, tensor<4xf32> }"
    )
    assert executable.parameter_memory_kinds == ["pinned_host"]
    assert executable.output_memory_kinds == ["pinned_host", "device"]
    first, second = executable(X)
    assert (first.memory_space.kind, second.memory_space.kind) == ("pinned_host", "device")
    assert np.asarray(first).tolist() == np.asarray(second).tolist() == [0, 2, 4, 6]


def test_dynamic_dimensions(client: pjrt.Client) -> None:
    bounded = "tensor<?xf32, #stablehlo.bounds<4>>"
    executable = client.compile(
        f"func.func public @main(%x: tensor<4xf32>, %n: tensor<i32>) -> {bounded} {{"
        f" %0 = stablehlo.set_dimension_size %x, %n, dim = 0 : (tensor<4xf32>, tensor<i32>) -> {bounded}"
        f" return %0 : {bounded} }}"
    )
    (result,) = executable(X, np.int32(2))
    assert (result.shape, result.dynamic_dimensions, result.unpadded_shape) == ((4,), (0,), (2,))
    assert np.asarray(result).tolist() == [0, 1]


FEEDS = {
    "infeed": '%r:2 = "stablehlo.infeed"(%t) : (!stablehlo.token) -> (tensor<2xf32>, !stablehlo.token)',
    "outfeed": '%r = "stablehlo.outfeed"(%x, %t) : (tensor<2xf32>, !stablehlo.token) -> !stablehlo.token',
    "send": '%r = "stablehlo.send"(%x, %t) {channel_handle = #stablehlo.channel_handle<handle = 5, type = 2>, '
    "is_host_transfer = true} : (tensor<2xf32>, !stablehlo.token) -> !stablehlo.token",
    "recv": '%r:2 = "stablehlo.recv"(%t) {channel_handle = #stablehlo.channel_handle<handle = 5, type = 3>, '
    "is_host_transfer = true} : (!stablehlo.token) -> (tensor<2xf32>, !stablehlo.token)",
}


@pytest.mark.full
@pytest.mark.parametrize("name", list(FEEDS))
def test_programs_that_would_wait_for_the_host_are_refused_as_a_check_refuses_them(
    client: pjrt.Client, name: str
) -> None:
    body = f"(%x: tensor<2xf32>) -> tensor<2xf32> {{ %t = stablehlo.create_token : !stablehlo.token\n{FEEDS[name]}\n"
    body += "return %x : tensor<2xf32> }\n"
    text = f"func.func @main{body}"
    message = client.supports(text).reasons[0].message
    for compile_ in (client.compile, client.topology.compile):
        with pytest.raises(pjrt.UnimplementedError, match=f"does not run this program: {message}"):
            compile_(text)
    unused = (
        f"func.func private @unused{body} func.func @main(%x: tensor<f32>) -> tensor<f32> {{ return %x : tensor<f32> }}"
    )
    assert float(np.asarray(client.compile(unused)(np.float32(3))[0])) == 3


def test_tuples_at_the_border_of_a_program(client: pjrt.Client) -> None:
    """Their elements are arguments and results, in their order, as on the other devices."""
    text = """func.func @main(%x: tensor<2xf32> {jax.buffer_donor = true},
                              %t: tuple<tensor<3xi32>, tuple<tensor<i32>, tensor<2xf32>>>)
        -> (tensor<2xf32>, tuple<tuple<tensor<2xf32>, tensor<3xi32>>, tensor<i32>>, tensor<i32> {jax.a = 1 : i32}) {
      %a = stablehlo.get_tuple_element %t[0] : (tuple<tensor<3xi32>, tuple<tensor<i32>, tensor<2xf32>>>)
        -> tensor<3xi32>
      %u = stablehlo.get_tuple_element %t[1] : (tuple<tensor<3xi32>, tuple<tensor<i32>, tensor<2xf32>>>)
        -> tuple<tensor<i32>, tensor<2xf32>>
      %n = stablehlo.get_tuple_element %u[0] : (tuple<tensor<i32>, tensor<2xf32>>) -> tensor<i32>
      %y = stablehlo.get_tuple_element %u[1] : (tuple<tensor<i32>, tensor<2xf32>>) -> tensor<2xf32>
      %s = stablehlo.add %x, %y : tensor<2xf32>
      %0 = stablehlo.tuple %y, %a : tuple<tensor<2xf32>, tensor<3xi32>>
      %1 = stablehlo.tuple %0, %n : tuple<tuple<tensor<2xf32>, tensor<3xi32>>, tensor<i32>>
      return %s, %1, %n : tensor<2xf32>, tuple<tuple<tensor<2xf32>, tensor<3xi32>>, tensor<i32>>, tensor<i32>
    }"""
    arguments = np.float32([1, 2]), np.int32([3, 4, 5]), np.int32(6), np.float32([7, 8])
    expected = [[8, 10], [7, 8], [3, 4, 5], 6, 6]
    with pjrt.client("reference") as judge:
        for device in (client, judge):
            executable = device.compile(text)
            assert [spec.shape for spec in executable.parameter_specs] == [(2,), (3,), (), (2,)]
            assert [np.asarray(result).tolist() for result in executable(*arguments)] == expected
    (result,) = client.compile(
        "func.func @main(%t: tuple<tensor<f32>>) -> tuple<tensor<f32>> { return %t : tuple<tensor<f32>> }"
    )(np.float32(1))
    assert float(np.asarray(result)) == 1


def test_messages_of_xla_without_its_own_words(client: pjrt.Client) -> None:
    """The number of an unknown size, which the trial's result has, the names of passes, and the notes of MLIR."""
    cast = """func.func @main(%x: tensor<9xf32>) -> tensor<?x9xui32> {
      %0 = stablehlo.bitcast_convert %x : (tensor<9xf32>) -> tensor<?x9xui32>
      return %0 : tensor<?x9xui32> }"""
    with pytest.raises(pjrt.UnimplementedError, match="has a size that is not known, and XLA cannot find it out"):
        client.compile(cast)
    layout = """func.func @main(%x: tensor<4x2xf32> {mhlo.layout_mode = "{0,0}"}) -> tensor<4x2xf32> {
      return %x : tensor<4x2xf32> }"""
    with pytest.raises(pjrt.InvalidArgumentError, match=r"^INVALID_ARGUMENT: layout minor_to_major .* f32\[4,2\]$"):
        client.compile(layout)
    arith = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      %0 = arith.addf %x, %x : tensor<4xf32>
      return %0 : tensor<4xf32> }"""
    with pytest.raises(pjrt.InvalidArgumentError, match=r"line 2, column 12: 'arith.addf' op unsupported op [^\n]*$"):
        client.compile(arith)


@pytest.mark.parametrize(
    ("call", "signature", "result"),
    [
        ("dynamic_iota %n, dim = 0", "(tensor<1xi32>)", "tensor<?xi32>"),
        ("dynamic_reshape %x, %n", "(tensor<6xf32>, tensor<1xi32>)", "tensor<?xf32>"),
        ("real_dynamic_slice %x, %n, %n, %n", "(tensor<6xf32>" + ", tensor<1xi32>" * 3 + ")", "tensor<?xf32>"),
    ],
)
def test_sizes_that_the_program_computes_are_unimplemented(
    client: pjrt.Client, call: str, signature: str, result: str
) -> None:
    text = f"""func.func @main(%x: tensor<6xf32>, %n: tensor<1xi32>) -> {result} {{
      %0 = stablehlo.{call} : {signature} -> {result}
      return %0 : {result} }}"""
    with pytest.raises(
        pjrt.UnimplementedError, match=rf"program: line 2, column \d+: stablehlo.{call.split()[0]}: XLA must"
    ):
        client.compile(text)


def test_a_failure_without_a_reason_has_advice() -> None:
    """XLA of jaxlib 0.12 gives it for comparisons of complex constants."""
    error = compilation._explained(RuntimeError("UNKNOWN: Unknown MLIR failure"))
    assert error.message.endswith("program: XLA's compiler gives up and states no reason; run it on 'reference'")


@pytest.mark.parametrize("type_", ["memref<4xf32>", "tensor<*xf32>", "tensor<4xi7>"])
def test_a_type_that_no_device_has_is_named(client: pjrt.Client, type_: str) -> None:
    with pytest.raises(
        pjrt.UnimplementedError, match="expected ranked tensors of StableHLO's element types"
    ) as refused:
        client.compile(f"func.func @main(%x: {type_}) -> {type_} {{ return %x : {type_} }}")
    assert f"found {type_} (<program>:1:" in str(refused.value)


@pytest.mark.parametrize("version", [1, 4])
def test_a_custom_call_that_is_unknown_comes_with_advice(client: pjrt.Client, version: int) -> None:
    with pytest.raises(pjrt.NotFoundError, match=r"nowhere .*: give the client a function for it with register_ffi_ha"):
        client.compile(
            "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { %0 = stablehlo.custom_call @nowhere(%x) "
            f"{{api_version = {version} : i32}} : (tensor<4xf32>) -> tensor<4xf32> return %0 : tensor<4xf32> }}"
        )
