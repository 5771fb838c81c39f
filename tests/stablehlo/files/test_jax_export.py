"""Files of ``jax.export``: what is read from them is what JAX has."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flatbuffers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import export
from jax._src import core, effects
from jax._src.interpreters import mlir
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from pjrt import DataLossError, ElementType, InvalidArgumentError, NotFoundError, UnimplementedError, stablehlo
from pjrt.models import ModelFile
from pjrt.stablehlo import JaxExport, read_jax_export
from pjrt.stablehlo.ir.sharding import Sharding

DATA = Path(__file__).parents[1] / "data"
Point = collections.namedtuple("Point", "x y")
export.register_namedtuple_serialization(Point, serialized_name="test_jax_export.Point")


def exported(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[JaxExport, export.Exported]:
    """Return what is read from the file, and what JAX has."""
    options = {key: kwargs.pop(key) for key in ("platforms", "disabled_checks") if key in kwargs}
    whole = export.export(jax.jit(function, keep_unused=False), **options)(*args, **kwargs)
    return read_jax_export(whole.serialize()), whole


def spec(*shape: Any, dtype: Any = np.float32, **kwargs: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, **kwargs)


def check(found: JaxExport, expected: export.Exported) -> None:
    """Check everything that both sides can spell."""
    assert found.function_name == expected.fun_name
    assert found.program.code == expected.mlir_module_serialized
    assert found.kept_arguments == expected.module_kept_var_idx
    assert found.num_devices == expected.nr_devices
    assert found.platforms == expected.platforms
    assert found.calling_convention_version == expected.calling_convention_version
    assert found.uses_global_constants == expected.uses_global_constants
    for tree, native in ((found.input_tree, expected.in_tree), (found.output_tree, expected.out_tree)):
        value = native.unflatten(list(range(native.num_leaves)))
        assert tree.paths() == tuple(
            jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(value)[0]
        )
        assert tree.flatten(value) == list(range(native.num_leaves))
    for arrays, avals in ((found.arguments, expected.in_avals), (found.results, expected.out_avals)):
        assert [[str(size) for size in array.shape] for array in arrays] == [list(map(str, a.shape)) for a in avals]
        assert [array.element_type for array in arrays] == [ElementType.of(aval.dtype) for aval in avals]


def test_nested_arguments_and_results() -> None:
    def step(state: Any, x: Any, *, scale: Any) -> Any:
        return {"y": x * scale + state["w"], "n": [(state["b"],), None]}, Point(x, {})

    state = {"w": spec(4, 8), "b": spec(dtype=np.int32), "list": [spec(2), (spec(3), None)]}
    found, expected = exported(step, state, spec(4, 8), scale=spec())
    check(found, expected)
    assert str(found.input_tree) == "(({'b': *, 'list': [*, (*, None)], 'w': *}, *), {'scale': *})"
    assert str(found.output_tree) == "({'n': [(*,), None], 'y': *}, test_jax_export.Point(x=*, y={}))"
    assert found.kept_arguments == (0, 3, 4, 5)
    assert (found.takes_platform_index, found.num_tokens, found.num_leading_arguments) == (False, 0, 0)


def test_ordered_dictionaries_keep_their_order() -> None:
    argument = collections.OrderedDict((("z", spec(2)), ("a", spec(3))))
    found, expected = exported(lambda d: d["z"], argument)
    check(found, expected)
    assert found.input_tree.paths() == ("[0][0]['z']", "[0][0]['a']")


def test_symbolic_sizes_and_several_platforms() -> None:
    b, k2 = export.symbolic_shape("b, 2*k + 1", constraints=["b >= 4"])
    found, expected = exported(lambda x: x + 1, spec(b, k2, 3), platforms=("cpu", "tpu", "cuda"))
    check(found, expected)
    assert found.arguments[0].shape == ("b", "2*k + 1", 3)
    assert found.symbols == ("b", "k")
    assert found.uses_global_constants
    assert not found.arguments[0].is_static
    assert (found.takes_platform_index, found.num_leading_arguments) == (True, 1)
    assert [found.platform_index(name) for name in ("cpu", "TPU", "gpu")] == [0, 1, 2]
    with pytest.raises(InvalidArgumentError, match="exported for cpu, tpu, cuda, not for rocm"):
        found.platform_index("rocm")


DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "int4", "uint4"),
    *("float16", "float32", "float64", "bfloat16", "complex64", "complex128"),
    *("float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e4m3"),
    *("float8_e3m4", "float8_e8m0fnu", "float4_e2m1fn"),
]


def test_all_element_types() -> None:
    with jax.enable_x64(True):
        found, expected = exported(lambda *arrays: arrays, *(spec(2, dtype=jnp.dtype(name)) for name in DTYPES))
    check(found, expected)
    assert [argument.element_type.dtype for argument in found.arguments] == [jnp.dtype(name) for name in DTYPES]


def test_element_types_that_programs_do_not_have() -> None:
    found, _ = exported(lambda k: k, jax.eval_shape(lambda: jax.random.key(0)))
    key = found.arguments[0]
    assert (key.element_type, key.shape, key.jax_dtype) == (ElementType.U32, (2,), "key<fry>")
    tensor = stablehlo.signature(found.program).arguments[0]
    assert (tensor.element_type, tensor.shape) == (key.element_type, key.shape)


@pytest.mark.parametrize("constants", [3, 1 << 16])
def test_derivatives(tmp_path: Path, constants: int) -> None:
    """The offsets of the fields of the root are those of its derivative, too, and may lie far behind the root."""
    weights = np.arange(constants, dtype=np.float32)
    whole = export.export(jax.jit(lambda x, n: jnp.sin(x * weights) * n))(
        spec(constants), spec(constants, dtype=np.int32)
    )
    code = bytes(whole.serialize(vjp_order=2))
    path = tmp_path / "model"
    path.write_bytes(code)
    found = read_jax_export(code)
    assert stablehlo.read(code) == stablehlo.read_file(path) == found.program
    assert ModelFile.read(path).contents == found
    assert found.vjp is not None
    assert found.vjp.vjp is not None
    assert found.vjp.vjp.vjp is None
    check(found, whole)
    assert [str(result) for result in found.vjp.results] == [f"f32[{constants}]", f"i1[{constants}]"]
    assert found.vjp.results[1].jax_dtype == "float0"
    assert found.vjp.program.code == export.deserialize(code).vjp().mlir_module_serialized


class OrderedEffect(effects.Effect):
    """An effect that happens in order. (JAX exports none of its own: it has no way to save callbacks of the host.)"""

    __str__ = lambda self: "Ordered"  # noqa: E731
    __eq__ = lambda self, other: isinstance(other, OrderedEffect)  # noqa: E731
    __hash__ = lambda self: 1  # noqa: E731


effects.lowerable_effects.add_type(OrderedEffect)
effects.ordered_effects.add_type(OrderedEffect)
with_effect = core.Primitive("with_effect")
with_effect.def_effectful_abstract_eval(lambda x: (x, {OrderedEffect()}))


def _lower_with_effect(context: Any, x: Any) -> Any:
    tokens = context.tokens_in
    context.set_tokens_out(mlir.TokenSet({effect: tokens.get(effect) for effect in tokens.effects()}))
    return [x]


mlir.register_lowering(with_effect, _lower_with_effect)


def test_ordered_effects_are_tokens() -> None:
    found, expected = exported(lambda x, unused: with_effect.bind(x) + 1, spec(3), spec(2), platforms=("cpu", "tpu"))
    check(found, expected)
    assert found.ordered_effects == (f"{__name__}.OrderedEffect",)
    assert (found.num_tokens, found.num_leading_arguments, found.kept_arguments) == (1, 2, (0,))
    signature = stablehlo.signature(found.program)
    assert [str(value.type) for value in signature.arguments] == ["tensor<i32>", "!stablehlo.token", "tensor<3xf32>"]
    assert [str(value.type) for value in signature.results] == ["!stablehlo.token", "tensor<3xf32>"]


def test_donated_arguments_are_in_the_program() -> None:
    whole = export.export(jax.jit(lambda cache, x: (cache + x, x.sum()), donate_argnums=0))(spec(3), spec(3))
    signature = stablehlo.signature(read_jax_export(whole.serialize()).program, trusted=True)
    assert [argument.aliases_output for argument in signature.arguments] == [0, None]


def test_disabled_checks() -> None:
    call = jax.ffi.ffi_call("my_target", spec(3))
    checks = [export.DisabledSafetyCheck.custom_call("my_target"), export.DisabledSafetyCheck.platform()]
    found, expected = exported(call, spec(3), disabled_checks=checks)
    check(found, expected)
    assert found.disabled_checks == ("custom_call:my_target", "platform")


def test_shardings_over_an_abstract_mesh() -> None:
    mesh = AbstractMesh((2, 4), ("x", "y"))
    cut = NamedSharding(mesh, PartitionSpec(("y", "x"), None))
    column = NamedSharding(mesh, PartitionSpec(None, "x"))
    found, expected = exported(lambda a, b: (a, b), spec(16, 8, sharding=cut), spec(8, 2, sharding=column))
    check(found, expected)
    assert found.num_devices == 8
    first = found.arguments[0].sharding
    assert first is not None
    assert (first.mesh, first.spec) == ((("x", 2), ("y", 4)), (("y", "x"), ()))
    assert str(first) == "P(('y', 'x'), None) over x=2, y=4"
    for argument, sharding in zip(found.arguments, (cut, column), strict=True):
        tiling = argument.tiling()
        assert tiling is not None
        native = Sharding.from_proto(sharding._to_xla_hlo_sharding(2).to_proto().SerializeToString())
        assert tiling.to_text() == native.to_text()
        assert tiling.shard_shape(argument.shape) == sharding.shard_shape(argument.shape)


def test_the_program_is_read_without_asking_for_the_format(tmp_path: Path) -> None:
    found, expected = exported(jnp.sin, spec(3))
    path = tmp_path / "model.bin"
    path.write_bytes(expected.serialize())
    for program in (stablehlo.read_file(path), stablehlo.read(path), stablehlo.read(expected.serialize())):
        assert program == found.program
    assert read_jax_export(path) == found
    assert stablehlo.inspect(found.program).results[0].name == "result"


def test_a_large_file_is_recognized(tmp_path: Path) -> None:
    weights = np.arange(1 << 16, dtype=np.float32)
    found, expected = exported(lambda x: x + weights, spec(1 << 16))
    path = tmp_path / "large"
    path.write_bytes(expected.serialize())
    assert path.stat().st_size > 1 << 18
    assert stablehlo.read_file(path) == found.program


def test_files_that_are_missing_or_something_else(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="nothing here"):
        read_jax_export(tmp_path / "nothing here")
    path = tmp_path / "text"
    path.write_text("module {}")
    with pytest.raises(DataLossError, match="text: "):
        read_jax_export(path)


# Versions. A later serialization adds fields, and a reader of flatbuffers passes over those that it does not know.

LATER = r"newer than this pjrt.* from 1 to 12, found 13"


def test_older_versions_are_refused_with_both() -> None:
    code = sine()
    with pytest.raises(InvalidArgumentError, match="too old: expected a serialization version from 1 to 12, found 0"):
        read_jax_export(with_number(code, 0, 0))
    with pytest.raises(InvalidArgumentError, match="too old: expected a calling convention from 6 to 10, found 4"):
        read_jax_export(with_number(code, 14, 4))


@pytest.mark.parametrize("serialization", [12, 13, 500])
def test_a_later_calling_convention_is_refused_with_both(serialization: int) -> None:
    """It changes what the arguments of the program mean."""
    code = with_number(with_number(sine(), 14, 11), 0, serialization)
    with pytest.raises(InvalidArgumentError, match="too new: expected a calling convention from 6 to 10, found 11"):
        stablehlo.read(code)


@pytest.mark.parametrize("version", [13, 65535])
def test_a_later_serialization_is_read_with_one_warning(tmp_path: Path, version: int) -> None:
    code = sine()
    path = tmp_path / "later.export"
    path.write_bytes(with_number(code, 0, version))
    expected = dataclasses.replace(read_jax_export(code), serialization_version=version)
    for read in (read_jax_export, lambda path: ModelFile.read(path).contents):
        with pytest.warns(UserWarning, match=f"newer than this pjrt.*from 1 to 12, found {version}") as warned:
            assert read(path) == expected
        assert [str(each.message).startswith(f"{path}: the jax.export file") for each in warned] == [True]
        assert "\n" not in str(warned[0].message)
    with pytest.warns(UserWarning, match=f"found {version}") as warned:
        assert stablehlo.read(path.read_bytes()) == expected.program
    assert len(warned) == 1


def test_what_only_older_readers_need_may_be_left_out() -> None:
    """JAX writes types, shardings and meshes one by one, and again as places among unique ones. It wants to stop."""
    mesh = AbstractMesh((2, 4), ("x", "y"))
    cut = NamedSharding(mesh, PartitionSpec("y", None))
    code = bytes(export.export(jax.jit(lambda x: x * 2))(spec(8, 3, sharding=cut)).serialize())
    fewer = with_number(code, 0, 13)
    for slot in (3, 5, 7, 8):
        fewer = without(fewer, slot)
    with pytest.warns(UserWarning, match=LATER):
        found = read_jax_export(fewer)
    assert dataclasses.replace(found, serialization_version=0) == dataclasses.replace(
        read_jax_export(code), serialization_version=0
    )


@pytest.mark.parametrize(
    ("slots", "name"),
    [
        ((2,), "structure of the arguments"),
        ((4,), "structure of the results"),
        ((3, 22), "types of the arguments"),
        ((5, 23), "types of the results"),
        ((9,), "platforms"),
        ((10,), "ordered effects"),
        ((13,), "program"),
        ((14,), "calling convention"),
        ((15,), "kept arguments"),
        ((6, 18), "number of devices"),
    ],
)
@pytest.mark.parametrize("read", [read_jax_export, stablehlo.read])
def test_what_a_later_serialization_lacks_is_named(
    slots: tuple[int, ...], name: str, read: Callable[[bytes], Any]
) -> None:
    code = with_number(sine(), 0, 13)
    for slot in slots:
        code = without(code, slot)
    with pytest.raises(InvalidArgumentError, match=rf"too new: root has no {name}; .* from 1 to 12, found 13.*upgrade"):
        read(code)


ODD = [
    ({"node": 9}, r"the structure of the arguments\[0\]\[0\] .* has a node of the unknown kind 9"),
    ({"array": 7}, r"array type\[0\] is of kind 7, not an array"),
    ({"element_type": 77}, r"array type\[0\] .* an element type with the unknown number 77"),
    ({"memory_space": 8}, r"array type\[0\] has an unknown memory space, number 8"),
    ({"sharding": 5}, r"sharding\[0\] has an unknown kind, number 5"),
    ({"sharding": 2, "named": 0}, r"sharding\[0\] has no named sharding"),
    ({"sharding_beyond": 1, "named": 0}, r"sharding\[0\] has a sharding of an unknown kind"),
    ({"axes_beyond": 1}, r"sharding\[0\] has unknown fields of axes"),
    ({"axis_type": 6}, r"mesh of sharding\[0\] has an unknown type of axes, number 6"),
    ({"mesh": 0}, r"sharding\[0\] has no mesh"),
]


@pytest.mark.parametrize(("odd", "message"), ODD)
def test_what_a_version_states_in_an_unknown_way_is_named(odd: dict[str, int], message: str) -> None:
    with pytest.raises((DataLossError, InvalidArgumentError), match=message):
        read_jax_export(handmade(12, **odd))
    with pytest.raises(InvalidArgumentError, match=message) as raised:
        read_jax_export(handmade(13, **odd))
    assert "upgrade pjrt" in str(raised.value)
    assert "corrupt" not in str(raised.value)


@pytest.mark.parametrize("parts", [{}, {"sharding": 1}, {"sharding": 2}, {"device": 1}])
def test_shardings_of_the_versions_6_to_9(parts: dict[str, int]) -> None:
    """They state each sharding whole; 6 to 8 also its kind, 8 and 9 the kind of device of the mesh."""
    found = read_jax_export(handmade(3, **parts))
    assert str(found.arguments[0].sharding) == "P('x') over x=2"
    assert (found.num_devices, str(found.arguments[0]), found.jax_version) == (2, "f32[8]", "")


def test_unknown_fields_are_passed_over() -> None:
    expected = read_jax_export(handmade(12))
    assert str(expected.arguments[0].sharding) == "P('x') over x=2"
    with pytest.warns(UserWarning, match=LATER):
        found = read_jax_export(handmade(13, beyond=1))
    assert dataclasses.replace(found, serialization_version=12) == expected


@pytest.mark.parametrize("inner", [12, 13])
def test_a_derivative_of_a_later_serialization(inner: int) -> None:
    """The warning is about the file: there is one, be the derivative or the function of the later version."""
    code = bytes(export.export(jax.jit(jnp.sin))(spec(3)).serialize(vjp_order=1))
    at = root_of(code) + offset_of(code, root_of(code), 17)
    derivative = at + int.from_bytes(code[at : at + 4], "little")
    code = with_number(with_number(code, 0, 25 - inner), 0, inner, derivative)
    with pytest.warns(UserWarning, match=LATER) as warned:
        found = read_jax_export(code)
    assert len(warned) == 1
    assert found.vjp is not None
    assert (found.serialization_version, found.vjp.serialization_version) == (25 - inner, inner)
    with pytest.raises(InvalidArgumentError, match="too new: expected a calling convention from 6 to 10, found 11"):
        read_jax_export(with_number(code, 14, 11, derivative))
    with pytest.raises(InvalidArgumentError, match=r"derivative has no program; .* found 13"):
        read_jax_export(without(with_number(code, 0, 13, derivative), 13, derivative))


def test_a_later_program_that_is_not_that_of_the_file() -> None:
    found, _ = exported(lambda x: x + 1, spec(3))
    entry = stablehlo.parse(found.program).entry.type
    later = dataclasses.replace(found, serialization_version=13, kept_arguments=())
    with pytest.raises(InvalidArgumentError, match=r"too new: it states 0 arguments of the program, .* has 1; .* 13"):
        later.check(entry)


@pytest.mark.parametrize(
    ("stated", "shown"),
    [
        (b"", ""),
        (b"0.13.0.dev20261101+ab12", "JAX 0.13.0.dev20261101+ab12"),
        (b"0.13\n\x1b[31mred", r"JAX '0.13\n\x1b[31mred'"),
        (b"9" * 1000, f"JAX {'9' * 40!r}"),
    ],
)
def test_the_version_of_jax_is_shown_on_a_short_line(stated: bytes, shown: str) -> None:
    found = read_jax_export(handmade(12, jax_version=stated))
    assert (found.jax_version, found.writer()) == (stated.decode(), shown)
    with pytest.warns(UserWarning, match=LATER) as warned:
        read_jax_export(handmade(13, jax_version=stated))
    assert (f"written by {shown}; upgrade" in str(warned[0].message)) == bool(shown)
    assert str(warned[0].message).isprintable()


def test_a_version_of_jax_that_is_no_text_is_damage() -> None:
    with pytest.raises(DataLossError, match=r"corrupt jax\.export file: field 26 of root is not UTF-8"):
        read_jax_export(handmade(12, jax_version=b"\xff\xfe"))


def test_a_file_with_the_version_of_jax_states_that_of_the_serialization() -> None:
    found = read_jax_export(sine())
    assert (found.jax_version, found.serialization_version) in ((jax.__version__, 12), ("", 3))


def sine() -> bytes:
    return bytes(export.export(jax.jit(jnp.sin))(spec(3)).serialize())


def root_of(code: bytes) -> int:
    return int.from_bytes(code[:4], "little")


def place_of(code: bytes, table: int, slot: int) -> int:
    """Return where the offset of a table's field stands."""
    return table - int.from_bytes(code[table : table + 4], "little", signed=True) + 4 + 2 * slot


