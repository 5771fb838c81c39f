"""The expectations of XLA's own test of the C API, asked of exported plugins: codes, and words that are looked for.

Two of its expectations are of no plugin: one is about a helper in C++, and the layout of the table is held by
``tests/capi/test_abi_layout.py``.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt.api.api_version import API_VERSION

FACTS = json.loads((Path(__file__).parents[1] / "capi" / "data" / "pjrt_c_abi.json").read_text())
FUNCTIONS: list[str] = FACTS["api"]
HEADER = 40
FIRST_EXTENSION = 8
MEMORY_DESCRIPTIONS: int = FACTS["enums"]["PJRT_Extension_Type"]["PJRT_Extension_Type_MemoryDescriptions"]
Function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
NUMBERS = {
    "size_t": ctypes.c_size_t,
    "int": ctypes.c_int,
    "int64_t": ctypes.c_int64,
    "bool": ctypes.c_bool,
    **dict.fromkeys(FACTS["enums"], ctypes.c_int),
}
EXTENSION_STRUCTS = {
    name: [(field, kind) for field, kind, _ in fields] for name, (_, fields) in FACTS["extensions"].items()
}
MHLO = """module {
  func.func @main(%x: tensor<f32>) -> tensor<f32> {
    %0 = "mhlo.copy"(%x) : (tensor<f32>) -> tensor<f32>
    %1 = mhlo.constant dense<1.0> : tensor<f32>
    %2 = mhlo.add %0, %1 : tensor<f32>
    return %2 : tensor<f32>
  }
}"""
STABLEHLO = MHLO.replace('"mhlo.copy"', '"stablehlo.abs"').replace("mhlo.", "stablehlo.")
FLOATS = np.arange(41, 45, dtype=np.float32)


def struct(name: str, **values: Any) -> Any:
    """An argument struct of the C API, with its size and the given fields; all others are zero."""
    fields = FACTS["structs"].get(name) or EXTENSION_STRUCTS[name]
    kind = type(name, (ctypes.Structure,), {"_fields_": [(f, NUMBERS.get(t, ctypes.c_void_p)) for f, t, *_ in fields]})
    made = kind(struct_size=ctypes.sizeof(kind), **values)
    # As C has it: without the padding behind the last field.
    last = getattr(kind, fields[-1][0])
    made.struct_size = last.offset + last.size
    return made


class Table:
    """The table of an exported plugin, with one client, called as XLA's test calls it."""

    def __init__(self, device: str) -> None:
        self.name = device
        self.exported = pjrt.export(lambda **options: pjrt.client(device, **options), name=device)
        self.client = self("PJRT_Client_Create").client

    def at(self, address: int, arguments: Any) -> None:
        """Call the function whose pointer lies at an address.

        Raises:
            PjrtError: of the code and message that it answers.
        """
        error = Function(ctypes.c_uint64.from_address(address).value)(ctypes.addressof(arguments))
        if error:
            code = self("PJRT_Error_GetCode", error=error).code
            said = self("PJRT_Error_Message", error=error)
            message = ctypes.string_at(said.message, said.message_size).decode()
            self("PJRT_Error_Destroy", error=error)
            raise pjrt.PjrtError.of(code, message)

    def __call__(self, name: str, **values: Any) -> Any:
        arguments = struct(f"{name}_Args", **values)
        slot = self.exported.address + HEADER + 8 * FUNCTIONS.index(name)
        if name in ("PJRT_Error_Message", "PJRT_Error_Destroy"):  # which return nothing
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(ctypes.c_uint64.from_address(slot).value)(
                ctypes.addressof(arguments)
            )
        else:
            self.at(slot, arguments)
        return arguments

    def of_client(self, name: str, **values: Any) -> Any:
        return self(name, client=self.client, **values)

    def devices(self, which: str = "Devices") -> list[int]:
        found = self.of_client(f"PJRT_Client_{which}")
        start, number = [getattr(found, field) for field, _ in found._fields_[-2:]]
        return list((ctypes.c_uint64 * number).from_address(start))

    def description(self) -> int:
        found: int = self("PJRT_Device_GetDescription", device=self.devices()[0]).device_description
        return found

    def device_id(self, device: int) -> int:
        description = self("PJRT_Device_GetDescription", device=device).device_description
        found: int = self("PJRT_DeviceDescription_Id", device_description=description).id
        return found

    def extension(self, kind: int) -> int:
        """The address of an extension's first function."""
        place = ctypes.c_uint64.from_address(self.exported.address + FIRST_EXTENSION).value
        while ctypes.c_int.from_address(place + 8).value != kind:
            place = ctypes.c_uint64.from_address(place + 16).value
        return place + 24

    def wait(self, event: int) -> None:
        self("PJRT_Event_Await", event=event)
        self("PJRT_Event_Destroy", event=event)

    def buffer(self) -> int:
        dims = (ctypes.c_int64 * 1)(4)
        made = self.of_client(
            "PJRT_Client_BufferFromHostBuffer",
            data=FLOATS.ctypes.data,
            type=int(pjrt.ElementType.F32),
            dims=ctypes.addressof(dims),
            num_dims=1,
            host_buffer_semantics=1,  # immutable until the transfer completes
            device=self.devices()[0],
        )
        self.wait(made.done_with_host_buffer)
        buffer: int = made.buffer
        return buffer

    def compile(self, code: bytes | None, program_format: bytes, options: bytes) -> int:
        held = [ctypes.create_string_buffer(each, len(each)) if each else None for each in (code, program_format)]
        program = struct(
            "PJRT_Program",
            code=None if held[0] is None else ctypes.addressof(held[0]),
            code_size=len(code or b""),
            format=ctypes.addressof(held[1]),  # type: ignore[arg-type]
            format_size=len(program_format),
        )
        passed = ctypes.create_string_buffer(options, len(options))
        made = self.of_client(
            "PJRT_Client_Compile",
            program=ctypes.addressof(program),
            compile_options=ctypes.addressof(passed),
            compile_options_size=len(options),
        )
        executable: int = made.executable
        return executable

    def assignment(self, replicas: int, partitions: int, size: int) -> list[int]:
        room = (ctypes.c_int * size)()
        self.of_client(
            "PJRT_Client_DefaultDeviceAssignment",
            num_replicas=replicas,
            num_partitions=partitions,
            default_assignment_size=size,
            default_assignment=ctypes.addressof(room),
        )
        return list(room)


