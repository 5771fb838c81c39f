"""The layer ``adapt``: functions that are made of others, errors instead of nulls, and the sizes of structs."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from fake_plugin import OFFSETS, SLOT, Arguments, FakePlugin, call, chain_of, read, write
from tiny import build

from pjrt import layers
from pjrt.abi import schema
from pjrt.api.errors import InvalidArgumentError
from pjrt.layers import stack

CLIENT, DEVICES = 0x1000, (0x2000, 0x2008)
UNIMPLEMENTED = 12
_devices = (ctypes.c_uint64 * 2)(*DEVICES)
_kind = ctypes.create_string_buffer(b"gaudy")


def sets(struct: str, **values: int) -> Callable[[int], None]:
    """Return a function of a plugin that writes fields of its arguments."""
    fields = schema.STRUCTS[f"PJRT_{struct}_Args"].fields

    def function(address: int) -> None:
        for name, value in values.items():
            field = fields[name]
            ctypes.memmove(address + field.offset, value.to_bytes(field.size, "little"), field.size)

    return function


def device_id(address: int) -> None:
    description = read(address, schema.STRUCTS["PJRT_DeviceDescription_Id_Args"].fields["device_description"].offset)
    sets("DeviceDescription_Id", id=7 + DEVICES.index(description))(address)


def describe(address: int) -> None:
    write(address, 24, read(address, 16))  # a device is its own description


FUNCTIONS: Mapping[str, Callable[[int], int | None]] = {
    "Client_AddressableDevices": sets(
        "Client_AddressableDevices", addressable_devices=ctypes.addressof(_devices), num_addressable_devices=2
    ),
    "Device_GetDescription": describe,
    "DeviceDescription_Id": device_id,
    "DeviceDescription_Kind": sets("DeviceDescription_Kind", device_kind=ctypes.addressof(_kind), device_kind_size=5),
    "Memory_Kind": sets("Memory_Kind", kind=ctypes.addressof(_kind), kind_size=5),
    "Buffer_Device": sets("Buffer_Device", device=DEVICES[1]),
    "Executable_NumOutputs": sets("Executable_NumOutputs", num_outputs=3),
    "Buffer_OpaqueDeviceMemoryDataPointer": sets("Buffer_OpaqueDeviceMemoryDataPointer", device_memory_ptr=0x77770000),
    "Event_Await": lambda _: None,
}


def plugin(**others: Callable[[int], int | None]) -> FakePlugin:
    functions = {f"PJRT_{name}": function for name, function in {**FUNCTIONS, **others}.items()}
    return FakePlugin(functions)


def adapted(fake: FakePlugin | None = None, **options: str) -> int:
    return stack.wrap_table((fake or plugin()).address, "fake", ["adapt"], {"adapt": options})


def value(arguments: Arguments, name: str) -> int:
    field = arguments.struct.fields[name]
    return int.from_bytes(ctypes.string_at(arguments.address + field.offset, field.size), "little")


def message_of(table: int, error: int) -> str:
    arguments = call(table, "PJRT_Error_Message", error=error)
    return ctypes.string_at(value(arguments, "message"), value(arguments, "message_size")).decode()


@pytest.mark.parametrize(
    ("function", "given", "expected"),
    [
        ("Client_Devices", {"client": CLIENT}, {"num_devices": 2, "devices": ctypes.addressof(_devices)}),
        ("Client_ProcessIndex", {"client": CLIENT}, {"process_index": 0}),
        ("Client_LookupDevice", {"client": CLIENT, "id": 8}, {"device": DEVICES[1]}),
        ("Client_LookupAddressableDevice", {"client": CLIENT, "local_hardware_id": 7}, {
            "addressable_device": DEVICES[0]}),
        ("Plugin_Attributes", {}, {"num_attributes": 0}),
        ("Device_LocalHardwareId", {"device": DEVICES[1]}, {"local_hardware_id": 8}),
        ("Device_IsAddressable", {"device": DEVICES[1]}, {"is_addressable": 1}),
        ("DeviceDescription_ToString", {"device_description": DEVICES[0]}, {"to_string_size": 5}),
        ("Memory_ToString", {"memory": 0x3000}, {"to_string": ctypes.addressof(_kind)}),
        ("Buffer_UnsafePointer", {"buffer": 0x4000}, {"buffer_pointer": 0x77770000}),
        ("Buffer_IsOnCpu", {"buffer": 0x4000}, {"is_on_cpu": 0}),
        ("Event_IsReady", {"event": 0x5000}, {"is_ready": 1}),
        ("Executable_NumPartitions", {"executable": 0x6000}, {"num_partitions": 1}),
        ("Executable_OutputMemoryKinds", {"executable": 0x6000}, {"num_outputs": 3}),
        ("Client_AddressableMemories", {"client": CLIENT}, {"num_addressable_memories": 2}),
    ],
)  # fmt: skip
def test_a_function_that_the_plugin_lacks_is_made_of_others(
    function: str, given: dict[str, int], expected: dict[str, int]
) -> None:
    arguments = call(adapted(), f"PJRT_{function}", **given)
    assert arguments.result is None
    assert {name: value(arguments, name) for name in expected} == expected


def test_a_memory_of_the_layer_stands_for_its_device() -> None:
    placed: list[tuple[int, int]] = []
    fields = schema.STRUCTS["PJRT_Client_BufferFromHostBuffer_Args"].fields

    def from_host(address: int) -> None:
        placed.append((read(address, fields["device"].offset), read(address, fields["memory"].offset)))

    table = adapted(plugin(Client_BufferFromHostBuffer=from_host))
    memory = call(table, "PJRT_Buffer_Memory", buffer=0x4000)["memory"]
    assert call(table, "PJRT_Device_DefaultMemory", device=DEVICES[1])["memory"] == memory
    assert value(call(table, "PJRT_Memory_AddressableByDevices", memory=memory), "num_devices") == 1
    kind = call(table, "PJRT_Memory_Kind", memory=memory)
    assert ctypes.string_at(kind["kind"], kind["kind_size"]) == b"device"
    arguments = call(table, "PJRT_Client_BufferFromHostBuffer", client=CLIENT, memory=memory)
    assert placed == [(DEVICES[1], 0)]
    assert (arguments["memory"], arguments["device"]) == (memory, 0)  # the caller's struct is as it was
    other = call(table, "PJRT_Client_CreateErrorBuffer", client=CLIENT, memory=memory)
    assert other.result
    assert message_of(table, other.result).startswith("PJRT_Client_CreateErrorBuffer takes a memory")


def test_a_copy_to_a_default_memory_is_one_to_its_device() -> None:
    table = adapted(
        plugin(
            Memory_AddressableByDevices=sets(
                "Memory_AddressableByDevices", devices=ctypes.addressof(_devices), num_devices=2
            ),
            Device_DefaultMemory=lambda address: write(address, 24, 0x100 + read(address, 16)),
            Buffer_CopyToDevice=lambda address: write(address, 32, 1 + read(address, 24)),
        )
    )
    copied = call(table, "PJRT_Buffer_CopyToMemory", buffer=0x4000, dst_memory=0x100 + DEVICES[1])
    assert (copied.result, copied["dst_buffer"]) == (None, 1 + DEVICES[1])
    refused = call(table, "PJRT_Buffer_CopyToMemory", buffer=0x4000, dst_memory=0x3000)
    assert refused.result
    assert "copies to the default memory of a device" in message_of(table, refused.result)


def test_data_for_the_handlers_of_a_context_that_the_plugin_never_sees_is_left_out() -> None:
    functions = [each for each in schema.FUNCTIONS.values() if each.extension == "FFI"]
    number = next(i for i, (name, _) in enumerate(schema.EXTENSIONS) if name == "FFI")
    seen: list[int] = []
    table = adapted(FakePlugin({}, extensions=[(number, [seen.append] * len(functions))]))
    context = call(table, "PJRT_ExecuteContext_Create")["context"]
    place = next(i for i, each in enumerate(functions) if each.name == "PJRT_FFI_UserData_Add")
    (extension,) = chain_of(table)
    arguments = Arguments("PJRT_FFI_UserData_Add_Args", context=context)
    assert SLOT(read(extension, 24 + 8 * place))(arguments.address) is None
    assert call(table, "PJRT_ExecuteContext_Destroy", context=context).result is None
    assert seen == []


def test_a_memory_of_the_layer_ends_with_its_client() -> None:
    ended: list[int] = []
    kept = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: ended.append(data or 0))
    table = adapted(plugin(Client_Destroy=lambda _: None))
    memory = call(table, "PJRT_Device_DefaultMemory", device=DEVICES[0])["memory"]
    functions = read(memory)
    set_data = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)(read(functions, 32))
    get_data = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(read(functions, 24))
    set_data(memory, 0x11, 0x22, ctypes.cast(kept, ctypes.c_void_p))
    assert (get_data(memory, 0x11), get_data(memory, 0x12)) == (0x22, None)
    call(table, "PJRT_Client_Destroy", client=CLIENT)
    assert ended == [0x22]


def test_what_cannot_be_made_is_an_error_with_a_name() -> None:
    table = adapted()
    error = call(table, "PJRT_Client_Compile", client=CLIENT).result
    assert error
    assert value(call(table, "PJRT_Error_GetCode", error=error), "code") == UNIMPLEMENTED
    assert "of version 0.117 of the C API, lacks PJRT_Client_Compile" in message_of(table, error)
    stack.enable(table, "adapt", False)  # the slots stay
    assert value(call(table, "PJRT_Client_ProcessIndex", client=CLIENT), "process_index") == 0


def test_behind_the_end_of_a_table_are_functions_too() -> None:
    old = FakePlugin({}, num_functions=100)
    table = adapted(old)
    assert read(table) == old.size
    assert call(table, "PJRT_Buffer_Bitcast", buffer=1).result
    newer = adapted(old, version="0.98")
    assert read(newer) > old.size
    assert read(newer, 32) >> 32 == 98


def test_an_extension_gets_the_functions_that_it_lacks() -> None:
    functions = [each for each in schema.FUNCTIONS.values() if each.extension == "Layouts"]
    number = next(i for i, (name, _) in enumerate(schema.EXTENSIONS) if name == "Layouts")
    table = adapted(FakePlugin({}, extensions=[(number, [lambda _: None])]))
    (extension,) = chain_of(table)
    assert read(extension) == 24 + 8 * len(functions)
    arguments = Arguments(functions[-1].args)
    error = SLOT(read(extension, 24 + 8 * (len(functions) - 1)))(arguments.address)
    assert functions[-1].name in message_of(table, error)


def test_a_callback_comes_after_a_wait() -> None:
    came: list[int | None] = []
    ready = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(lambda error, data: came.extend([error, data]))
    address = ctypes.cast(ready, ctypes.c_void_p).value or 0
    assert call(adapted(), "PJRT_Event_OnReady", event=1, callback=address, user_arg=9).result is None
    assert came == [None, 9]


@pytest.mark.parametrize("options", [{"version": "1.3"}, {"version": "new"}, {"versions": "0.3"}])
def test_wrong_options(options: dict[str, str]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"adapt: expected .* found"):
        adapted(**options)


def test_a_version_whose_errors_are_structs_is_not_stated_for_an_older_plugin() -> None:
    old = plugin()
    old.table[4] = 113 << 32
    with pytest.raises(InvalidArgumentError, match=r"expected version=0\.113 at most .* found version=0\.114"):
        adapted(old, version="0.114")


def test_later_results_are_empty_where_the_plugin_leaves_them() -> None:
    table = adapted(plugin(Device_MemoryStats=lambda _: None))
    arguments = Arguments("PJRT_Device_MemoryStats_Args", device=1, bytes_reserved=0xDEAD)
    SLOT(read(table, OFFSETS["PJRT_Device_MemoryStats"]))(arguments.address)
    assert arguments["bytes_reserved"] == 0


def test_a_struct_of_an_older_framework_is_made_longer() -> None:
    seen: list[tuple[int, int]] = []

    def create(address: int) -> None:
        seen.append((read(address), read(address, 72)))
        write(address, 64, CLIENT)

    table = adapted(plugin(Client_Create=create))
    arguments = Arguments("PJRT_Client_Create_Args", kv_try_get_callback=0xBAD)
    write(arguments.address, 0, 72)  # what lies behind is not of the struct
    assert SLOT(read(table, OFFSETS["PJRT_Client_Create"]))(arguments.address) is None
    assert seen == [(88, 0)]
    assert (read(arguments.address), arguments["client"], arguments["kv_try_get_callback"]) == (72, CLIENT, 0xBAD)


USE = """
import numpy, pjrt, sys
client = pjrt.client(sys.argv[1])
double = client.compile("func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {"
                        "%0 = stablehlo.add %x, %x : tensor<3xf32> "
                        "return %0 : tensor<3xf32> }")