def offset_of(code: bytes, table: int, slot: int) -> int:
    place = place_of(code, table, slot)
    return int.from_bytes(code[place : place + 2], "little")


def with_number(code: bytes, slot: int, number: int, table: int | None = None) -> bytes:
    """Return the file with another 16-bit number in a field of a table, by default the root."""
    table = root_of(code) if table is None else table
    at = table + offset_of(code, table, slot)
    return code[:at] + number.to_bytes(2, "little") + code[at + 2 :]


def without(code: bytes, slot: int, table: int | None = None) -> bytes:
    """Return the file without a field of a table, by default the root."""
    place = place_of(code, root_of(code) if table is None else table, slot)
    return code[:place] + bytes(2) + code[place + 2 :]


class Tables:
    """Writes a flatbuffer table by table, with numbers in any field."""

    def __init__(self) -> None:
        self.builder = flatbuffers.Builder(0)

    def text(self, text: str | bytes) -> int:
        return self.builder.CreateString(text)

    def vector(self, places: list[int]) -> int:
        self.builder.StartVector(4, len(places), 4)
        for place in reversed(places):
            self.builder.PrependUOffsetTRelative(place)
        return self.builder.EndVector()

    def table(self, numbers: dict[int, int], places: dict[int, int] | None = None) -> int:
        self.builder.StartObject(30)
        for slot, number in numbers.items():
            self.builder.PrependUint16Slot(slot, number, 0)
        for slot, place in (places or {}).items():
            self.builder.PrependUOffsetTRelativeSlot(slot, place, 0)
        return self.builder.EndObject()

    def node(self, kind: int, children: list[int]) -> int:
        return self.table({0: kind}, {1: self.vector(children)})

    def finish(self, root: int) -> bytes:
        self.builder.Finish(root)
        return bytes(self.builder.Output())


