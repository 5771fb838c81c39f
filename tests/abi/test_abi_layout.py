"""The one statement of the ABI against the table of measured facts: every field's offset, every size, every number."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pjrt.abi.generated.version import API_VERSION
from pjrt.abi.schema import TABLE

DATA = Path(__file__).parent / "data"
FACTS: dict[str, Any] = json.loads((DATA / "pjrt_c_abi.json").read_text())
NEWER: dict[str, Any] = json.loads((DATA / "pjrt_c_abi_0_117.json").read_text())
"""The sizes and offsets that are new since the table of facts."""

STRUCTS: dict[str, Any] = FACTS["structs"] | NEWER["structs"]

INCLUDE = Path(__file__).resolve().parents[2] / "src" / "pjrt" / "abi"

SIZES = {"size_t": 8, "int": 4, "int32_t": 4, "uint32_t": 4, "int64_t": 8, "uint64_t": 8, "float": 4, "bool": 1}
SIZES |= {"intptr_t": 8, "uintptr_t": 8}
POINTER_TYPES = set(FACTS["callbacks"])


class Layout:
    """The offsets and sizes that x86-64 gives to the structs of the table of facts."""

    def __init__(self) -> None:
        self.sizes: dict[str, tuple[int, int]] = {}

    def of_type(self, kind: str) -> tuple[int, int]:
        """Size and alignment of a type by its C spelling."""
        bare = kind.removeprefix("const ").strip()
        if "*" in kind or bare in POINTER_TYPES:
            return 8, 8
        if bare in FACTS["enums"]:
            return 4, 4
        return (SIZES[bare], SIZES[bare]) if bare in SIZES else self.of_struct(bare)

    def of_struct(self, name: str) -> tuple[int, int]:
        """Size and alignment of a struct."""
        if name not in self.sizes:
            _, size, alignment = self.rows(name)
            self.sizes[name] = size, alignment
        return self.sizes[name]

    def rows(self, name: str) -> tuple[list[tuple[str, int, int]], int, int]:
        """The fields with their offsets and sizes; then the size and the alignment of the whole."""
        rows: list[tuple[str, int, int]] = []
        end = widest = 0
        for field, kind in STRUCTS[name]:
            members = kind if field == "<union>" else [[field, kind]]
            sizes = [self.of_type(member_kind) for _, member_kind in members]
            alignment = max(a for _, a in sizes)
            offset = -(-end // alignment) * alignment
            rows += [(member, offset, size) for (member, _), (size, _) in zip(members, sizes, strict=True)]
            end = offset + max(-(-size // alignment) * alignment if len(members) > 1 else size for size, _ in sizes)
            widest = max(widest, alignment)
        return rows, -(-end // widest) * widest, widest


def statements() -> list[tuple[str, str, int]]:
    """Return the questions for the compiler: a name, a C expression, and the expected value."""
    asked: list[tuple[str, str, int]] = []
    layout = Layout()
    for name, fields in STRUCTS.items():
        rows, size, _ = layout.rows(name)
        asked.append((f"sizeof {name}", f"sizeof({name})", size))
        for field, offset, width in rows:
            asked.append((f"{name}.{field}", f"offsetof({name}, {field})", offset))
            asked.append((f"sizeof {name}.{field}", f"sizeof((({name} *)0)->{field})", width))
        if fields[0][0] == "struct_size":
            end = max(offset + width for field, offset, width in rows if field == rows[-1][0])
            asked.append((f"stamp of {name}", f"{name}_STRUCT_SIZE", end))
    for name, values in FACTS["enums"].items():
        asked += [(f"{name}.{member}", member, value) for member, value in values.items()]
    for index, name in enumerate(FACTS["api"]):
        asked.append((f"slot of {name}", f"offsetof(PJRT_Api, {name})", 40 + 8 * index))
    asked.append(("sizeof PJRT_Api", "sizeof(PJRT_Api)", 40 + 8 * len(FACTS["api"])))
    asked.append(("PJRT_API_MAJOR", "PJRT_API_MAJOR", NEWER["version"]["major"]))
    asked.append(("PJRT_API_MINOR", "PJRT_API_MINOR", API_VERSION[1]))
    return asked + extension_statements() + measured_statements()


def extension_statements() -> list[tuple[str, str, int]]:
    """The same for the extension structs that the headers state."""
    stated = extension_headers()
    asked = []
    for name, (size, fields) in {**FACTS["extensions"], **NEWER["extensions"]}.items():
        if f"typedef struct {name} {{" not in stated:
            continue
        asked.append((f"sizeof {name}", f"sizeof({name})", size))
        asked += [(f"{name}.{field}", f"offsetof({name}, {field})", offset) for field, _, offset in fields]
    return asked


def extension_headers() -> str:
    """The text of all headers of extensions."""
    return "\n".join(path.read_text() for path in (INCLUDE / "pjrt_abi" / "extensions").glob("*.h"))


def measured_statements() -> list[tuple[str, str, int]]:
    """The sizes that a plugin of 0.117 asks of its arguments are those of the headers that state them."""
    stated = (INCLUDE / "generated" / "sizes.h").read_text()
    return [
        (f"stamp of {name}, as a plugin asks", f"{name}_Args_STRUCT_SIZE", size)
        for name, size in NEWER["stamps"].items()
        if f"PJRT_ABI_SIZE({name}_Args," in stated and name not in NEWER["older"] + UNSTATED
    ]


UNSTATED = ["PJRT_Megascale_ClientContext_Initialize"]
"""A plugin of 0.117 asks for more than public headers state; the header says so, and nothing calls it."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """The values that the C compiler computes from the headers."""
    folder = tmp_path_factory.mktemp("layout")
    lines = "".join(f'  printf("%s\\t%lld\\n", "{name}", (long long)({code}));\n' for name, code, _ in statements())
    (folder / "ask.c").write_text(
        f'#include <stdio.h>\n#include "pjrt_abi.h"\nint main(void) {{\n{lines}  return 0;\n}}\n'
    )
    compiler = shlex.split(os.environ.get("CC", "gcc"))
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O0", f"-I{INCLUDE}"]
    subprocess.run([*compiler, *flags, "ask.c", "-o", "ask"], cwd=folder, check=True, timeout=120)
    said = subprocess.run([folder / "ask"], capture_output=True, text=True, check=True, timeout=120).stdout
    return {name: int(value) for name, value in (line.split("\t") for line in said.splitlines())}


def test_every_offset_size_and_number_is_as_measured(answers: dict[str, int]) -> None:
    expected = {name: value for name, _, value in statements()}
    assert len(expected) > 2500
    assert sum("as a plugin asks" in name for name in expected) > 230
    assert answers == expected


def test_the_struct_sizes_of_the_facts_are_stamped_without_trailing_padding(answers: dict[str, int]) -> None:
    # The case that tells the two apart: a bool at the end of a struct that is aligned to 8 bytes.
    assert answers["sizeof PJRT_Event_IsReady_Args"] == 32
    assert answers["stamp of PJRT_Event_IsReady_Args"] == 25


def test_since_when_a_function_exists_is_as_found() -> None:
    assert {each.name: each.minor for each in TABLE if each.minor} == NEWER["since"]


def test_the_version_is_no_older_than_what_was_measured() -> None:
    """A newer minor version without new functions needs no new measurements: all sizes and offsets are compared."""
    assert API_VERSION[1] >= max(NEWER["version"]["minor"], *(each.minor for each in TABLE))


@pytest.mark.parametrize("name", FACTS["functions"])
def test_every_function_takes_and_gives_what_was_measured(name: str) -> None:
    result, arguments = FACTS["functions"][name]
    result = result.replace(" *", " *").strip()
    space = "" if result.endswith("*") else " "
    table = (INCLUDE / "pjrt_abi" / "table.h").read_text()
    assert f"  {result}{space}(*{name})({arguments});" in table


def test_every_extension_with_a_public_header_is_stated() -> None:
    stated = {path.stem for path in (INCLUDE / "pjrt_abi" / "extensions").glob("*.h")}
    assert stated == {
        "abi_version",
        "callback",
        "collectives",
        "cross_host_transfers",
        "custom_partitioner",
        "executable_metadata",
        "ffi",
        "host_allocator",
        "host_memory_allocator",
        "layouts",
        "megascale",
        "memory_descriptions",
        "multi_slice",
        "phase_compile",
        "profiler",
        "raw_buffer",
        "shardings",
        "stream",
        "tpu_executable",
        "tpu_topology",
        "triton",
    }


@pytest.mark.parametrize(
    "alike",
    [
        ["ChipCount", "CoreCount", "LogiDeviceCount", "ProcessCount", "ChipsPerProcess", "CoreCountPerChip"],
        ["ChipCount", "CoreCountPerProcess", "LogiDeviceCountPerChip", "LogiDeviceCountPerProcess"],
        ["ChipBounds", "ProcessBounds", "ChipsPerProcessBounds"],
        ["IsSubsliceTopology", "IsEnhancedBarrierEnabled", "HasLimitedIciConnectivity"],
    ],
    ids=["numbers", "more numbers", "extents", "truth values"],
)
def test_structs_that_stand_for_each_other_are_laid_out_alike(alike: list[str]) -> None:
    layouts = [FACTS["extensions"][f"PJRT_TpuTopology_{name}_Args"] for name in alike]
    assert len({(size, tuple((kind, offset) for _, kind, offset in fields)) for size, fields in layouts}) == 1


def test_every_function_that_is_called_of_an_extension_lies_where_the_newest_plugin_has_it() -> None:
    """The extension structs of a plugin of 0.117 have as many functions as the headers state, or more."""
    for name, functions in NEWER["functions_of_extensions"].items():
        stated = {**FACTS["extensions"], **NEWER["extensions"]}.get(f"PJRT_{name}_Extension")
        if stated is not None:
            assert len(stated[1]) - 1 <= functions, name
