from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pjrt import DataLossError, Program
from pjrt.stablehlo.encodings import format
from pjrt.stablehlo.ir import mlir_module


@pytest.mark.parametrize("name", ["bytecode", "artifact"])
def test_sections(request: pytest.FixtureRequest, name: str) -> None:
    code = request.getfixturevalue(name).code
    header = format.screen_bytecode(code)
    assert {"STRING", "DIALECT", "IR"} <= format.read_sections(code, header.end).keys()


def test_only_bytecode_with_resources_has_them(bytecode: Program, artifact: Program) -> None:
    assert not format._has_resource_section(bytecode.code)
    assert not format._has_resource_section(artifact.code)
    constant = "module { %0 = stablehlo.constant dense_resource<w> : tensor<1xf32> }"
    for values in ("", '{-# dialect_resources: { builtin: { w: "0x040000000000803F" } } #-}'):
        assert format._has_resource_section(
            mlir_module.write_bytecode(mlir_module.parse(f"{constant}{values}".encode()))
        )


def test_the_header_names_the_producer(artifact: Program, bytecode: Program) -> None:
    assert format.read_header(artifact.code).producer == "StableHLO_v1.0.0"
    plain = format.read_header(bytecode.code)
    assert plain.producer.startswith("MLIR")
    assert plain.artifact_version is None


def test_a_producer_that_is_no_version_is_corrupt() -> None:
    with pytest.raises(DataLossError, match="the producer in its header is b'StableHLO_vNext'"):
        format.read_header(b"ML\xefR\x0dStableHLO_vNext\0")


def test_what_is_wrong_is_said(artifact: Program) -> None:
    with pytest.raises(DataLossError, match="names no complete producer"):
        format.screen_bytecode(artifact.code[:12])
    with pytest.raises(DataLossError, match=r"section \w+ ends at byte \d+ of only \d+"):
        format.screen_bytecode(artifact.code[:60])
    header = format.read_header(artifact.code)
    with pytest.raises(DataLossError, match="without the section STRING and DIALECT"):
        format.screen_bytecode(artifact.code[: header.end])
    with pytest.raises(DataLossError, match=r"section 127 at byte \d+ is unknown"):
        format.screen_bytecode(artifact.code[: header.end] + b"\x7f\x01")


def prefixed(value: int) -> bytes:
    """A number as MLIR bytecode writes it."""
    for extra in range(8):
        if value < 1 << 7 * (extra + 1):
            return ((value << extra + 1) | 1 << extra).to_bytes(extra + 1, "little")
    return b"\0" + value.to_bytes(8, "little")


@given(st.integers(0, 2**64 - 1), st.binary(max_size=3))
def test_numbers_of_every_length_are_read(value: int, after: bytes) -> None:
    code = prefixed(value)
    assert format._varint(code + after, 0) == (value, len(code))
    with pytest.raises(DataLossError, match="it ends inside a number"):
        format._varint(code[:-1], 0)


@pytest.mark.parametrize(
    ("string", "is_broken"),
    [("plain", False), ("x" * 300, False), ("\\C3\\A9" * 300, False), ("\\FE", True), ("x" * 300 + "\\C3", True)],
)
def test_strings_that_are_not_utf8(string: str, is_broken: bool) -> None:
    """The lengths of long strings, which lie before them, are no text."""
    code = mlir_module.write_bytecode(mlir_module.parse(f'module attributes {{a.b = "{string}"}} {{}}'.encode()))
    assert format.has_broken_string(code) is is_broken