@pytest.fixture(scope="module", params=["cpu", "reference"])
def table(request: pytest.FixtureRequest) -> Iterator[Table]:
    made = Table(request.param)
    yield made
    made.of_client("PJRT_Client_Destroy")


@pytest.fixture
def buffer(table: Table) -> Iterator[int]:
    made = table.buffer()
    yield made
    table("PJRT_Buffer_Destroy", buffer=made)


OPTIONS = pjrt.CompileOptions().to_proto()


def test_the_version_is_that_of_the_header(table: Table) -> None:
    major, minor = (ctypes.c_int * 2).from_address(table.exported.address + 32)
    assert (major, minor) == API_VERSION


def test_attributes_are_unique_and_those_that_xla_needs_are_there(table: Table) -> None:
    found = table("PJRT_Plugin_Attributes")
    names = []
    size = ctypes.c_size_t.from_address(found.attributes).value
    for index in range(found.num_attributes):
        start = found.attributes + index * size
        name, length = (ctypes.c_uint64 * 2).from_address(start + 16)
        names.append(ctypes.string_at(name, length).decode())
    assert len(set(names)) == len(names)
    assert {"xla_version", "stablehlo_current_version", "stablehlo_minimum_version"} <= set(names)


def test_the_client(table: Table) -> None:
    said = table.of_client("PJRT_Client_PlatformName")
    assert ctypes.string_at(said.platform_name, said.platform_name_size).decode() == table.name
    assert table.of_client("PJRT_Client_ProcessIndex").process_index == 0


def test_devices(table: Table) -> None:
    devices, addressable = table.devices(), table.devices("AddressableDevices")
    assert devices
    assert addressable
    assert set(addressable) <= set(devices)
    assert all(table.device_id(device) >= 0 for device in devices)


def test_devices_are_found_by_their_numbers(table: Table) -> None:
    assert table.device_id(table.of_client("PJRT_Client_LookupDevice", id=0).device) == 0
    found = table.of_client("PJRT_Client_LookupAddressableDevice", local_hardware_id=0).addressable_device
    assert table("PJRT_Device_LocalHardwareId", device=found).local_hardware_id == 0


@pytest.mark.parametrize("number", [-1, 1, 2**31 - 1, -(2**31)])
def test_a_device_that_is_not_there(table: Table, number: int) -> None:
    with pytest.raises(pjrt.InvalidArgumentError) as found:
        table.of_client("PJRT_Client_LookupDevice", id=number)
    assert found.value.message == f"No matching device found for device_id {number}"
    with pytest.raises(pjrt.InvalidArgumentError) as found:
        table.of_client("PJRT_Client_LookupAddressableDevice", local_hardware_id=number)
    assert found.value.message == f"No matching device found for local_hardware_id {number}"


def test_the_default_device_assignment_of_two_replicas_whatever_devices_there_are(table: Table) -> None:
    assert table.assignment(1, 1, 1) == [0]
    assert table.assignment(2, 1, 2) == [0, 1]
    assert sorted(table.assignment(4, 2, 9)) == [0, 0, 1, 2, 3, 4, 5, 6, 7]  # of which the last is not written


def test_a_device_assignment_that_has_no_room(table: Table) -> None:
    with pytest.raises(pjrt.FailedPreconditionError) as found:
        table.assignment(4, 2, 7)
    assert found.value.message == (
        "PJRT_Client_DefaultDeviceAssignment: `default_assignment_size` 7 < `num_replicas * num_partitions`, 4 * 2 = 8"
    )
    with pytest.raises(pjrt.FailedPreconditionError, match="= 4611686014132420609"):
        table.assignment(2**31 - 1, 2**31 - 1, 7)
    for replicas, partitions in [(-1, 2), (0, 1), (-2, -2)]:
        with pytest.raises(pjrt.InvalidArgumentError, match="at least 1 replica"):
            table.assignment(replicas, partitions, 7)


