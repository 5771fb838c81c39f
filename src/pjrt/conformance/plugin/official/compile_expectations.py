"""Expectations of XLA's tests: compilation, with formats, options, and topologies of clients."""

from __future__ import annotations

import base64

from pjrt.capi import raw
from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.subject import Subject, compile_options

_COMPILE = "PJRT_Client_Compile"
_DESTROY = "PJRT_LoadedExecutable_Destroy"
_ADD_ONE = """module {
  func.func @main(%x: tensor<f32>) -> tensor<f32> {
    %0 = "mhlo.copy"(%x) : (tensor<f32>) -> tensor<f32>
    %1 = mhlo.constant dense<1.0> : tensor<f32>
    %2 = mhlo.add %0, %1 : tensor<f32>
    return %2 : tensor<f32>
  }
}
"""
_PASS_THROUGH = """module {
  func.func @main(%x: tensor<i32>) -> tensor<i32> {
    return %x : tensor<i32>
  }
}
"""
# An HloModuleProto whose entry returns its arguments f32[], f32[3] and f32[2,3] as a tuple: plugins may read HLO as a
# protocol buffer alone, and only XLA can write one.
_TUPLE = base64.b64decode(
    "CgtUdXBsZUNyZWF0ZRIGbWFpbi4xGpsDCgZtYWluLjESLAoHQXJnXzAuMRIJcGFyYW1ldGVyGgcQCyoDgAEBOgCYAoGAgIAQogQAkgUAEjcKB0Fy"
    "Z18xLjESCXBhcmFtZXRlchoQEAsaAQMqBgoBAIABATIBADoASAGYAoKAgIAQogQAkgUAEjoKB0FyZ18yLjESCXBhcmFtZXRlchoTEAsaAgIDKgcK"
    "AgEAgAEBMgIAADoASAKYAoOAgIAQogQAkgUAEmUKB3R1cGxlLjESBXR1cGxlGjIQDSIHEAsqA4ABASIQEAsaAQMqBgoBAIABATIBACITEAsaAgID"
    "KgcKAgEAgAEBMgIAADoAmAKEgICAEKICD4GAgIAQgoCAgBCDgICAEKIEAJIFACJ/CgcQCyoDgAEBChAQCxoBAyoGCgEAgAEBMgEAChMQCxoCAgMq"
    "BwoCAQCAAQEyAgAAEjIQDSIHEAsqA4ABASIQEAsaAQMqBgoBAIABATIBACITEAsaAgIDKgcKAgEAgAEBMgIAABoHQXJnXzAuMRoHQXJnXzEuMRoH"
    "QXJnXzIuMSgBMISAgIAQInAKBxALKgOAAQEKEBALGgEDKgYKAQCAAQEyAQAKExALGgICAyoHCgIBAIABATICAAASMhANIgcQCyoDgAEBIhAQCxoB"
    "AyoGCgEAgAEBMgEAIhMQCxoCAgMqBwoCAQCAAQEyAgAAGgJwMBoCcDEaAnAyMAFCAJIBAJoBAA=="
)


def _program(code: bytes | str | None, form: str) -> raw.Struct:
    return raw.Struct("PJRT_Program", code=code, format=form)


def _refuse_own_programs(subject: Subject, dialect: str) -> None:
    if subject.samples.folder:
        raise Unsupported(f"programs of {dialect}; the user gave programs of another format")


@check(
    "official.compile",
    calls=(_COMPILE, _DESTROY),
    rule="A program in MHLO, as MLIR text, is compiled. A plugin may leave out the dialect, with the code "
    "UNIMPLEMENTED: frameworks send StableHLO.",
)
def _compile(subject: Subject) -> None:
    _refuse_own_programs(subject, "MHLO")
    subject.require(_COMPILE)
    executable = subject.call(
        _COMPILE, client=subject.client, program=_program(_ADD_ONE, "mlir"), compile_options=compile_options()
    ).executable
    subject.call(_DESTROY, executable=executable)


@check(
    "official.compile_xla_computation",
    calls=(_COMPILE, _DESTROY),
    rule="A program in HLO, as an HloModuleProto, is compiled. A plugin may leave out the format, with the code "
    "UNIMPLEMENTED.",
)
def _compile_hlo(subject: Subject) -> None:
    _refuse_own_programs(subject, "HLO")
    subject.require(_COMPILE)
    executable = subject.call(
        _COMPILE, client=subject.client, program=_program(_TUPLE, "hlo"), compile_options=compile_options()
    ).executable
    subject.call(_DESTROY, executable=executable)


@check(
    "official.compile_invalid_option",
    calls=(_COMPILE, _DESTROY),
    rule="Compile options that are no CompileOptionsProto are an error with the code INVALID_ARGUMENT, and the "
    "executable stays a null pointer, which can be destroyed.",
)
def _compile_invalid_option(subject: Subject) -> None:
    result = subject.attempt(
        _COMPILE, client=subject.client, program=subject.program("identity"), compile_options=b"invalid compile options"
    )
    subject.expect(result.error, f"{_COMPILE} to fail with INVALID_ARGUMENT", "that it succeeded")
    assert result.error is not None
    subject.expect_code(result.error, "INVALID_ARGUMENT", _COMPILE)
    message = "PJRT_Client_Compile: failed to deserialize CompileOptionsProto"
    subject.advise(result.error.message == message, f"the message {message!r}", repr(result.error.message))
    subject.call(_DESTROY, executable=0)


@check(
    "official.compile_invalid_program_format",
    calls=(_COMPILE, _DESTROY),
    rule="A program of an unknown format, without code, is an error with the code INVALID_ARGUMENT.",
)
def _compile_invalid_format(subject: Subject) -> None:
    program = _program(None, "invalid")
    error = subject.fails(
        _COMPILE, "INVALID_ARGUMENT", client=subject.client, program=program, compile_options=compile_options()
    )
    message = "Unknown program format 'invalid'."
    subject.advise(error.message == message, f"the message {message!r}", repr(error.message))
    subject.call(_DESTROY, executable=0)


def _topology(subject: Subject) -> int:
    function = "PJRT_Client_TopologyDescription"
    subject.require(function)
    topology = subject.call(function, client=subject.client).topology
    subject.expect(topology, "a topology", "a null pointer")
    return int(topology)


def _compile_for(subject: Subject, topology: int, **fields: int) -> None:
    subject.require("PJRT_Compile")
    program = subject.program("identity") if subject.samples.folder else _program(_PASS_THROUGH, "mlir")
    executable = subject.call(
        "PJRT_Compile", topology=topology, program=program, compile_options=compile_options(), **fields
    ).executable
    subject.expect(executable, "an executable", "a null pointer")
    subject.call("PJRT_Executable_Destroy", executable=executable)


@check(
    "official.compile_with_shared_topology",
    calls=("PJRT_Client_TopologyDescription", "PJRT_Compile"),
    rule="A program that passes its argument through is compiled for the topology of a client, without the client.",
)
def _compile_with_shared_topology(subject: Subject) -> None:
    _compile_for(subject, _topology(subject))


@check(
    "official.compile_with_client",
    calls=("PJRT_Client_TopologyDescription", "PJRT_Compile"),
    rule="A program is compiled for the topology of a client, and with the client.",
)
def _compile_with_client(subject: Subject) -> None:
    _compile_for(subject, _topology(subject), client=subject.client)
