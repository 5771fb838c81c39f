"""Checks of the extension AbiVersion: whether executables fit a runtime."""

from __future__ import annotations

from typing import Any

from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.programs.executables import answer_of, executable_of
from pjrt.conformance.plugin.contract.programs.owned_bytes import delete
from pjrt.conformance.plugin.subject import Subject

_RUNTIME = "PJRT_Client_RuntimeAbiVersion"
_EXECUTABLE = "PJRT_Executable_GetAbiVersion"


def _runtime(subject: Subject) -> int:
    subject.require_extension("AbiVersion")
    return int(answer_of(subject, _RUNTIME, client=subject.client).abi_version)


def _executable(subject: Subject) -> int:
    subject.require_extension("AbiVersion")
    return int(answer_of(subject, _EXECUTABLE, executable=executable_of(subject, "add")).abi_version)


def _proto(subject: Subject, name: str, version: int) -> bytes:
    answer: Any = answer_of(subject, name, abi_version=version)
    data = bytes(answer.serialized_proto or b"")
    delete(answer.serialized_proto_deleter, answer.serialized_proto_holder)
    return data


@check(
    "abi_version.runtime_fits_itself",
    calls=(_RUNTIME, "PJRT_RuntimeAbiVersion_IsCompatibleWithRuntime", "PJRT_RuntimeAbiVersion_Destroy"),
    rule="A runtime is compatible with one of the same version: the call returns no error.",
)
def _itself(subject: Subject) -> None:
    first, second = _runtime(subject), _runtime(subject)
    answer_of(
        subject,
        "PJRT_RuntimeAbiVersion_IsCompatibleWithRuntime",
        abi_version=first,
        other_abi_version=second,
    )
    for version in (first, second):
        subject.call("PJRT_RuntimeAbiVersion_Destroy", abi_version=version)


@check(
    "abi_version.executable_fits",
    calls=(_RUNTIME, _EXECUTABLE, "PJRT_RuntimeAbiVersion_IsCompatibleWithExecutable"),
    rule="An executable is compatible with the runtime that compiled it.",
)
def _fits(subject: Subject) -> None:
    answer_of(
        subject,
        "PJRT_RuntimeAbiVersion_IsCompatibleWithExecutable",
        abi_version=_runtime(subject),
        executable_abi_version=_executable(subject),
    )


@check(
    "abi_version.platform_id",
    calls=("PJRT_RuntimeAbiVersion_PlatformId", "PJRT_ExecutableAbiVersion_PlatformId"),
    rule="A runtime and the executables that it compiles have the same platform id.",
)
def _platform(subject: Subject) -> None:
    runtime = answer_of(subject, "PJRT_RuntimeAbiVersion_PlatformId", abi_version=_runtime(subject)).platform_id
    executable = answer_of(
        subject, "PJRT_ExecutableAbiVersion_PlatformId", abi_version=_executable(subject)
    ).platform_id
    subject.expect(runtime == executable, f"the platform id {runtime}", str(executable))


@check(
    "abi_version.proto",
    calls=(
        "PJRT_RuntimeAbiVersion_ToProto",
        "PJRT_RuntimeAbiVersion_FromProto",
        "PJRT_ExecutableAbiVersion_ToProto",
        "PJRT_ExecutableAbiVersion_FromProto",
    ),
    over=("Runtime", "Executable"),
    rule="A version is written to bytes, which its deleter frees, and is read from them again.",
)
def _round_trip(subject: Subject, kind: str) -> None:
    version = _runtime(subject) if kind == "Runtime" else _executable(subject)
    data = _proto(subject, f"PJRT_{kind}AbiVersion_ToProto", version)
    again = answer_of(subject, f"PJRT_{kind}AbiVersion_FromProto", serialized_proto=data).abi_version
    subject.expect(again != version, "a new handle", "the same handle")
    subject.call(f"PJRT_{kind}AbiVersion_Destroy", abi_version=version)
    after = _proto(subject, f"PJRT_{kind}AbiVersion_ToProto", again)
    subject.expect(after == data, repr(data), repr(after))
    subject.call(f"PJRT_{kind}AbiVersion_Destroy", abi_version=again)


@check(
    "abi_version.damaged_proto",
    calls=("PJRT_RuntimeAbiVersion_FromProto", "PJRT_ExecutableAbiVersion_FromProto"),
    over=("Runtime", "Executable"),
    rule="Bytes that are no version are refused with an error.",
)
def _damaged(subject: Subject, kind: str) -> None:
    _runtime(subject)
    answer = subject.attempt(f"PJRT_{kind}AbiVersion_FromProto", serialized_proto=b"\xff\xff\xff\xff\x0f")
    subject.expect(answer.error is not None, "an error", "a version")