for _ in range(2):
    print(numpy.asarray(double(numpy.arange(3, dtype="f4"))[0]).tolist())
"""


@pytest.fixture(scope="module")
def strict(tiny_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[int, str]]:
    """A program on a plugin that is strict about sizes, with layers or without."""
    folder = tmp_path_factory.mktemp("strict")
    target = layers.write_library(folder / "libpass.so", "reference", ["pass"]).target
    library = build.build([Path(__file__).with_name("older.c")], tiny_cache, "libolder.so", ["-ldl"])

    def run(chosen: str, **sizes: str) -> tuple[int, str]:
        limits = {f"OLDER_{key.upper()}": size for key, size in sizes.items()}
        old = {"OLDER_TARGET": str(target), "OLDER_MINOR": "106", "PJRT_LAYERS": chosen}
        environment = {**os.environ, **old, **limits}
        command = [sys.executable, "-W", "ignore", "-c", USE, str(library)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.mark.parametrize("sizes", [{"create": "72", "options": "80"}, {"options": "112"}])
def test_a_plugin_that_refuses_longer_structs(strict: Callable[..., tuple[int, str]], sizes: dict[str, str]) -> None:
    status, output = strict("", **sizes)
    assert status == 1
    assert "size: expected" in output
    assert strict("adapt", **sizes) == (0, "[0.0, 2.0, 4.0]\n" * 2)
