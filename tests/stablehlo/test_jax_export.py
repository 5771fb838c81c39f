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
from pjrt.stablehlo import JaxExport, read_jax_export
from pjrt.stablehlo.shardings.sharding import Sharding

DATA = Path(__file__).parent / "data"
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


def test_derivatives() -> None:
    whole = export.export(jax.jit(lambda x, n: jnp.sin(x) * n))(spec(3), spec(3, dtype=np.int32))
    code = whole.serialize(vjp_order=2)
    found = read_jax_export(code)
    assert found.vjp is not None
    assert found.vjp.vjp is not None
    assert found.vjp.vjp.vjp is None
    check(found, whole)
    assert [str(result) for result in found.vjp.results] == ["f32[3]", "i1[3]"]
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
    found, expected = exported(lambda a, b: a @ b, spec(16, 8, sharding=cut), spec(8, 2, sharding=column))
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


def test_newer_and_older_versions_are_refused_with_both() -> None:
    code = bytearray(export.export(jax.jit(jnp.sin))(spec(3)).serialize())
    with pytest.raises(InvalidArgumentError, match="too new: expected a serialization version from 1 to 11, found 12"):
        read_jax_export(_with_number(code, 0, 12))
    with pytest.raises(InvalidArgumentError, match="too new: expected a calling convention from 6 to 10, found 11"):
        stablehlo.read(_with_number(code, 14, 11))
    with pytest.raises(InvalidArgumentError, match="too old: expected a calling convention from 6 to 10, found 4"):
        read_jax_export(_with_number(code, 14, 4))


def _with_number(code: bytearray, slot: int, number: int) -> bytes:
    """Return the file with another 16-bit number in a field of the root table."""
    root = int.from_bytes(code[:4], "little")
    vtable = root - int.from_bytes(code[root : root + 4], "little", signed=True)
    at = root + int.from_bytes(code[vtable + 4 + 2 * slot :][:2], "little")
    return bytes(code[:at] + number.to_bytes(2, "little") + code[at + 2 :])


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


@pytest.fixture(scope="module")
def sound() -> list[bytes]:
    """Files with everything that a file can have."""
    (b,) = export.symbolic_shape("b")
    nested = export.export(jax.jit(lambda s, x, *, q: ({"y": x * q + s["w"]}, [Point(x, None)])))
    several = export.export(jax.jit(lambda x: x + 1), platforms=("cpu", "tpu"))
    derivative = export.export(jax.jit(jnp.sin))(spec(3)).serialize(vjp_order=2)
    whole = [nested({"w": spec(4, 8)}, spec(4, 8), q=spec()).serialize(), several(spec(b, 3)).serialize(), derivative]
    return [bytes(code) for code in whole] + [file.read_bytes() for file in sorted(DATA.glob("*.export"))]


def test_damage_is_an_error(sound: list[bytes]) -> None:
    draw = random.Random(0)
    refused = 0
    for _ in range(3000):
        try:
            read_all(damaged(draw.choice(sound), draw))
        except (DataLossError, InvalidArgumentError):
            refused += 1
    assert refused > 1000


@settings(deadline=None, max_examples=200)
@given(at=st.integers(0, 4000), content=st.binary(min_size=1, max_size=8), which=st.integers(0, 10))
def test_any_bytes_in_a_file_are_read_or_refused(sound: list[bytes], at: int, content: bytes, which: int) -> None:
    code = sound[which]
    at = min(at, len(code))
    with contextlib.suppress(DataLossError, InvalidArgumentError):
        read_all(code[:at] + content + code[at + len(content) :])


def test_each_truncated_file_is_refused(sound: list[bytes]) -> None:
    for code in sound:
        for size in (*range(200), *range(200, len(code) - 1, 97)):
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
    builder = flatbuffers.Builder(0)

    def vector(places: list[int]) -> int:
        builder.StartVector(4, len(places), 4)
        for place in reversed(places):
            builder.PrependUOffsetTRelative(place)
        return builder.EndVector()

    def table(numbers: dict[int, int], places: dict[int, int]) -> int:
        builder.StartObject(27)
        for slot, number in numbers.items():
            builder.PrependUint16Slot(slot, number, 0)
        for slot, place in places.items():
            builder.PrependUOffsetTRelativeSlot(slot, place, 0)
        return builder.EndObject()

    node = {kind: lambda children, kind=kind: table({0: kind}, {1: vector(children)}) for kind in (2, 4)}
    inputs = node[2]([node[2]([]), node[4]([])])
    leaf = table({0: 0}, {})
    shape = vector([])
    result = table({2: 10}, {1: shape})
    places = {2: inputs, 4: leaf, 5: vector([result]), 9: vector([builder.CreateString("cpu")])}
    places |= {1: builder.CreateString("f"), 13: builder.CreateByteVector(program), 26: builder.CreateString("0.11.0")}
    builder.Finish(table({0: 1, 6: 4, 14: 8}, places))
    found = read_jax_export(builder.Output())
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


@pytest.mark.parametrize("release", RELEASES)
def test_files_of_all_serialization_versions(release: str) -> None:
    found = read_jax_export(DATA / f"jax_{release}.export")
    assert found.serialization_version == RELEASES[release]
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
