from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pjrt import DataLossError, Program
from pjrt.stablehlo import _bytecode, _wire
from pjrt.stablehlo._bytecode import Section


@pytest.mark.parametrize("name", ["bytecode", "artifact"])
def test_sections_and_strings(request: pytest.FixtureRequest, name: str) -> None:
    code = request.getfixturevalue(name).code
    header = _bytecode.screen(code)
    sections = _bytecode.read_sections(code, header)
    assert {Section.STRING, Section.DIALECT, Section.IR} <= set(sections)
    assert sum(end - begin for begin, end in sections.values()) < len(code)
    strings = _bytecode.read_strings(code, *sections[Section.STRING])
    assert b"example" in strings
    assert (b"stablehlo" in strings) == (name == "bytecode")
    assert (b"vhlo" in strings) == (name == "artifact")


def test_the_header_names_the_producer(artifact: Program, bytecode: Program) -> None:
    assert _bytecode.read_header(artifact.code).producer == "StableHLO_v1.0.0"
    plain = _bytecode.read_header(bytecode.code)
    assert plain.producer.startswith("MLIR")
    assert plain.artifact_version is None


def test_a_producer_that_is_no_version_is_corrupt() -> None:
    with pytest.raises(DataLossError, match="the producer in its header is b'StableHLO_vNext'"):
        _bytecode.read_header(b"ML\xefR\x0dStableHLO_vNext\0")


def test_what_is_wrong_is_said(artifact: Program) -> None:
    with pytest.raises(DataLossError, match="names no complete producer"):
        _bytecode.screen(artifact.code[:12])
    with pytest.raises(DataLossError, match=r"section \w+ ends at byte \d+ of only \d+"):
        _bytecode.screen(artifact.code[:60])
    header = _bytecode.read_header(artifact.code)
    with pytest.raises(DataLossError, match="without the section STRING and DIALECT"):
        _bytecode.screen(artifact.code[: header.end])
    with pytest.raises(DataLossError, match=r"section 127 at byte \d+ is unknown"):
        _bytecode.screen(artifact.code[: header.end] + b"\x7f\x01")


def prefixed(value: int) -> bytes:
    """A number as MLIR bytecode writes it."""
    for extra in range(8):
        if value < 1 << 7 * (extra + 1):
            return ((value << extra + 1) | 1 << extra).to_bytes(extra + 1, "little")
    return b"\0" + value.to_bytes(8, "little")


@given(st.integers(0, 2**64 - 1), st.binary(max_size=3))
def test_numbers_of_every_length_are_read(value: int, after: bytes) -> None:
    code = prefixed(value)
    cursor = _bytecode._Cursor(code + after, 0, len(code + after), "a test")
    assert cursor.varint() == value
    assert cursor.position == len(code)
    with pytest.raises(DataLossError, match="a test ends inside a number"):
        _bytecode._Cursor(code, 0, len(code) - 1, "a test").varint()


@given(st.integers(1, 2**20), st.integers(0, 2**63), st.binary(max_size=200))
def test_fields_of_a_proto_are_read_back(number: int, value: int, content: bytes) -> None:
    message = _wire.varint_field(number, value) + _wire.bytes_field(number + 1, content)
    first, second = _wire.fields(message)
    assert first == (number, _wire.VARINT, value, 0)
    assert second[:2] == (number + 1, _wire.BYTES)
    assert message[second[2] : second[3]] == content


@given(st.binary(max_size=60))
def test_any_bytes_are_fields_or_an_error(message: bytes) -> None:
    try:
        found = list(_wire.fields(message))
    except DataLossError:
        return
    assert all(end <= len(message) for _, kind, _, end in found if kind != _wire.VARINT)