def handmade(version: int, *, jax_version: bytes = b"", **odd: int) -> bytes:
    """Return a file of an argument that two devices share, and of no result. Each part of it may be odd."""
    made = Tables()
    leaf = made.table({0: odd.get("node", 0)})
    inputs = made.node(2, [made.node(2, [leaf]), made.node(4, [])])
    argument = made.table(
        {0: odd.get("array", 0), 2: odd.get("element_type", 10), 3: odd.get("memory_space", 1)},
        {1: made.vector([made.text("8")])},
    )
    names = made.vector([made.text("x")])
    sizes = made.builder.CreateNumpyVector(np.array([2], np.uint32))
    types = made.builder.CreateNumpyVector(np.array([odd.get("axis_type", 1)], np.int8))
    device = {3: made.table({}, {0: made.text("TPU v5e")})} if "device" in odd else {}
    mesh = made.table({}, {0: sizes, 1: names, 2: types, **device})
    axes = made.table({1: 1} if "axes_beyond" in odd else {}, {0: names})
    spec_ = made.table({}, {0: made.vector([axes])})
    named = made.table({}, {1: spec_, **({0: mesh} if odd.get("mesh", 1) else {})})
    kind = {0: odd.get("sharding", 0), 3: odd.get("sharding_beyond", 0)}
    sharding = made.table(kind, {2: named} if odd.get("named", 1) else {})
    places = {1: made.text("f"), 2: inputs, 3: made.vector([argument]), 4: made.node(2, []), 5: made.vector([])}
    places |= {7: made.vector([sharding]), 9: made.vector([made.text("cpu")]), 10: made.vector([])}
    places |= {13: made.builder.CreateByteVector(PROGRAM), 26: made.text(jax_version)}
    places[15] = made.builder.CreateNumpyVector(np.array([0], np.uint16))
    return made.finish(made.table({0: version, 6: 2, 14: 10, 28: odd.get("beyond", 0)}, places))


