"""Checks of executables that are loaded elsewhere: serialized ones, and those compiled for a topology."""

from __future__ import annotations

from typing import Any

from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import StatusCode
from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.contract.programs.compilation import OPTIONS, compile_code, expect_sum
from pjrt.conformance.plugin.contract.programs.executables import answer_of, delete, executable_of, reread
from pjrt.conformance.plugin.other_process import call_in_another_process
from pjrt.conformance.plugin.subject import Subject

# Serialized executables: in the same process, in another process, and damaged.

_CALLS = ("PJRT_Executable_Serialize", "PJRT_Executable_DeserializeAndLoad")


def serialized(subject: Subject, sample: str = "add") -> bytes:
    """Return the bytes of a serialized executable, which the plugin has freed already."""
    answer = answer_of(subject, "PJRT_Executable_Serialize", executable=executable_of(subject, sample))
    data = bytes(answer.serialized_bytes)
    delete(answer.serialized_executable_deleter, answer.serialized_executable)
    return data


def load(subject: Subject, data: bytes) -> int:
    """Deserialize an executable, and return the loaded one."""
    answer = answer_of(subject, "PJRT_Executable_DeserializeAndLoad", client=subject.client, serialized_executable=data)
    return int(answer.loaded_executable)


@check("serialization.bytes", calls=("PJRT_Executable_Serialize",))
def _bytes(subject: Subject) -> None:
    """PJRT_Executable_Serialize returns bytes, their owner, and the deleter that frees them."""
    answer = answer_of(subject, "PJRT_Executable_Serialize", executable=executable_of(subject, "add"))
    subject.expect(bool(answer.serialized_bytes), "bytes", "none")
    subject.expect(bool(answer.serialized_executable_deleter), "a deleter", "null")
    delete(answer.serialized_executable_deleter, answer.serialized_executable)


@check(
    "serialization.bytes_outlive_the_executable",
    calls=("PJRT_Executable_Serialize", "PJRT_Executable_Destroy", "PJRT_LoadedExecutable_Destroy"),
)
def _bytes_outlive(subject: Subject) -> None:
    """The bytes live until their deleter is called, also when the executable is destroyed."""
    loaded = subject.compile("add")
    handle = subject.call("PJRT_LoadedExecutable_GetExecutable", loaded_executable=loaded).executable
    answer = answer_of(subject, "PJRT_Executable_Serialize", executable=handle)
    before = bytes(answer.serialized_bytes)
    subject.call("PJRT_Executable_Destroy", executable=handle)
    subject.call("PJRT_LoadedExecutable_Destroy", executable=loaded)
    after = bytes(reread(answer).serialized_bytes)
    subject.expect(after == before, "the same bytes", "other bytes")
    delete(answer.serialized_executable_deleter, answer.serialized_executable)


@check("serialization.each_is_deleted_on_its_own", calls=("PJRT_Executable_Serialize",))
def _each(subject: Subject) -> None:
    """The deleter is called once for each serialized executable."""
    handle = executable_of(subject, "add")
    first, second = (answer_of(subject, "PJRT_Executable_Serialize", executable=handle) for _ in range(2))
    before = bytes(second.serialized_bytes)
    delete(first.serialized_executable_deleter, first.serialized_executable)
    after = bytes(reread(second).serialized_bytes)
    subject.expect(after == before, "the second bytes as they were", "other bytes")
    delete(second.serialized_executable_deleter, second.serialized_executable)


@check("serialization.loads_again", calls=_CALLS)
def _serialization_loads_again(subject: Subject) -> None:
    """PJRT_Executable_DeserializeAndLoad makes an executable of these bytes that computes the same."""
    loaded = load(subject, serialized(subject))
    expect_sum(subject, loaded)


@check(
    "serialization.keeps_the_answers",
    calls=(*_CALLS, "PJRT_Executable_NumOutputs", "PJRT_Executable_NumReplicas", "PJRT_Executable_OutputElementTypes"),
)
def _keeps(subject: Subject) -> None:
    """A deserialized executable answers about itself as the one that was serialized."""
    loaded = load(subject, serialized(subject, "mixed_results"))
    again = subject.call("PJRT_LoadedExecutable_GetExecutable", loaded_executable=loaded).executable
    before, after = (_answers(subject, each) for each in (executable_of(subject, "mixed_results"), again))
    subject.expect(after == before, str(before), str(after))


