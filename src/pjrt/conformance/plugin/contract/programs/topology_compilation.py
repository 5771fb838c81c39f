"""Checks of compiling for a topology, without devices, and of loading what was compiled."""

from __future__ import annotations

from typing import Any

from pjrt.api.errors import StatusCode
from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.contract.programs.compilation import OPTIONS, expect_sum
from pjrt.conformance.plugin.contract.programs.executables import answer_of
from pjrt.conformance.plugin.contract.programs.owned_bytes import delete
from pjrt.conformance.plugin.subject import Subject

_CALLS = ("PJRT_Compile", "PJRT_Client_TopologyDescription")


def _compile(subject: Subject, *, code: bytes | None = None, program_format: str = "", **fields: Any) -> Any:
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


def _compiled(subject: Subject, **fields: Any) -> int:
    answer = _compile(subject, **fields)
    subject.expect(answer.error is None, "a compiled program", str(answer.error))
    return int(answer.executable)


@check(
    "compile_for_topology.without_client",
    calls=(*_CALLS, "PJRT_Executable_NumOutputs"),
    rule="PJRT_Compile makes an executable for a topology; the client is optional.",
)
def _without(subject: Subject) -> None:
    handle = _compiled(subject)
    count = subject.call("PJRT_Executable_NumOutputs", executable=handle).num_outputs
    subject.expect(count == 1, "1 result", str(count))
    name = subject.call("PJRT_Executable_Name", executable=handle).executable_name
    subject.expect(bool(name), "a name", "an empty name")
    subject.call("PJRT_Executable_Destroy", executable=handle)


@check(
    "compile_for_topology.with_client",
    calls=_CALLS,
    rule="PJRT_Compile takes a client too, for optimizations that it guides.",
)
def _with(subject: Subject) -> None:
    handle = _compiled(subject, client=subject.client)
    count = subject.call("PJRT_Executable_NumOutputs", executable=handle).num_outputs
    subject.expect(count == 1, "1 result", str(count))


@check(
    "compile_for_topology.loads",
    calls=(*_CALLS, "PJRT_Client_Load", "PJRT_LoadedExecutable_Execute"),
    rule="A compatible client loads the executable with PJRT_Client_Load, and executes it then.",
)
def _loads(subject: Subject) -> None:
    handle = _compiled(subject)
    loaded = answer_of(
        subject, "PJRT_Client_Load", client=subject.client, executable=handle, compile_options=OPTIONS
    ).loaded_executable
    expect_sum(subject, loaded)


@check(
    "compile_for_topology.executable_can_be_destroyed",
    calls=(*_CALLS, "PJRT_Client_Load", "PJRT_Executable_Destroy"),
    rule="The loaded executable lives on when the executable is destroyed that was loaded.",
)
def _destroyed(subject: Subject) -> None:
    handle = _compiled(subject)
    loaded = answer_of(
        subject, "PJRT_Client_Load", client=subject.client, executable=handle, compile_options=OPTIONS
    ).loaded_executable
    subject.call("PJRT_Executable_Destroy", executable=handle)
    expect_sum(subject, loaded)


@check(
    "compile_for_topology.serializes",
    calls=(*_CALLS, "PJRT_Executable_Serialize", "PJRT_Executable_DeserializeAndLoad"),
    rule="An executable for a topology can be serialized, and loaded by a client.",
)
def _serializes(subject: Subject) -> None:
    answer = answer_of(subject, "PJRT_Executable_Serialize", executable=_compiled(subject))
    data = bytes(answer.serialized_bytes)
    delete(answer.serialized_executable_deleter, answer.serialized_executable)
    loaded = answer_of(
        subject, "PJRT_Executable_DeserializeAndLoad", client=subject.client, serialized_executable=data
    ).loaded_executable
    expect_sum(subject, loaded)


@check(
    "compile_for_topology.damaged",
    calls=_CALLS,
    over=("program", "options", "format"),
    rule="A damaged program, damaged options and an unknown format are refused with an error.",
)
def _damaged(subject: Subject, what: str) -> None:
    match what:
        case "program":
            answer = _compile(subject, code=b"Once upon a time there was a program.")
        case "options":
            answer = _compile(subject, compile_options=b"invalid compile options")
        case _:
            answer = _compile(subject, program_format="no-such-format")
    subject.expect(answer.error is not None, "an error", "a compiled program")
    expect_sum(subject, subject.compile("add"))