PROGRAM = b"func.func @main(%x: tensor<8xf32>) { return }"


def test_a_program_that_is_not_that_of_the_file() -> None:
    found, _ = exported(lambda x, n: (x + 1, n), spec(3), spec(dtype=np.int32), platforms=("cpu", "tpu"))
    entry = stablehlo.parse(found.program).entry.type
    found.check(entry)
    with pytest.raises(DataLossError, match="states 2 arguments of the program, which has 3"):
        dataclasses.replace(found, kept_arguments=(0,)).check(entry)
    with pytest.raises(DataLossError, match="states 1 results of the program, which has 2"):
        dataclasses.replace(found, results=found.results[:1]).check(entry)
    swapped = dataclasses.replace(found, results=found.results[::-1])
    with pytest.raises(DataLossError, match=r"results .* number 0 as i32\[\], the program as tensor<3xf32>"):
        swapped.check(entry)


# Damaged files. All that a flatbuffer states is an offset or a length, and each of them may be wrong.


def read_all(code: bytes) -> None:
    """Read a file, and everything in it."""
    found = read_jax_export(code)
    for array in (*found.arguments, *found.results):
        try:
            array.tiling()
        except UnimplementedError:
            assert array.hlo_sharding
    assert len(found.input_tree.paths()) == len(found.arguments)
    assert len(found.output_tree.paths()) == len(found.results)
    assert isinstance(found.symbols, tuple)
    assert repr(found)