@check(
    "serialization.keeps_the_options",
    calls=(*_CALLS, "PJRT_Executable_NumReplicas", "PJRT_LoadedExecutable_AddressableDevices"),
)
def _keeps_the_options(subject: Subject) -> None:
    """Null for overridden_serialized_compile_options leaves the options in the bytes: a program of two replicas comes
    back as one.
    """
    subject.several_devices(2)
    subject.require("PJRT_Executable_NumReplicas", "PJRT_LoadedExecutable_AddressableDevices")
    program = subject.program("add")
    compiled = compile_code(subject, program.code, program.format, CompileOptions(num_replicas=2).to_proto())
    subject.expect(compiled.error is None, "a compiled program", str(compiled.error))
    first = subject.call("PJRT_LoadedExecutable_GetExecutable", loaded_executable=compiled.executable).executable
    answer = answer_of(subject, "PJRT_Executable_Serialize", executable=first)
    again = load(subject, bytes(answer.serialized_bytes))
    delete(answer.serialized_executable_deleter, answer.serialized_executable)
    handle = subject.call("PJRT_LoadedExecutable_GetExecutable", loaded_executable=again).executable
    replicas = subject.call("PJRT_Executable_NumReplicas", executable=handle).num_replicas
    subject.expect(replicas == 2, "2 replicas", replicas)
    devices = subject.call("PJRT_LoadedExecutable_AddressableDevices", executable=again).addressable_devices
    subject.expect(len(devices) == 2, "2 addressable devices", len(devices))


def _answers(subject: Subject, executable: int) -> dict[str, object]:
    answers: dict[str, object] = {}
    for name, field in (
        ("PJRT_Executable_NumOutputs", "num_outputs"),
        ("PJRT_Executable_NumReplicas", "num_replicas"),
        ("PJRT_Executable_NumPartitions", "num_partitions"),
        ("PJRT_Executable_OutputElementTypes", "output_types"),
        ("PJRT_Executable_OutputDimensions", "dims"),
        ("PJRT_Executable_OutputMemoryKinds", "memory_kinds"),
    ):
        if subject.plugin.has(name):
            answer = subject.attempt(name, executable=executable)
            answers[name] = answer.error.code if answer.error is not None else getattr(answer, field)
    return answers


@check("serialization.caller_owns_the_bytes", calls=_CALLS)
def _caller_owns(subject: Subject) -> None:
    """The bytes that are deserialized only have to live for the call."""
    data = bytearray(serialized(subject))
    import ctypes

    memory = (ctypes.c_char * len(data)).from_buffer(data)
    answer = subject.call(
        "PJRT_Executable_DeserializeAndLoad",
        client=subject.client,
        serialized_executable=ctypes.addressof(memory),
        serialized_executable_size=len(data),
    )
    ctypes.memset(memory, 0x5A, len(data))
    expect_sum(subject, answer.loaded_executable)


@check("serialization.several_loads", calls=_CALLS)
def _several(subject: Subject) -> None:
    """The bytes can be loaded as often as the caller wants; each executable is destroyed on its own."""
    data = serialized(subject)
    first, second = load(subject, data), load(subject, data)
    subject.expect(first != second, "two executables", "the same handle twice")
    subject.call("PJRT_LoadedExecutable_Destroy", executable=first)
    expect_sum(subject, second)


@check("serialization.serializes_again", calls=_CALLS)
def _again(subject: Subject) -> None:
    """A deserialized executable can be serialized in its turn."""
    loaded = load(subject, serialized(subject))
    handle = subject.call("PJRT_LoadedExecutable_GetExecutable", loaded_executable=loaded).executable
    answer = answer_of(subject, "PJRT_Executable_Serialize", executable=handle)
    expect_sum(subject, load(subject, bytes(answer.serialized_bytes)))
    delete(answer.serialized_executable_deleter, answer.serialized_executable)


@check("serialization.options_are_overridden", calls=_CALLS)
def _overridden(subject: Subject) -> None:
    """overridden_serialized_compile_options replace the options that are in the bytes; null leaves them."""
    data = serialized(subject)
    answer = answer_of(
        subject,
        "PJRT_Executable_DeserializeAndLoad",
        client=subject.client,
        serialized_executable=data,
        overridden_serialized_compile_options=OPTIONS,
    )
    expect_sum(subject, answer.loaded_executable)


@check("serialization.another_client", calls=(*_CALLS, "PJRT_Client_Create"))
def _another_client(subject: Subject) -> None:
    """The bytes can be loaded by any client of the same platform and version."""
    data = serialized(subject)
    other = subject.new_client()
    answer = answer_of(subject, "PJRT_Executable_DeserializeAndLoad", client=other, serialized_executable=data)
    handle = subject.call("PJRT_LoadedExecutable_GetExecutable", loaded_executable=answer.loaded_executable).executable
    count = subject.call("PJRT_Executable_NumOutputs", executable=handle).num_outputs
    subject.expect(count == 1, "1 result", str(count))


@check("serialization.another_process", calls=_CALLS)
def _another_process(subject: Subject) -> None:
    """The bytes can be loaded in another process, by the same platform and version of the plugin."""
    expect_sum(subject, load(subject, call_in_another_process(subject, serialized)))


