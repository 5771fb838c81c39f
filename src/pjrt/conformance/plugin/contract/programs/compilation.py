"""Checks of compiling: the formats of programs, damaged programs, and what belongs to the caller."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from pjrt.api.errors import PjrtError
from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.contract.executions.launch import Launch
from pjrt.conformance.plugin.subject import Subject, compile_options

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


@check("compile.text", calls=_CALLS, rule="A program of the format 'mlir' may be the text of an MLIR module.")
def _text(subject: Subject) -> None:
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


@check(
    "compile.encoding",
    calls=_CALLS,
    over=("bytecode", "portable_artifact"),
    rule="A program of the format 'mlir' may be the bytecode of an MLIR module.",
)
def _bytecode(subject: Subject, encoding: str) -> None:
    code, program_format = _encoded(subject, encoding)
    expect_sum(subject, _expect_compiled(subject, compile_code(subject, code, program_format)))


@check(
    "compile.hlo",
    calls=_CALLS,
    over=("hlo", "hlo_with_config"),
    rule="'hlo' is the format of a serialized HloModuleProto, 'hlo_with_config' of one with its configuration.",
)
def _hlo(subject: Subject, program_format: str) -> None:
    code, program_format = _encoded(subject, program_format)
    answer = compile_code(subject, code, program_format)
    if answer.error is not None and "format" in answer.error.message.lower():
        raise Unsupported(f"the plugin does not read '{program_format}': {answer.error}")
    expect_sum(subject, _expect_compiled(subject, answer))


@check(
    "compile.code_is_not_terminated",
    calls=_CALLS,
    rule="code_size is the size of the program; what follows in memory is not read.",
)
def _not_terminated(subject: Subject) -> None:
    program = subject.program("add")
    memory = ctypes.create_string_buffer(program.code + b"}})) junk @@ \xff" * 16)
    answer = compile_code(subject, ctypes.addressof(memory), program.format, code_size=len(program.code))
    expect_sum(subject, _expect_compiled(subject, answer))


@check(
    "compile.format_is_not_terminated",
    calls=_CALLS,
    rule="format_size is the size of the name of the format; no zero follows it.",
)
def _format_not_terminated(subject: Subject) -> None:
    program = subject.program("add")
    memory = ctypes.create_string_buffer(program.format.encode() + b"xyz")
    answer = compile_code(subject, program.code, "", format=ctypes.addressof(memory), format_size=len(program.format))
    expect_sum(subject, _expect_compiled(subject, answer))


@check(
    "compile.caller_owns_the_program",
    calls=_CALLS,
    rule="Program and options only have to live for the call: the caller may free them when it has returned.",
)
def _caller_owns(subject: Subject) -> None:
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


@check(
    "compile.program_is_not_changed",
    calls=_CALLS,
    rule="The program belongs to the caller; compiling reads it and writes nothing into it.",
)
def _not_changed(subject: Subject) -> None:
    program = subject.program("add")
    memory = ctypes.create_string_buffer(program.code, len(program.code) + 1)
    answer = compile_code(subject, ctypes.addressof(memory), program.format, code_size=len(program.code))
    _expect_compiled(subject, answer)
    subject.expect(memory.raw[:-1] == program.code, "the same bytes as before", "other bytes")


@check(
    "compile.twice",
    calls=(*_CALLS, "PJRT_LoadedExecutable_Destroy", "PJRT_LoadedExecutable_Delete"),
    rule="Each compilation makes an executable of its own, which lives until it is destroyed.",
)
def _twice(subject: Subject) -> None:
    first, second, third = (subject.compile("add") for _ in range(3))
    subject.expect(len({first, second, third}) == 3, "three executables", "the same handle for two of them")
    subject.call("PJRT_LoadedExecutable_Destroy", executable=first)
    expect_sum(subject, second)
    subject.call("PJRT_LoadedExecutable_Delete", executable=second)
    expect_sum(subject, third)


@check(
    "compile.damaged",
    calls=_CALLS,
    over=("empty", "half", "noise", "zeros", "prose", "unknown_operation", "no_entry"),
    rule="A program that cannot be read is refused with an error, and the client goes on.",
)
def _damaged(subject: Subject, damage: str) -> None:
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


@check(
    "compile.damaged_encoding",
    calls=_CALLS,
    over=("bytecode", "portable_artifact"),
    rule="Bytecode that ends early is refused with an error, and the client goes on.",
)
def _truncated(subject: Subject, encoding: str) -> None:
    code, program_format = _encoded(subject, encoding)
    for size in (5, len(code) // 3, len(code) - 3):
        answer = compile_code(subject, code[:size], program_format)
        subject.expect(answer.error is not None, f"an error for {size} of {len(code)} bytes", "a compiled program")
    expect_sum(subject, subject.compile("add"))


@check(
    "compile.format",
    calls=_CALLS,
    over={"unknown": "no-such-format", "empty": "", "longer": "mlir2", "other_case": "MLIR"},
    rule="The formats are 'mlir', 'hlo' and 'hlo_with_config'; a name of no format is refused with an error.",
)
def _format(subject: Subject, name: str) -> None:
    _expect_refused(subject, compile_code(subject, subject.program("add").code, name))


@check(
    "compile.large",
    calls=_CALLS,
    rule="A program may have any size.",
)
def _large(subject: Subject) -> None:
    program = subject.program("add")
    comment = b"\n# a comment of the program\n" if program.format == "tiny" else b"\n// a comment of the program\n"
    answer = compile_code(subject, program.code + comment * 40_000, program.format)
    expect_sum(subject, _expect_compiled(subject, answer))