def damaged(code: bytes, draw: random.Random) -> bytes:
    """Return a file with some bits, numbers or offsets changed, or with a part cut out."""
    changed = bytearray(code)
    kind = draw.choice(("bit", "byte", "cut", "end", "short", "long", "long"))
    for _ in range(draw.choice((1, 1, 2, 10))):
        at = draw.randrange(len(changed)) if draw.random() < 0.2 else draw.randrange(min(len(changed), 1500))
        if kind == "bit":
            changed[at] ^= 1 << draw.randrange(8)
        elif kind == "byte":
            changed[at] = draw.randrange(256)
        elif kind == "cut":
            del changed[at : at + draw.randrange(1, 9)]
        elif kind == "end":
            return bytes(changed[:at])
        else:
            width = 2 if kind == "short" else 4
            at -= at % width
            number = draw.choice((0, 1, 4, draw.randrange(len(code)), 2 ** (8 * width - 1), 2 ** (8 * width) - 1))
            changed[at : at + width] = (number % 2 ** (8 * width)).to_bytes(width, "little")
    return bytes(changed)


ignoring_versions = pytest.mark.filterwarnings("ignore:.*newer than this pjrt:UserWarning")
"""Damage may look like a later version, in which what is unknown is passed over."""


@pytest.fixture(scope="module")
def sound() -> list[bytes]:
    """Files with everything that a file can have."""
    (b,) = export.symbolic_shape("b")
    nested = export.export(jax.jit(lambda s, x, *, q: ({"y": x * q + s["w"]}, [Point(x, None)])))
    several = export.export(jax.jit(lambda x: x + 1), platforms=("cpu", "tpu"))
    derivative = export.export(jax.jit(jnp.sin))(spec(3)).serialize(vjp_order=2)
    whole = [nested({"w": spec(4, 8)}, spec(4, 8), q=spec()).serialize(), several(spec(b, 3)).serialize(), derivative]
    return [bytes(code) for code in whole] + [file.read_bytes() for file in sorted(DATA.glob("*.export"))]