@check(
    "serialization.damaged",
    calls=("PJRT_Executable_DeserializeAndLoad",),
    over=("empty", "half", "last_byte_missing", "noise", "prose"),
)
def _serialization_damaged(subject: Subject, damage: str) -> None:
    """Bytes that are not a whole serialized executable are refused with an error, and the client goes on."""
    data = serialized(subject)
    match damage:
        case "empty":
            data = b""
        case "half":
            data = data[: len(data) // 2]
        case "last_byte_missing":
            data = data[:-1]
        case "noise":
            data = bytes(range(1, 256)) * 8
        case "prose":
            data = b"Once upon a time there was an executable."
    answer = subject.attempt("PJRT_Executable_DeserializeAndLoad", client=subject.client, serialized_executable=data)
    if answer.error is None:  # a plugin may do without the last bytes
        expect_sum(subject, answer.loaded_executable)
    expect_sum(subject, subject.compile("add"))


# Compiling for a topology, without devices, and loading what was compiled.

_TOPOLOGY_CALLS = ("PJRT_Compile", "PJRT_Client_TopologyDescription")


def _compile_for_topology(
    subject: Subject, *, code: bytes | None = None, program_format: str = "", **fields: Any
) -> Any:
    subject.require("PJRT_Compile")
    program = subject.program("add")
    topology = answer_of(subject, "PJRT_Client_TopologyDescription", client=subject.client).topology
    answer = subject.attempt(
        "PJRT_Compile",
        topology=topology,
        program={
            "code": program.code if code is None else code,
            "format": program_format or program.format,
        },
        **{"compile_options": OPTIONS, **fields},
    )
    if answer.error is not None and answer.error.code == StatusCode.UNIMPLEMENTED:
        raise Unsupported(f"PJRT_Compile: {answer.error}")
    return answer


def _compiled_for_topology(subject: Subject, **fields: Any) -> int:
    answer = _compile_for_topology(subject, **fields)
    subject.expect(answer.error is None, "a compiled program", str(answer.error))
    return int(answer.executable)


@check("compile_for_topology.without_client", calls=(*_TOPOLOGY_CALLS, "PJRT_Executable_NumOutputs"))
def _without(subject: Subject) -> None:
    """PJRT_Compile makes an executable for a topology; the client is optional."""
    handle = _compiled_for_topology(subject)
    count = subject.call("PJRT_Executable_NumOutputs", executable=handle).num_outputs
    subject.expect(count == 1, "1 result", str(count))
    name = subject.call("PJRT_Executable_Name", executable=handle).executable_name
    subject.expect(bool(name), "a name", "an empty name")


@check("compile_for_topology.with_client", calls=_TOPOLOGY_CALLS)
def _with(subject: Subject) -> None:
    """PJRT_Compile takes a client too, for optimizations that it guides."""
    handle = _compiled_for_topology(subject, client=subject.client)
    count = subject.call("PJRT_Executable_NumOutputs", executable=handle).num_outputs
    subject.expect(count == 1, "1 result", str(count))


@check("compile_for_topology.loads", calls=(*_TOPOLOGY_CALLS, "PJRT_Client_Load", "PJRT_LoadedExecutable_Execute"))
def _compile_for_topology_loads(subject: Subject) -> None:
    """A compatible client loads the executable with PJRT_Client_Load, and executes it then."""
    handle = _compiled_for_topology(subject)
    loaded = answer_of(
        subject, "PJRT_Client_Load", client=subject.client, executable=handle, compile_options=OPTIONS
    ).loaded_executable
    expect_sum(subject, loaded)


@check(
    "compile_for_topology.executable_can_be_destroyed",
    calls=(*_TOPOLOGY_CALLS, "PJRT_Client_Load", "PJRT_Executable_Destroy"),
)
def _destroyed(subject: Subject) -> None:
    """The loaded executable lives on when the executable is destroyed that was loaded."""
    handle = _compiled_for_topology(subject)
    loaded = answer_of(
        subject, "PJRT_Client_Load", client=subject.client, executable=handle, compile_options=OPTIONS
    ).loaded_executable
    subject.call("PJRT_Executable_Destroy", executable=handle)
    expect_sum(subject, loaded)


@check(
    "compile_for_topology.serializes",
    calls=(*_TOPOLOGY_CALLS, "PJRT_Executable_Serialize", "PJRT_Executable_DeserializeAndLoad"),
)
def _serializes(subject: Subject) -> None:
    """An executable for a topology can be serialized, and loaded by a client."""
    answer = answer_of(subject, "PJRT_Executable_Serialize", executable=_compiled_for_topology(subject))
    data = bytes(answer.serialized_bytes)
    delete(answer.serialized_executable_deleter, answer.serialized_executable)
    loaded = answer_of(
        subject, "PJRT_Executable_DeserializeAndLoad", client=subject.client, serialized_executable=data
    ).loaded_executable
    expect_sum(subject, loaded)


@check("compile_for_topology.damaged", calls=_TOPOLOGY_CALLS, over=("program", "options", "format"))
def _compile_for_topology_damaged(subject: Subject, what: str) -> None:
    """A damaged program, damaged options and an unknown format are refused with an error."""
    match what:
        case "program":
            answer = _compile_for_topology(subject, code=b"Once upon a time there was a program.")
        case "options":
            answer = _compile_for_topology(subject, compile_options=b"invalid compile options")
        case _:
            answer = _compile_for_topology(subject, program_format="no-such-format")
    subject.expect(answer.error is not None, "an error", "a compiled program")
    expect_sum(subject, subject.compile("add"))