def test_programs_are_compiled(table: Table) -> None:
    from jaxlib import xla_client

    proto = xla_client._xla.mlir.mlir_module_to_xla_computation(STABLEHLO).as_serialized_hlo_module_proto()
    for code, program_format in [(STABLEHLO.encode(), b"mlir"), (proto, b"hlo")]:
        table("PJRT_LoadedExecutable_Destroy", executable=table.compile(code, program_format, OPTIONS))


def test_a_program_in_the_dialect_of_xlas_own_test(table: Table) -> None:
    """XLA's test sends MHLO; frameworks send StableHLO, the only dialect that ``reference`` interprets and accepts."""
    if table.name == "reference":
        with pytest.raises(pjrt.UnimplementedError, match=r"mhlo\.copy"):
            table.compile(MHLO.encode(), b"mlir", OPTIONS)
    else:
        table("PJRT_LoadedExecutable_Destroy", executable=table.compile(MHLO.encode(), b"mlir", OPTIONS))


def test_what_is_no_compile_options(table: Table) -> None:
    with pytest.raises(pjrt.InvalidArgumentError) as found:
        table.compile(MHLO.encode(), b"mlir", b"invalid compile options")
    assert found.value.message == "PJRT_Client_Compile: failed to deserialize CompileOptionsProto"
    table("PJRT_LoadedExecutable_Destroy", executable=None)


def test_what_is_no_program_format(table: Table) -> None:
    with pytest.raises(pjrt.InvalidArgumentError) as found:
        table.compile(None, b"invalid", OPTIONS)
    assert found.value.message == "Unknown program format 'invalid'."


def test_the_first_device(table: Table) -> None:
    device, description = table.devices()[0], table.description()
    assert table.device_id(device) == 0
    assert table("PJRT_DeviceDescription_ProcessIndex", device_description=description).process_index == 0
    assert table("PJRT_Device_IsAddressable", device=device).is_addressable
    assert table("PJRT_Device_LocalHardwareId", device=device).local_hardware_id == 0


def test_kinds_of_memory_have_numbers_other_than_0_and_keep_them(table: Table) -> None:
    functions = table.extension(MEMORY_DESCRIPTIONS)
    listed = struct("PJRT_DeviceDescription_MemoryDescriptions_Args", device_description=table.description())
    table.at(functions, listed)
    assert listed.default_memory_index < listed.num_memory_descriptions
    described = {}
    for memory in (ctypes.c_uint64 * listed.num_memory_descriptions).from_address(listed.memory_descriptions):
        kind = struct("PJRT_MemoryDescription_Kind_Args", memory_description=memory)
        table.at(functions + 8, kind)
        described[ctypes.string_at(kind.kind, kind.kind_size).decode()] = kind.kind_id
    assert described
    assert "" not in described
    assert 0 not in described.values()
    memories = table("PJRT_Device_AddressableMemories", device=table.devices()[0])
    found = {}
    for memory in (ctypes.c_uint64 * memories.num_memories).from_address(memories.memories):
        kind = table("PJRT_Memory_Kind", memory=memory)
        name = ctypes.string_at(kind.kind, kind.kind_size).decode()
        found[name] = table("PJRT_Memory_Kind_Id", memory=memory).kind_id
    assert found == described


def test_a_buffer_that_is_deleted(table: Table, buffer: int) -> None:
    assert not table("PJRT_Buffer_IsDeleted", buffer=buffer).is_deleted
    table("PJRT_Buffer_Delete", buffer=buffer)
    assert table("PJRT_Buffer_IsDeleted", buffer=buffer).is_deleted


def test_a_buffer_comes_and_goes(table: Table, buffer: int) -> None:
    assert table("PJRT_Buffer_OnDeviceSizeInBytes", buffer=buffer).on_device_size_in_bytes > 0
    event = table("PJRT_Buffer_ReadyEvent", buffer=buffer).event
    table("PJRT_Event_Await", event=event)
    assert table("PJRT_Event_IsReady", event=event).is_ready
    table("PJRT_Event_Destroy", event=event)
    target = np.zeros(4, np.float32)
    copied = table("PJRT_Buffer_ToHostBuffer", src=buffer, dst=target.ctypes.data, dst_size=target.nbytes)
    table.wait(copied.event)
    np.testing.assert_array_equal(target, FLOATS)


def test_external_references(table: Table, buffer: int) -> None:
    assert table("PJRT_Buffer_OpaqueDeviceMemoryDataPointer", buffer=buffer).device_memory_ptr
    table("PJRT_Buffer_IncreaseExternalReferenceCount", buffer=buffer)
    table("PJRT_Buffer_DecreaseExternalReferenceCount", buffer=buffer)
    with pytest.raises(pjrt.InvalidArgumentError) as found:
        table("PJRT_Buffer_DecreaseExternalReferenceCount", buffer=buffer)
    assert found.value.message == "Attempting to decrease reference on a buffer with zero reference count."