@ignoring_versions
def test_damage_is_an_error(sound: list[bytes]) -> None:
    draw = random.Random(0)
    refused = 0
    for _ in range(3000):
        try:
            read_all(damaged(draw.choice(sound), draw))
        except (DataLossError, InvalidArgumentError):
            refused += 1
    assert refused > 1000


@ignoring_versions
@settings(deadline=None, max_examples=200)
@given(at=st.integers(0, 4000), content=st.binary(min_size=1, max_size=8), which=st.integers(0, 10))
def test_any_bytes_in_a_file_are_read_or_refused(sound: list[bytes], at: int, content: bytes, which: int) -> None:
    code = sound[which]
    at = min(at, len(code))
    with contextlib.suppress(DataLossError, InvalidArgumentError):
        read_all(code[:at] + content + code[at + len(content) :])


def test_each_truncated_file_is_refused(sound: list[bytes]) -> None:
    for code in sound:
        for size in (*range(200), *range(200, len(code) - 4, 97)):  # the last bytes only fill up
            with pytest.raises((DataLossError, InvalidArgumentError)):
                read_jax_export(code[:size])


def test_a_small_file_cannot_spell_a_large_structure() -> None:
    """Each node has two children, which are the same next node: together they are 2**60 leaves."""
    builder = flatbuffers.Builder(0)
    builder.StartObject(1)
    node = builder.EndObject()
    for _ in range(60):
        builder.StartVector(4, 2, 4)
        builder.PrependUOffsetTRelative(node)
        builder.PrependUOffsetTRelative(node)
        children = builder.EndVector()
        builder.StartObject(2)
        builder.PrependInt8Slot(0, 2, 0)  # a tuple
        builder.PrependUOffsetTRelativeSlot(1, children, 0)
        node = builder.EndObject()
    builder.StartObject(16)
    builder.PrependUint16Slot(0, 3, 0)
    builder.PrependUint16Slot(14, 10, 0)
    builder.PrependUOffsetTRelativeSlot(2, node, 0)
    builder.Finish(builder.EndObject())
    with pytest.raises(DataLossError, match="shares its contents with others until they are more than the file has"):
        read_jax_export(builder.Output())


