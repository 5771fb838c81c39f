"""Libraries' files, looked at without opening them."""

from __future__ import annotations

import struct
import sysconfig
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pjrt.system import elf


def test_a_whole_library_misses_nothing(tiny_library: Path, no_symbol_library: Path) -> None:
    assert elf.missing_bytes(tiny_library) is None
    assert elf.missing_bytes(no_symbol_library) is None


def test_what_a_library_exports(tiny_library: Path, no_symbol_library: Path) -> None:
    assert elf.exports(tiny_library, "GetPjrtApi")
    assert not elf.exports(tiny_library, "GetPjrt")
    assert not elf.exports(no_symbol_library, "GetPjrtApi")


def test_a_name_that_is_only_mentioned_is_not_exported() -> None:
    """Frameworks look the function up, and so have its name among their texts."""
    from pjrt.capi import _plugin

    assert not elf.exports(Path(_plugin.__file__), "GetPjrtApi")


@pytest.mark.parametrize("share", [0.02, 0.2, 0.5])
def test_a_library_that_is_cut_off(share: float, tiny_library: Path, tmp_path: Path) -> None:
    whole = tiny_library.read_bytes()
    cut = tmp_path / "cut.so"
    cut.write_bytes(whole[: int(len(whole) * share)])
    missing = elf.missing_bytes(cut)
    assert missing is not None
    assert missing[0] == int(len(whole) * share) < missing[1] <= len(whole)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"hello", b"\x7fELF\x01\x01" + bytes(100), b"MZ" + bytes(100)])
def test_what_is_no_library_of_a_known_form(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(content)
    assert elf.missing_bytes(path) is None
    assert not elf.exports(path, "GetPjrtApi")


@pytest.mark.parametrize(
    ("content", "expected"), [(b"", False), (b"\x7fEL", False), (b"#!/bin/sh", False), (b"\xcf\xfa\xed\xfe..", True)]
)
def test_how_libraries_begin(content: bytes, expected: bool, tiny_library: Path, tmp_path: Path) -> None:
    (tmp_path / "x.so").write_bytes(content)
    assert elf.is_library(tmp_path / "x.so") is expected
    assert elf.is_library(tiny_library)


def test_a_table_that_lies_elsewhere_in_memory_than_in_the_file(tmp_path: Path) -> None:
    names, address = b"\0GetPjrtApi\0", 0x5000
    entries = struct.pack("<qQqQqQ", 5, address + 48, 10, len(names), 0, 0)  # DT_STRTAB, DT_STRSZ, DT_NULL
    at, size = 64 + 2 * 56, 48 + len(names)
    header = b"\x7fELF\x02\x01".ljust(32, b"\0") + struct.pack("<Q", 64).ljust(22, b"\0") + struct.pack("<HH", 56, 2)
    segments = (struct.pack("<IIQQQQQQ", kind, 0, at, address, 0, size, size, 0) for kind in (1, 2))  # loaded, dynamic
    path = tmp_path / "x.so"
    path.write_bytes(header.ljust(64, b"\0") + b"".join(segments) + entries + names)
    assert elf.exports(path, "GetPjrtApi")
    assert not elf.exports(path, "GetPjrt")


def test_of_other_forms_it_is_known_whether_a_name_occurs(tmp_path: Path) -> None:
    path = tmp_path / "x.dylib"
    path.write_bytes(b"\xcf\xfa\xed\xfe" + bytes(50) + b"_GetPjrtApi\0" + bytes(50))
    assert elf.exports(path, "GetPjrtApi")
    assert not elf.exports(path, "GetPjrtApis")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert not elf.exports(tmp_path / "x.so", "GetPjrtApi")
    with pytest.raises(OSError, match="No such file"):
        elf.missing_bytes(tmp_path / "x.so")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(data=st.data())
def test_damage_anywhere_in_the_header_is_survived(data: st.DataObject, tiny_library: Path, tmp_path: Path) -> None:
    whole = bytearray(tiny_library.read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        position = data.draw(st.integers(6, min(len(whole), 2000) - 8))
        struct.pack_into("<Q", whole, position, data.draw(st.integers(0, 2**64 - 1)))
    path = tmp_path / "damaged.so"
    path.write_bytes(whole)
    elf.missing_bytes(path)
    elf.exports(path, "GetPjrtApi")


def test_python_s_own_library_is_none() -> None:
    for path in Path(sysconfig.get_paths()["platstdlib"], "lib-dynload").glob("_json*.so"):
        assert not elf.exports(path, "GetPjrtApi")
        assert elf.exports(path, "PyInit__json")
