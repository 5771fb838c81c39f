from __future__ import annotations

import threading
from typing import Any

import pytest

from pjrt import InvalidArgumentError, Program
from pjrt.stablehlo import (
    Encoding,
    Version,
    artifact_version,
    current_version,
    encoding_of,
    from_hlo,
    minimum_version,
    needed_version,
    parse,
    read,
    serialize,
    to_hlo,
    to_module,
    to_text,
)
from pjrt.stablehlo.encodings.hlo_proto import BYTES, fields
from pjrt.stablehlo.encodings.hlo_proto import parse_message as parse_proto
from pjrt.stablehlo.ir import mlir_module
from pjrt.stablehlo.reading import conversion


def program(body: str, arguments: str = "%x: tensor<4xf32>", result: str = "tensor<4xf32>") -> Program:
    return read(f"module {{\n  func.func @main({arguments}) -> {result} {{\n    {body}\n  }}\n}}")


ADD = program("%0 = stablehlo.add %x, %x : tensor<4xf32>\n return %0 : tensor<4xf32>")
NEW_TYPE = program("return %x : tensor<4xf8E8M0FNU>", "%x: tensor<4xf8E8M0FNU>", "tensor<4xf8E8M0FNU>")
COMPOSITE = read(
    "module { func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {\n"
    '%0 = stablehlo.composite "a.b" %x {decomposition = @d} : (tensor<4xf32>) -> tensor<4xf32>\n'
    "return %0 : tensor<4xf32> }\n"
    "func.func private @d(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> } }"
)
CHLO = program("%0 = chlo.erf %x : tensor<4xf32> -> tensor<4xf32>\n return %0 : tensor<4xf32>")
SHARDED = read(
    'module { sdy.mesh @mesh = <["i"=2]>\n'
    'func.func @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) -> tensor<4xf32> {\n'
    "return %x : tensor<4xf32> } }"
)


def test_every_encoding_gives_the_same_program(any_program: Program) -> None:
    converted = to_text(any_program)
    for name in ("stablehlo.dot", "stablehlo.tanh", "stablehlo.sort", "stablehlo.add"):
        assert name in converted


def test_text_has_locations_if_asked(text: Program) -> None:
    assert "model.py" not in to_text(text)
    assert '"model.py":7:3' in to_text(text, locations=True)


@pytest.mark.parametrize("version", ["0.9.0", "0.20.0", "1.0.0", "1.5.0", "1.13.0"])
def test_an_artifact_is_written_at_the_version_asked_for(any_program: Program, version: str) -> None:
    written = serialize(any_program, version)
    assert encoding_of(written) is Encoding.PORTABLE_ARTIFACT
    found = artifact_version(written)
    assert found is not None
    assert found <= Version.parse(version)
    assert "stablehlo.sort" in to_text(written)


@pytest.mark.parametrize("version", ["0.9.0", "1.0.0", "1.13.0"])
def test_the_versioned_dialect_is_read_without_the_name_of_its_producer(artifact: Program, version: str) -> None:
    code = serialize(artifact, version).code
    vhlo = mlir_module.parse(code.replace(f"StableHLO_v{version}".encode(), b"another tool", 1))
    for written in (mlir_module.write_bytecode(vhlo), mlir_module.write_text(vhlo, locations=False)):
        assert b"vhlo" in read(written).code
        assert to_text(written) == to_text(code)
        assert parse(written).entry.name == "main"


def test_an_artifact_that_is_old_enough_is_returned_as_it_is(artifact: Program) -> None:
    assert serialize(artifact, "1.0.0") is artifact
    assert serialize(artifact, (1, 99, 0)) is artifact
    older = serialize(artifact, Version(0, 9))
    assert artifact_version(older) == Version(0, 9)


def test_a_reader_newer_than_jaxlib_gets_jaxlibs_version() -> None:
    assert artifact_version(serialize(ADD, "99.0.0")) == current_version()


def test_a_version_below_the_minimum_is_refused_with_the_range() -> None:
    oldest, newest = minimum_version(), current_version()
    with pytest.raises(InvalidArgumentError, match=f"from {oldest} to {newest}.*found 0.1.0"):
        serialize(ADD, "0.1.0")


def test_what_a_version_cannot_hold_is_named() -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"StableHLO 1\.0\.0 cannot hold .* the type f8E8M0FNU, found in func\.func"
    ):
        serialize(NEW_TYPE, "1.0.0")
    with pytest.raises(
        InvalidArgumentError, match=r"0\.14\.0 cannot hold .* operation stablehlo\.composite at line 2, "
    ):
        serialize(COMPOSITE, "0.14.0")


@pytest.mark.parametrize(
    ("given", "needed"),
    [(ADD, "0.9.0"), (NEW_TYPE, "1.8.0"), (COMPOSITE, "0.19.0"), (CHLO, "0.9.0"), (SHARDED, "1.11.0")],
    ids=["add", "new type", "composite", "chlo", "sharded"],
)
def test_the_needed_version_is_the_oldest_that_can_hold_it(given: Program, needed: str) -> None:
    found = needed_version(given)
    assert found == Version.parse(needed)
    assert artifact_version(serialize(given, found)) == found
    if found > minimum_version():
        with pytest.raises(InvalidArgumentError, match="cannot hold"):
            serialize(given, Version(found.major, found.minor - 1))


@pytest.mark.parametrize("element", ["f4E2M1FN", "f6E2M3FN", "f6E3M2FN"])
def test_functions_of_types_without_infinity_are_written_out_with_wide_ones(element: str) -> None:
    text = program(
        f"%0 = chlo.atanh %x : tensor<4x{element}> -> tensor<4x{element}>\n"
        f"%1 = chlo.is_inf %0 : tensor<4x{element}> -> tensor<4xi1>\nreturn %1 : tensor<4xi1>",
        f"%x: tensor<4x{element}>",
        "tensor<4xi1>",
    )
    written = to_text(read(serialize(text, current_version())))
    lines = [line for line in written.splitlines() if element in line and "func.func" not in line]
    assert len(lines) == 3
    assert all("stablehlo.convert" in line for line in lines), written