def test_a_file_with_the_fields_of_the_first_version_and_the_last() -> None:
    program = export.export(jax.jit(lambda: 1.0))().mlir_module_serialized
    made = Tables()
    inputs = made.node(2, [made.node(2, []), made.node(4, [])])
    result = made.table({2: 10}, {1: made.vector([])})
    places = {2: inputs, 4: made.table({}), 5: made.vector([result]), 9: made.vector([made.text("cpu")])}
    places |= {1: made.text("f"), 13: made.builder.CreateByteVector(program), 26: made.text("0.11.0")}
    found = read_jax_export(made.finish(made.table({0: 1, 6: 4, 14: 8}, places)))
    assert (found.serialization_version, found.calling_convention_version, found.jax_version) == (1, 8, "0.11.0")
    assert (found.num_devices, str(found.input_tree), found.arguments) == (4, "((), {})", ())
    assert [str(each) for each in found.results] == ["f32[]"]
    assert found.program.code == program
    assert dataclasses.replace(found, ordered_effects=("Printing",)).num_tokens == 0  # before calling convention 9


def test_neither_jax_nor_jaxlib_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(export.export(jax.jit(jnp.sin))(spec(3)).serialize())
    code = (
        "import sys; sys.modules['jax'] = sys.modules['jaxlib'] = None\n"
        "from pathlib import Path; from pjrt import stablehlo\n"
        "print(*stablehlo.read_jax_export(Path(sys.argv[1])).arguments, len(stablehlo.read_file(sys.argv[1])) > 100)"
    )
    ended = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.stderr) == ("f32[3] True\n", "")


