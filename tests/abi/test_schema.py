"""The schema of the ABI: complete, and what the headers state."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pjrt import abi
from pjrt.abi import schema

FACTS = json.loads((Path(__file__).parent / "data" / "pjrt_c_abi.json").read_text())
KINDS = {
    *("STRUCT_SIZE", "EXTENSIONS", "COUNT", "SIGNED", "UNSIGNED", "BOOL", "FLOAT", "ENUM", "HANDLE", "TEXT", "BYTES"),
    *("POINTER", "STRUCT", "STRUCT_VALUE", "CALLBACK", "USER_DATA", "ARRAY", "LISTS"),
}
FIELDS = [(struct.name, field) for struct in schema.STRUCTS.values() for field in struct.fields.values()]


def test_every_function_is_in_it_in_order() -> None:
    assert [each.name for each in schema.TABLE] == FACTS["api"]
    assert list(schema.FUNCTIONS)[: len(schema.TABLE)] == FACTS["api"]
    assert [each.index for each in schema.FUNCTIONS.values()] == list(range(len(schema.FUNCTIONS)))
    assert sum(name.startswith("PLUGIN_Profiler_") for name in schema.FUNCTIONS) == 8


@pytest.mark.parametrize(
    "header", sorted((Path(abi.__file__).parent / "pjrt_abi" / "extensions").glob("*.h")), ids=lambda path: path.stem
)
def test_every_function_of_an_extension_is_in_it_in_order(header: Path) -> None:
    structs = re.findall(r"struct PJRT_(\w+)_Extension \{(.*?)^\}", header.read_text(), re.S | re.M)
    for kind, body in structs:
        stated = re.findall(r"\(\*\w+\)\(\s*(\w+?)(?:_Args)? \*args\)", body)
        found = [each.name for each in schema.FUNCTIONS.values() if each.extension == kind]
        assert found == stated or kind == "Profiler"  # whose functions are in a table of their own


def test_every_field_of_the_measured_structs_is_in_it() -> None:
    """The offsets and sizes are compared in C: `schema_tables.c` does not compile with other ones."""
    for function in schema.FUNCTIONS.values():
        if function.args in FACTS["structs"]:
            measured = [name for name, _ in FACTS["structs"][function.args] if name != "<union>"]
            assert list(schema.STRUCTS[function.args].fields)[: len(measured)] == measured


def test_every_field_has_a_kind_and_no_two_share_a_place() -> None:
    assert len(FIELDS) > 1200
    for name, field in FIELDS:
        assert field.kind in KINDS, f"{name}.{field.name}"
    for name, struct in schema.STRUCTS.items():
        end = 0
        for field in struct.fields.values():
            assert field.offset >= end or field.variant >= 0, f"{name}.{field.name} lies over another field"
            end = max(end, field.offset + field.size)
        assert struct.size == end or name.endswith("_Parameters"), name


@pytest.mark.parametrize("kind", ["HANDLE", "ENUM", "STRUCT", "STRUCT_VALUE", "CALLBACK"])
def test_a_kind_with_a_type_names_one_that_exists(kind: str) -> None:
    types = {
        "HANDLE": schema.HANDLES,
        "ENUM": schema.ENUMS,
        "STRUCT": schema.STRUCTS,
        "STRUCT_VALUE": schema.STRUCTS,
        "CALLBACK": schema.CALLBACKS,
    }[kind]
    for struct, field in FIELDS:
        if kind in (field.kind, field.element):
            assert field.type in types, f"{struct}.{field.name}"


def test_arrays_have_a_count_but_for_those_whose_count_lies_elsewhere() -> None:
    without = {
        f"{struct}.{field.name}"
        for struct, field in FIELDS
        if field.kind in ("ARRAY", "LISTS") and not field.count and "INLINE" not in field.marks
    }
    assert without == {
        "PJRT_Buffer_MemoryLayout_Tiled.tile_dims",  # the sum of tile_dim_sizes
        "PJRT_Executable_OutputDimensions_Args.dims",  # the sum of dim_sizes
        "PJRT_ExecuteOptions.send_callbacks",  # as many as devices
        "PJRT_ExecuteOptions.recv_callbacks",
        "PJRT_Transfers_PJRT_Buffer_CopyToRemoteDevice_Args.serialized_descriptor",  # one
        "PJRT_Transfers_PJRT_Buffer_CopyToRemoteDevice_Args.serialized_descriptor_size",
        "PJRT_Transfers_DescriptorDestructor_Parameters.descriptor_data",
        "PJRT_Transfers_DescriptorDestructor_Parameters.descriptor_size",
    }


def test_texts_and_bytes_have_a_size_but_for_those_that_end_with_a_zero() -> None:
    without = {
        f"{struct}.{field.name}" for struct, field in FIELDS if field.kind in ("TEXT", "BYTES") and not field.count
    }
    assert without == {"PJRT_ExecuteOptions.call_location"}


def test_counts_are_fields_of_the_same_struct() -> None:
    for struct, field in FIELDS:
        fields = schema.STRUCTS[struct].fields
        for name in (field.count, field.inner_count, field.owner):
            assert not name or name in fields, f"{struct}.{field.name}"
        if field.count:
            assert fields[field.count].kind == "COUNT", f"{struct}.{field.name}"


def test_every_handle_that_comes_out_has_an_owner_or_belongs_to_the_caller() -> None:
    for struct, field in FIELDS:
        if field.kind == "HANDLE" and field.direction == "OUT":
            assert len({"CREATES", "BORROWS"} & set(field.marks)) == 1, f"{struct}.{field.name}"


def test_what_is_created_can_be_destroyed() -> None:
    """By a function, by a deleter beside it, or by what uses it up."""
    consumed = {field.type for _, field in FIELDS if "CONSUMES" in field.marks}
    for struct, field in FIELDS:
        if "CREATES" not in field.marks or "HANDLE" not in (field.kind, field.element):
            continue
        deleter = any(each.kind == "CALLBACK" for each in schema.STRUCTS[struct].fields.values())
        assert schema.HANDLES[field.type] or deleter or field.type in consumed, f"{struct}.{field.name}"


@pytest.mark.parametrize(
    ("function", "field", "expected"),
    [
        ("PJRT_Client_Compile", "executable", {"CREATES"}),
        ("PJRT_Client_TopologyDescription", "topology", {"BORROWS"}),
        ("PJRT_Buffer_Destroy", "buffer", {"DESTROYS", "NULLABLE"}),
        ("PJRT_Buffer_Delete", "buffer", {"DELETES"}),
        ("PJRT_LoadedExecutable_Execute", "argument_lists", {"DONATES"}),
        ("PJRT_LoadedExecutable_Execute", "output_lists", {"CREATES", "FILLS", "NULLABLE"}),
        ("PJRT_Client_FulfillAliasBuffer", "fulfill_alias_buffer_cb", {"CONSUMES"}),
        ("PJRT_Buffer_ToHostBuffer", "dst", {"FILLS", "KEEPS", "NULLABLE"}),
        ("PJRT_Executable_Serialize", "serialized_bytes", {"BORROWS"}),
        ("PJRT_Megascale_DeleteClientContext", "client_context", {"DESTROYS"}),
    ],
)
def test_marks(function: str, field: str, expected: set[str]) -> None:
    args = schema.STRUCTS[schema.FUNCTIONS[function].args]
    assert set(args.fields[field].marks) - {"LATER"} >= expected
    assert (
        not {"CREATES", "BORROWS", "DESTROYS", "DELETES", "CONSUMES", "DONATES"}
        & set(args.fields[field].marks) - expected
    )


def test_serialized_bytes_live_as_long_as_what_comes_with_them() -> None:
    assert schema.STRUCTS["PJRT_Executable_Serialize_Args"].fields["serialized_bytes"].owner == "serialized_executable"
    assert schema.STRUCTS["PJRT_Client_Devices_Args"].fields["devices"].owner == "client"
