"""Options of layers: what Python writes, C reads."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import build

import pjrt
from pjrt.layers.stack import option_text

LIBRARY = Path(__file__).resolve().parents[2] / "src" / "pjrt" / "layers" / "library"
KEYS = st.text("abcdefgh_", min_size=1, max_size=8)
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\0\n\t"), max_size=20)


@pytest.fixture(scope="module")
def reader(tiny_cache: Path) -> ctypes.CDLL:
    """The functions that layers read their options with."""
    flags = ["-fvisibility=default", f"-I{LIBRARY}"]
    return ctypes.CDLL(str(build.build([LIBRARY / "options.c"], tiny_cache, "liboptions.so", flags)))


def read(reader: ctypes.CDLL, options: str, key: str, size: int = 1000) -> str | None:
    value = ctypes.create_string_buffer(size)
    reader.pjrt_option.restype = ctypes.c_bool
    found = reader.pjrt_option(options.encode(), key.encode(), value, ctypes.c_size_t(size))
    return value.value.decode() if found else None


def unknown(reader: ctypes.CDLL, options: str, *keys: str) -> str | None:
    key = ctypes.create_string_buffer(1000)
    listed = (ctypes.c_char_p * (len(keys) + 1))(*(each.encode() for each in keys), None)
    reader.pjrt_unknown_option.restype = ctypes.c_bool
    found = reader.pjrt_unknown_option(options.encode(), listed, key, ctypes.c_size_t(1000))
    return key.value.decode() if found else None


@given(options=st.dictionaries(KEYS, VALUES, max_size=5))
def test_every_value_comes_back(reader: ctypes.CDLL, options: dict[str, str]) -> None:
    text = option_text(options)
    for key, value in options.items():
        assert read(reader, text, key) == value
    assert read(reader, text, "missing") is None
    assert unknown(reader, text, *options) is None
    if options:
        first, *others = options
        assert unknown(reader, text, *others) == first


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("a=1,b=2", "b", "2"),
        ("a,b=2", "a", ""),
        ("a=1,a=2", "a", "1"),
        ("ab=1", "a", None),
        ("a=x=y", "a", "x=y"),
        ("a=1\\,2,b=3", "a", "1,2"),
        ("a=1\\", "a", "1\\"),
        (",,a=1,", "a", "1"),
        ("", "a", None),
    ],
)
def test_text_by_hand(reader: ctypes.CDLL, text: str, key: str, value: str | None) -> None:
    assert read(reader, text, key) == value


def test_a_value_that_does_not_fit_is_cut(reader: ctypes.CDLL) -> None:
    assert read(reader, "a=123456", "a", 4) == "123"


def test_values_of_python() -> None:
    options = {"a": True, "b": 2, "c": Path("/x,y"), "d": ["e", "f"]}
    assert option_text(options) == "a=1,b=2,c=/x\\,y,d=e:f"
    assert option_text("a=b") == "a=b"
    with pytest.raises(pjrt.InvalidArgumentError, match="must not contain line breaks or tabs"):
        option_text({"a": "b\tc"})