RELEASES = {"0.4.24": 2, "0.4.30": 2, "0.5.0": 2, "0.6.2": 2, "0.8.2": 3, "0.9.0": 3, "0.10.0": 3, "0.10.2": 3}
RELEASES |= {"0.12.0.1": 12}


@pytest.mark.parametrize("release", RELEASES)
def test_files_of_all_serialization_versions(release: str) -> None:
    found = read_jax_export(DATA / f"jax_{release}.export")
    assert found.serialization_version == RELEASES[release]
    assert found.jax_version == (release if RELEASES[release] >= 12 else "")
    assert (found.function_name, found.num_devices, found.platforms) == ("step", 8, ("cpu", "tpu"))
    assert str(found.input_tree) == "(({'count': *, 'unused': *}, *, *), {})"
    assert str(found.output_tree) == "{'n': (*, None), 'y': *}"
    assert [str(argument) for argument in found.arguments] == ["i32[]", "bf16[3]", "f32[8,4]", "f32[]"]
    assert [str(result) for result in found.results] == ["i32[]", "f32[8,4]"]
    assert found.kept_arguments == (0, 2, 3)
    tiling = found.arguments[2].tiling()
    assert tiling is not None
    assert tiling.to_text() == "{devices=[4,2]0,4,1,5,2,6,3,7}"
    assert (found.arguments[2].sharding is None) == (found.arguments[2].hlo_sharding != b"")
    assert found.arguments[0].memory_space == ("" if RELEASES[release] == 2 else "device")
    signature = stablehlo.signature(found.program, trusted=True)
    assert [argument.shape for argument in signature.arguments] == [(), (), (8, 4), ()]


def test_files_of_old_and_new_releases_are_all_there() -> None:
    assert {f"jax_{release}.export" for release in RELEASES} == {file.name for file in DATA.glob("*.export")}
