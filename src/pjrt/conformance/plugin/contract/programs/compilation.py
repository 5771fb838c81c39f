"""Checks of compiling: the formats of programs, damaged programs, what belongs to the caller, and compile options."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.errors import PjrtError
from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.contract.executions.launch import Launch
from pjrt.conformance.plugin.subject import Subject, compile_options

# Compiling: the formats of programs, damaged programs, and what belongs to the caller.

_CALLS = ("PJRT_Client_Compile",)
_X = np.arange(4, dtype=np.float32)
_Y = np.full(4, 10, np.float32)
OPTIONS = compile_options()
"""The compile options of one device."""


def compile_code(subject: Subject, code: Any, program_format: str, options: Any = OPTIONS, **fields: Any) -> Any:
    """Compile a program, and return what the call answers.

    Args:
        subject: the plugin.
        code: its bytes.
        program_format: the name of its format.
        options: a serialized ``CompileOptionsProto``.
        fields: fields of ``PJRT_Program``.
    """
    program = {"code": code, "format": program_format, **fields}
    return subject.attempt("PJRT_Client_Compile", client=subject.client, program=program, compile_options=options)


def expect_sum(subject: Subject, executable: int) -> None:
    """Fail the check unless an executable adds two arrays."""
    Launch(subject, executable, [[subject.buffer(_X), subject.buffer(_Y)]]).expect(_X + _Y)


def _expect_compiled(subject: Subject, answer: Any) -> int:
    subject.expect(answer.error is None, "a compiled program", str(answer.error))
    return int(answer.executable)


def _expect_refused(subject: Subject, answer: Any) -> None:
    """Fail the check unless the program was refused with an error and the client goes on to compile."""
    subject.expect(answer.error is not None, "an error", "a compiled program")
    subject.expect(bool(answer.error.message), "a message", f"{answer.error} without one")
    expect_sum(subject, subject.compile("add"))


def _stablehlo(subject: Subject) -> str:
    """Return the program ``add`` as StableHLO text."""
    program = subject.program("add")
    if program.format != "mlir":
        raise Unsupported(f"the plugin's programs are of the format '{program.format}', not StableHLO")
    return bytes(program.code).decode()


@check("compile.text", calls=_CALLS)
def _text(subject: Subject) -> None:
    """A program of the format 'mlir' may be the text of an MLIR module."""
    expect_sum(subject, _expect_compiled(subject, compile_code(subject, _stablehlo(subject).encode(), "mlir")))


def _encoded(subject: Subject, encoding: str) -> tuple[bytes, str]:
    text = _stablehlo(subject)
    try:
        from pjrt import stablehlo

        match encoding:
            case "bytecode":
                program = stablehlo.from_hlo(stablehlo.to_hlo(text))
            case "portable_artifact":
                program = stablehlo.serialize(text, stablehlo.minimum_version())
            case _:
                program = stablehlo.to_hlo(text, with_config=encoding == "hlo_with_config")
    except (ImportError, PjrtError) as error:
        raise Unsupported(f"the program cannot be converted here: {error}") from error
    return program.code, program.format


@check("compile.encoding", calls=_CALLS, over=("bytecode", "portable_artifact"))
def _bytecode(subject: Subject, encoding: str) -> None:
    """A program of the format 'mlir' may be the bytecode of an MLIR module."""
    code, program_format = _encoded(subject, encoding)
    expect_sum(subject, _expect_compiled(subject, compile_code(subject, code, program_format)))


@check("compile.hlo", calls=_CALLS, over=("hlo", "hlo_with_config"))
def _hlo(subject: Subject, program_format: str) -> None:
    """'hlo' is the format of a serialized HloModuleProto, 'hlo_with_config' of one with its configuration."""
    code, program_format = _encoded(subject, program_format)
    answer = compile_code(subject, code, program_format)
    if answer.error is not None and "format" in answer.error.message.lower():
        raise Unsupported(f"the plugin does not read '{program_format}': {answer.error}")
    expect_sum(subject, _expect_compiled(subject, answer))


@check("compile.code_is_not_terminated", calls=_CALLS)
def _compile_code_is_not_terminated(subject: Subject) -> None:
    """code_size is the size of the program; what follows in memory is not read."""
    program = subject.program("add")
    memory = ctypes.create_string_buffer(program.code + b"}})) junk @@ \xff" * 16)
    answer = compile_code(subject, ctypes.addressof(memory), program.format, code_size=len(program.code))
    expect_sum(subject, _expect_compiled(subject, answer))


@check("compile.format_is_not_terminated", calls=_CALLS)
def _format_not_terminated(subject: Subject) -> None:
    """format_size is the size of the name of the format; no zero follows it."""
    program = subject.program("add")
    memory = ctypes.create_string_buffer(program.format.encode() + b"xyz")
    answer = compile_code(subject, program.code, "", format=ctypes.addressof(memory), format_size=len(program.format))
    expect_sum(subject, _expect_compiled(subject, answer))


@check("compile.caller_owns_the_program", calls=_CALLS)
def _caller_owns(subject: Subject) -> None:
    """Program and options only have to live for the call: the caller may free them when it has returned."""
    program = subject.program("add")
    memories = [ctypes.create_string_buffer(each, len(each) + 1) for each in (program.code, OPTIONS)]
    answer = subject.attempt(
        "PJRT_Client_Compile",
        client=subject.client,
        program={"code": ctypes.addressof(memories[0]), "code_size": len(program.code), "format": program.format},
        compile_options=ctypes.addressof(memories[1]),
        compile_options_size=len(OPTIONS),
    )
    executable = _expect_compiled(subject, answer)
    for memory in memories:
        ctypes.memset(memory, 0x5A, len(memory))
    expect_sum(subject, executable)
    handle = subject.call("PJRT_LoadedExecutable_GetExecutable", loaded_executable=executable).executable
    subject.expect(
        subject.call("PJRT_Executable_NumOutputs", executable=handle).num_outputs == 1, "1 result", "another number"
    )


@check("compile.program_is_not_changed", calls=_CALLS)
def _not_changed(subject: Subject) -> None:
    """The program belongs to the caller; compiling reads it and writes nothing into it."""
    program = subject.program("add")
    memory = ctypes.create_string_buffer(program.code, len(program.code) + 1)
    answer = compile_code(subject, ctypes.addressof(memory), program.format, code_size=len(program.code))
    _expect_compiled(subject, answer)
    subject.expect(memory.raw[:-1] == program.code, "the same bytes as before", "other bytes")


@check("compile.twice", calls=(*_CALLS, "PJRT_LoadedExecutable_Destroy", "PJRT_LoadedExecutable_Delete"))
def _twice(subject: Subject) -> None:
    """Each compilation makes an executable of its own, which lives until it is destroyed."""
    first, second, third = (subject.compile("add") for _ in range(3))
    subject.expect(len({first, second, third}) == 3, "three executables", "the same handle for two of them")
    subject.call("PJRT_LoadedExecutable_Destroy", executable=first)
    expect_sum(subject, second)
    subject.call("PJRT_LoadedExecutable_Delete", executable=second)
    expect_sum(subject, third)


@check(
    "compile.damaged", calls=_CALLS, over=("empty", "half", "noise", "zeros", "prose", "unknown_operation", "no_entry")
)
def _compile_damaged(subject: Subject, damage: str) -> None:
    """A program that cannot be read is refused with an error, and the client goes on."""
    program = subject.program("add")
    code = program.code
    match damage:
        case "empty":
            code = b""
        case "half":
            code = code[: len(code) // 2]
        case "noise":
            code = np.random.default_rng(5).integers(0, 256, 512, np.uint8).tobytes()
        case "zeros":
            code = bytes(256)
        case "prose":
            code = b"Once upon a time there was a program."
        case "unknown_operation":
            code = code.replace(b"stablehlo.add", b"stablehlo.wobble").replace(b"= add ", b"= wobble ")
            if code == program.code:
                raise Unsupported("the program has no operation to damage")
        case "no_entry":
            _stablehlo(subject)
            code = b"module { func.func private @helper() { return } }"
    _expect_refused(subject, compile_code(subject, code, program.format))


@check("compile.damaged_encoding", calls=_CALLS, over=("bytecode", "portable_artifact"))
def _truncated(subject: Subject, encoding: str) -> None:
    """Bytecode that ends early is refused with an error, and the client goes on."""
    code, program_format = _encoded(subject, encoding)
    for size in (5, len(code) // 3, len(code) - 3):
        answer = compile_code(subject, code[:size], program_format)
        subject.expect(answer.error is not None, f"an error for {size} of {len(code)} bytes", "a compiled program")
    expect_sum(subject, subject.compile("add"))


@check(
    "compile.format",
    calls=_CALLS,
    over={"unknown": "no-such-format", "empty": "", "longer": "mlir2", "other_case": "MLIR"},
)
def _format(subject: Subject, name: str) -> None:
    """The formats are 'mlir', 'hlo' and 'hlo_with_config'; a name of no format is refused with an error."""
    _expect_refused(subject, compile_code(subject, subject.program("add").code, name))


@check("compile.large", calls=_CALLS)
def _large(subject: Subject) -> None:
    """A program may have any size."""
    program = subject.program("add")
    comment = b"\n# a comment of the program\n" if program.format == "tiny" else b"\n// a comment of the program\n"
    answer = compile_code(subject, program.code + comment * 40_000, program.format)
    expect_sum(subject, _expect_compiled(subject, answer))


# Compile options: replicas and partitions, the device assignment, damaged options.


def device_ids(subject: Subject) -> list[int]:
    """Return the ids of the devices that the client can use."""
    descriptions = [
        subject.call("PJRT_Device_GetDescription", device=device).device_description for device in subject.devices
    ]
    return [
        int(subject.call("PJRT_DeviceDescription_Id", device_description=description).id)
        for description in descriptions
    ]


def assigned(ids: list[list[int]]) -> bytes:
    """Return the compile options of a device assignment, a row a replica."""
    assignment = DeviceAssignment(tuple(tuple(row) for row in ids))
    return CompileOptions(device_assignment=assignment).to_proto()


@check(
    "compile_options.damaged",
    calls=_CALLS,
    over={"noise": b"\xff\xff\xff\xff\x0f", "prose": b"invalid compile options", "half": OPTIONS[:-1]},
)
def _compile_options_damaged(subject: Subject, options: bytes) -> None:
    """compile_options is a serialized CompileOptionsProto; bytes that are none are refused with an error."""
    program = subject.program("add")
    answer = compile_code(subject, program.code, program.format, options)
    subject.expect(answer.error is not None, "an error", "a compiled program")
    expect_sum(subject, subject.compile("add"))


@check("compile_options.are_not_terminated", calls=_CALLS)
def _compile_options_are_not_terminated(subject: Subject) -> None:
    """compile_options_size is the size of the options; what follows in memory is not read."""
    program = subject.program("add")
    options = np.frombuffer(OPTIONS + b"\xff" * 64, np.uint8)
    answer = subject.call(
        "PJRT_Client_Compile",
        client=subject.client,
        program={"code": program.code, "format": program.format},
        compile_options=options.ctypes.data,
        compile_options_size=len(OPTIONS),
    )
    expect_sum(subject, answer.executable)


@check(
    "compile_options.second_device",
    calls=(*_CALLS, "PJRT_LoadedExecutable_AddressableDevices", "PJRT_LoadedExecutable_Execute", "PJRT_Buffer_Device"),
)
def _second_device(subject: Subject) -> None:
    """The device assignment of the options names the devices that run the program."""
    second = subject.several_devices(2)[1]
    program = subject.program("add")
    answer = compile_code(subject, program.code, program.format, assigned([[device_ids(subject)[1]]]))
    subject.expect(answer.error is None, "a compiled program", str(answer.error))
    devices = subject.call("PJRT_LoadedExecutable_AddressableDevices", executable=answer.executable)
    subject.expect(
        list(devices.addressable_devices) == [second], "the second device", f"{list(devices.addressable_devices)}"
    )
    launch = Launch(subject, answer.executable, [[subject.buffer(_X, device=second)] * 2]).succeeded()
    launch.expect(2 * _X)
    place = subject.call("PJRT_Buffer_Device", buffer=launch.results[0][0]).device
    subject.expect(place == second, "a result on the second device", "a result on another")


@check("compile_options.unknown_device", calls=_CALLS, over={"large": 987654, "negative": -5})
def _unknown_device(subject: Subject, number: int) -> None:
    """A device assignment names devices of the client; one that names another is refused with an error."""
    program = subject.program("add")
    answer = compile_code(subject, program.code, program.format, assigned([[number]]))
    subject.expect(answer.error is not None, "an error", f"a program compiled for a device {number}")
    expect_sum(subject, subject.compile("add"))


@check("compile_options.too_many", calls=_CALLS, over={"replicas": "num_replicas", "partitions": "num_partitions"})
def _too_many(subject: Subject, name: str) -> None:
    """A program for more devices than there are is refused with an error."""
    program = subject.program("add")
    count = len(subject.call("PJRT_Client_Devices", client=subject.client).devices) + 1
    options = CompileOptions(**{name: count}).to_proto()  # type: ignore[arg-type]
    answer = compile_code(subject, program.code, program.format, options)
    subject.expect(answer.error is not None, "an error", f"a program compiled for {count} devices")
    expect_sum(subject, subject.compile("add"))


@check(
    "compile_options.replicas",
    calls=(*_CALLS, "PJRT_Executable_NumReplicas", "PJRT_LoadedExecutable_AddressableDeviceLogicalIds"),
)
def _replicas(subject: Subject) -> None:
    """A program of two replicas has two addressable devices, with the replicas 0 and 1."""
    subject.several_devices(2)
    program = subject.program("add")
    answer = compile_code(subject, program.code, program.format, CompileOptions(num_replicas=2).to_proto())
    subject.expect(answer.error is None, "a compiled program", str(answer.error))
    handle = subject.call("PJRT_LoadedExecutable_GetExecutable", loaded_executable=answer.executable).executable
    counts = (
        subject.call("PJRT_Executable_NumReplicas", executable=handle).num_replicas,
        subject.call("PJRT_Executable_NumPartitions", executable=handle).num_partitions,
    )
    subject.expect(counts == (2, 1), "2 replicas of 1 partition", f"{counts}")
    devices = subject.call("PJRT_LoadedExecutable_AddressableDevices", executable=answer.executable)
    found = list(devices.addressable_devices)
    subject.expect(len(found) == 2 and len(set(found)) == 2, "2 devices", str(found))
    if not subject.plugin.has("PJRT_LoadedExecutable_AddressableDeviceLogicalIds"):
        return
    ids = subject.call("PJRT_LoadedExecutable_AddressableDeviceLogicalIds", executable=answer.executable)
    places = [(each.replica, each.partition) for each in ids.addressable_device_logical_ids]
    subject.expect(places == [(0, 0), (1, 0)], "the places (0, 0) and (1, 0)", str(places))


@check(
    "compile_options.order_of_devices",
    calls=(*_CALLS, "PJRT_LoadedExecutable_Execute", "PJRT_LoadedExecutable_AddressableDevices"),
)
def _order(subject: Subject) -> None:
    """The lists of arguments and results follow the order of the addressable devices, also when the assignment is not
    in the order of ids.
    """
    subject.several_devices(2)
    ids = device_ids(subject)
    program = subject.program("add")
    answer = compile_code(subject, program.code, program.format, assigned([[ids[1]], [ids[0]]]))
    subject.expect(answer.error is None, "a compiled program", str(answer.error))
    devices = list(
        subject.call("PJRT_LoadedExecutable_AddressableDevices", executable=answer.executable).addressable_devices
    )
    rows = [[subject.buffer(_X + 10 * number, device=device)] * 2 for number, device in enumerate(devices)]
    launch = Launch(subject, answer.executable, rows).succeeded()
    for number, device in enumerate(devices):
        (result,) = launch.results[number]
        subject.expect_contents(result, 2 * (_X + 10 * number))
        place = subject.call("PJRT_Buffer_Device", buffer=result).device
        subject.expect(place == device, f"the result of list {number} on its device", "another device")


@check("compile_options.portable", calls=(*_CALLS, "PJRT_LoadedExecutable_Execute"))
def _portable(subject: Subject) -> None:
    """A portable executable runs on the addressable device that execute_device names."""
    program = subject.program("add")
    options = CompileOptions(compile_portable_executable=True).to_proto()
    answer = compile_code(subject, program.code, program.format, options)
    if answer.error is not None:
        raise Unsupported(f"the plugin compiles no portable executables: {answer.error}")
    for device in subject.devices:
        arguments = [subject.buffer(_X, device=device)] * 2
        launch = Launch(subject, answer.executable, [arguments], execute_device=device).succeeded()
        launch.expect(2 * _X)
        place = subject.call("PJRT_Buffer_Device", buffer=launch.results[0][0]).device
        subject.expect(place == device, "a result on the device that was named", "a result on another")
