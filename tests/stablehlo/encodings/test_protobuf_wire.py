from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from protobuf_fields import bytes_field, varint_field

from pjrt import DataLossError
from pjrt.stablehlo.encodings.hlo_proto import BYTES, VARINT, fields, message


@given(st.integers(1, 2**20), st.integers(0, 2**63), st.binary(max_size=200))
def test_fields_of_a_proto_are_read_back(number: int, value: int, content: bytes) -> None:
    proto = varint_field(number, value) + bytes_field(number + 1, content)
    first, second = fields(proto)
    assert first == (number, VARINT, value, 0)
    assert second[:2] == (number + 1, BYTES)
    assert proto[second[2] : second[3]] == content
    assert message(number + 1, content) == bytes_field(number + 1, content)


@given(st.binary(max_size=60))
def test_any_bytes_are_fields_or_an_error(proto: bytes) -> None:
    try:
        found = list(fields(proto))
    except DataLossError:
        return
    assert all(end <= len(proto) for _, kind, _, end in found if kind != VARINT)


def test_a_number_has_ten_bytes_at_most() -> None:
    assert next(fields(varint_field(1, 2**64 - 1))) == (1, VARINT, 2**64 - 1, 0)
    with pytest.raises(DataLossError, match="a number of more than ten bytes before byte 11"):
        list(fields(b"\x08" + b"\x80" * 10 + b"\x01"))