def test_most_programs_are_written_once_to_find_their_version(monkeypatch: pytest.MonkeyPatch) -> None:
    written, write = [], mlir_module.write_artifact

    def count(module: Any, version: Version, **options: bool) -> bytes:
        written.append(str(version))
        return write(module, version, **options)

    monkeypatch.setattr(mlir_module, "write_artifact", count)
    needed_version(ADD)
    assert written == ["0.9.0"]
    written.clear()
    needed_version(COMPOSITE)  # without chlo in it, each version is tried once
    assert len(set(written)) == len(written)


def test_converting_leaves_the_module_as_it_was() -> None:
    module = to_module(ADD)
    before = to_text(ADD)
    assert conversion.oldest_version(module) == conversion.oldest_version(module) == minimum_version()
    with module as mlir:
        assert str(mlir) == before


def test_an_operation_of_a_newer_version_is_explained_in_a_program_of_many_calls() -> None:
    calls = " at ".join(f'callsite("call_{n}"("program.py":{n}:1)' for n in range(1, 40))
    here = f'loc("tanh"({calls} at "main"("program.py":40:1){")" * 40})'
    text = f"""func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {{
  %0 = stablehlo.tanh %a : tensor<4xf32> {here}
  return %0 : tensor<4xf32> }}"""
    newer = serialize(text, minimum_version()).code.replace(b"tanh_v1", b"tanh_v9")
    with pytest.raises(
        InvalidArgumentError, match=r"artifact: the operation vhlo\.tanh_v9 is of a newer StableHLO, .*: update jaxlib"
    ) as caught:
        to_module(Program(newer))
    assert "'vhlo.tanh_v9'" in caught.value.message
    assert '"tanh"("call_1"("program.py":1:1))' in caught.value.message
    assert "call_2" not in caught.value.message


def test_an_artifact_that_is_too_new_is_refused_with_both_versions(artifact: Program) -> None:
    newer = artifact.code.replace(b"v1.0.0", b"v9.7.5")
    assert to_text(Program(newer))  # nothing in it is unknown, so it can be read
    unknown = Program(newer.replace(b"tanh_v1", b"tank_v1"))
    with pytest.raises(InvalidArgumentError) as caught:
        to_module(unknown)
    assert "artifact: written by a newer StableHLO (v9.7.5; jaxlib " in caught.value.message
    assert f"reads {minimum_version()} to {current_version()}): update jaxlib, or export" in caught.value.message


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ("module {\n  func.func @main() {\n    foo.bar\n  }\n}", "line 3, column 5"),
        ("module {\n  func.func @main() {", "line 2"),
        ("func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %y : tensor<4xf32> }", "line 1, column 62"),
    ],
)
def test_text_that_does_not_parse_is_refused_with_the_place(wrong: str, place: str) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot read the MLIR text") as caught:
        to_module(read(wrong))
    assert place in caught.value.message


def test_hlo_and_back(text: Program) -> None:
    proto = to_hlo(text)
    assert proto.format == "hlo"
    outline = [(number, proto.code[begin:end]) for number, kind, begin, end in fields(proto.code) if kind == BYTES]
    assert (outline[0], [number for number, _ in outline].count(3)) == ((1, b"example"), 3)
    assert to_hlo(proto) == proto
    back = from_hlo(proto)
    assert encoding_of(back) is Encoding.BYTECODE
    assert from_hlo(back) is back
    assert parse(back).entry.type == parse(text).entry.type


def test_hlo_with_config_states_layout_and_counts(hlo: Program, hlo_with_config: Program) -> None:
    (_, _, begin, end), (_, _, config_begin, config_end) = fields(hlo_with_config.code)
    config = {n: (kind, a) for n, kind, a, _ in fields(hlo_with_config.code, config_begin, config_end)}
    assert config[4] == (0, 4)  # replica_count
    assert config[5] == (0, 2)  # num_partitions
    assert 1 in config  # entry_computation_layout
    assert to_hlo(hlo_with_config).code == hlo_with_config.code[begin:end]
    assert to_hlo(hlo_with_config, with_config=True) == hlo_with_config
    assert to_hlo(to_hlo(hlo, with_config=True)) == hlo


def test_a_tuple_result_is_one_tuple() -> None:
    one = to_hlo(ADD)
    tupled = to_hlo(ADD, tuple_result=True)
    (before,), (after,) = (parse_proto("HloModuleProto", made.code).computations for made in (one, tupled))
    assert len(after.instructions) == len(before.instructions) + 1


@pytest.mark.full
def test_what_only_hlo_has_becomes_stablehlo() -> None:
    erf = to_hlo(CHLO)
    converted = to_text(from_hlo(erf))
    assert "mhlo.erf" not in converted
    assert "chlo." not in converted
    dot = to_hlo(
        program(
            "%0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>)"
            " -> tensor<4x4xf32>\n return %0 : tensor<4x4xf32>",
            "%x: tensor<4x4xf32>",
            "tensor<4x4xf32>",
        )
    )
    assert "stablehlo.dot_general" in to_text(dot)


def test_modules_in_many_threads_do_not_disturb_each_other(any_program: Program) -> None:
    module = to_module(any_program)
    texts: list[str] = []

    def look() -> None:
        for _ in range(5):
            with module as mlir:
                shared = str(mlir)
            texts.append(shared)
            assert to_text(any_program) == shared

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(texts) == 20
    assert len(set(texts)) == 1
