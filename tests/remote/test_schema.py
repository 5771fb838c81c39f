"""Our table of messages against the schema in the installed jaxlib.

``PJRT_TEST_JAXLIB`` names the folder of another jaxlib, whose schema is compared in its place.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jaxlib
import pytest
from google.protobuf import descriptor_pb2
from jaxlib_schema import messages_of

from pjrt.remote.protocol.messages import EXTENSIONS, KINDS, OWN_FIELDS, OWN_KINDS, TABLE

JAXLIB = Path(os.environ.get("PJRT_TEST_JAXLIB") or Path(jaxlib.__file__).parent)

PACKAGES = ("xla.ifrt.proxy", "xla.ifrt.proto", "xla.ifrt", "tensorflow", "xla")
NAMES = {
    "XlaShapeProto": "xla.ShapeProto",
    "XlaLayoutProto": "xla.LayoutProto",
    "LayoutProto": "xla.ifrt.LayoutProto",
    "Any": "google.protobuf.Any",
}
"""The full names of messages whose own name is that of several, or is another one here."""

SERIALIZED = {".xla.OpSharding", ".xla.CompileOptionsProto"}
"""The messages that other packages of ours read, so that they are bytes in the table."""

NEWER_THAN_0_9 = {
    "LayoutProto",
    "CompactLayoutProto",
    "BitcastArraysRequest",
    "BitcastArraysResponse",
    "LoadedExecutableDeleteOptionsProto",
    "IfrtRequest.bitcast_arrays_request",
    "IfrtResponse.bitcast_arrays_response",
    "MakeArrayFromHostBufferRequest.layout",
    "LoadedExecutableDestructRequest.delete_options",
    "ShardingParamProto.unreduced_axes",
    "CompileResponse.ready_future_handle",
    "CompiledMemoryStatsProto.total_allocation_bytes",
    "CompiledMemoryStatsProto.indefinite_allocations",
    "CompiledMemoryStatsProto.peak_unpadded_heap_bytes",
}
"""The fields that jaxlib 0.9 lacks, or has not as optional ones."""

NEWER_THAN_0_10 = {
    "XlaCompileOptionsProto.version_number",
    "XlaCompileOptionsProto.outputs_bundle_slice_sizes",
}
"""The fields that jaxlib 0.10 lacks."""

NEWER = NEWER_THAN_0_9 | NEWER_THAN_0_10

OLDER_THAN_0_12 = {"ShardingParamProto", "ShardingParamShardingProto"}
"""The fields that jaxlib 0.12 lacks."""

NOT_NEEDED = ("mpmd_", "MpmdCompiledMemoryStats", "MpmdAddressableDevices", "MpmdDeviceList", "MpmdAttributes")
"""The messages for programs of several meshes, which the server does not offer."""

LEFT_OUT = {
    "LoadedExecutableMpmdCostAnalysisResponse": {"status", "attributes"},
    "XlaShapeProto": set(),
    "XlaLayoutProto": {
        "dim_level_types",
        "dim_unique",
        "dim_ordered",
        "tail_padding_alignment_in_elements",
        "element_size_in_bits",
        "memory_space",
        "index_primitive_type",
        "pointer_primitive_type",
        "physical_shape",
        "dynamic_shape_metadata_prefix_bytes",
        "split_configs",
    },
}
"""The fields that are left out for other reasons, by our name of the message."""

Field = descriptor_pb2.FieldDescriptorProto


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return messages_of(JAXLIB / "libjax_common.so")


def theirs(schema: dict[str, Any], name: str) -> Any:
    """Return jaxlib's message with a name of our table."""
    names = [NAMES[name]] if name in NAMES else [f"{package}.{name}" for package in PACKAGES]
    return next((schema[each] for each in names if each in schema), None)


def type_of(field: Any) -> str:
    """Return the type of one of jaxlib's fields as our table has it."""
    if field.type == Field.TYPE_ENUM:
        kind = "int32"
    elif field.type_name in SERIALIZED:
        kind = "bytes"
    elif field.type == Field.TYPE_MESSAGE:
        kind = field.type_name.removeprefix(".")
        kind = next((ours for ours, full in NAMES.items() if full == kind), kind)
        package = next((package for package in PACKAGES if kind.startswith(f"{package}.")), "")
        kind = kind.removeprefix(f"{package}.")
    else:
        kind = Field.Type.Name(field.type).removeprefix("TYPE_").lower()
    if field.label == Field.LABEL_REPEATED:
        return f"[{kind}]"
    return f"optional {kind}" if field.proto3_optional and field.type != Field.TYPE_MESSAGE else kind


@pytest.mark.parametrize("name", sorted(set(TABLE) - {"Any", *EXTENSIONS}))
def test_a_message_has_the_fields_of_jaxlib(schema: dict[str, Any], name: str) -> None:
    message = theirs(schema, name)
    if message is None:
        assert name in NEWER | OLDER_THAN_0_12
        return
    ours = TABLE[name]
    fields = {field.name: field for field in message.field}
    for label, row in ours.items():
        if label not in fields:
            kind = label.removesuffix("_request").removesuffix("_response")
            if kind in OWN_KINDS or label in OWN_FIELDS.get(name, ()):
                continue
            assert f"{name}.{label}" in NEWER
            continue
        field = fields[label]
        optional_later = f"{name}.{label}" in NEWER and not field.proto3_optional
        kind = row[1].removeprefix("optional ") if optional_later else row[1]
        assert (row[0], kind) == (field.number, type_of(field)), label
        union = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
        assert (row[2] if len(row) == 3 else "") == ("" if field.proto3_optional else union), label
    missing = {label for label in set(fields) - set(ours) if not label.startswith(NOT_NEEDED)}
    assert missing == LEFT_OUT.get(name, set())


def test_every_message_of_the_protocol_is_in_the_table(schema: dict[str, Any]) -> None:
    package = "xla.ifrt.proxy."
    names = {name.removeprefix(package) for name in schema if name.startswith(package)}
    assert {name for name in names - set(TABLE) if not any(part in name for part in NOT_NEEDED)} == set()


def test_every_kind_of_request_is_known(schema: dict[str, Any]) -> None:
    fields = schema["xla.ifrt.proxy.IfrtRequest"].field
    kinds = {field.name.removesuffix("_request"): field.number for field in fields if field.HasField("oneof_index")}
    newer = {kind: number for kind, number in KINDS.items() if f"IfrtRequest.{kind}_request" in NEWER}
    assert kinds | newer == KINDS
