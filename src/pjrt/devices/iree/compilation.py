"""Compilation: from parsed programs to functions on handles, by way of IREE's modules."""

from __future__ import annotations

from pathlib import Path

from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import PjrtError
from pjrt.devices.author.declined import DeclinedError
from pjrt.devices.iree import compiler
from pjrt.devices.iree.diagnostics import compile_error
from pjrt.devices.iree.module_cache import ModuleCache
from pjrt.devices.iree.program import IreeProgram
from pjrt.devices.iree.runtime import Runtime
from pjrt.devices.iree.source import source_text
from pjrt.devices.iree.support import boundary, overwritten, refusal
from pjrt.devices.iree.target import Target
from pjrt.host import Compiled
from pjrt.stablehlo import cost
from pjrt.stablehlo.operation import ParsedProgram

PLACES = {"subprocess": compiler.in_subprocess, "process": compiler.in_process}
"""The functions that compile, by the value of the option ``compile_in``."""

_MEMOIZATION = "--iree-hal-memoization"


class IreeCompiler:
    """IREE's compiler for one target.

    Args:
        target: the target.
        runtime: the runtime of the programs.
        compile_in: ``subprocess`` or ``process``.
        cache: a folder of compiled modules; ``None`` for none.
    """

    def __init__(self, target: Target, runtime: Runtime, compile_in: str, cache: Path | None) -> None:
        self._target = target
        self._runtime = runtime
        self._flags = target.compiler_flags()
        self._compile = PLACES[compile_in]
        self._cache = None if cache is None else ModuleCache(cache)

    def compile(self, program: ParsedProgram, options: CompileOptions) -> Compiled:
        """Compile a program of one device.

        Raises:
            DeclinedError: IREE does not compile the program; the error has the operations that are the reason.
            InvalidArgumentError: the compiler does not take a flag.
        """
        body = program.entry.body
        reasons = {} if body is None else {n: refusal(each) for n, each in enumerate(body.operations)}
        reasons = {number: reason for number, reason in reasons.items() if reason}
        others = (function.body for function in program.functions.values() if function is not program.entry)
        elsewhere = next((r for block in others if block is not None for r in map(refusal, block.operations) if r), "")
        _, outside = boundary(program)
        if reasons or elsewhere or outside:
            raise DeclinedError(next(iter(reasons.values()), elsewhere or outside), list(reasons))
        return self._compiled(self._module(program), program)

    def deserialize(self, payload: bytes, program: ParsedProgram, options: CompileOptions) -> Compiled:
        """Return a compiled program from its module, which is not compiled again."""
        return self._compiled(payload, program)

    def _module(self, program: ParsedProgram) -> bytes:
        code = source_text(program)
        flags = self._flags
        if _has_control_flow(program) and not any(flag.startswith(_MEMOIZATION) for flag in flags):
            # The command buffers that IREE 3.13 keeps have the offsets of a loop's first turn, or of one branch.
            flags = [*flags, f"{_MEMOIZATION}=false"]
        cached = None if self._cache is None else self._cache.get(code, flags)
        if cached is not None:
            return cached
        try:
            module = self._compile(code, flags)
        except compiler.CompilationError as error:
            raise compile_error(str(error), program) from None
        except compiler.CrashError as error:
            raise DeclinedError(f"{error}; the program is {program.entry.name}") from None
        if self._cache is not None:
            self._cache.put(code, flags, module)
        return module

    def _compiled(self, module: bytes, program: ParsedProgram) -> Compiled:
        results, _ = boundary(program)
        function = program.entry
        compiled = IreeProgram(
            self._runtime, module, function.name, results, self._target.is_asynchronous, overwritten(program)
        )
        has_arguments = bool(function.type.arguments)
        return Compiled(
            run=compiled.run if has_arguments else compiled.run_without_arguments,
            outputs=results,
            takes_context=not has_arguments,
            runs_on_caller=_returns_at_once(program, self._target.is_asynchronous),
            code_size=len(module),
            serialize=lambda: module,
        )


_SHORT = 100_000
"""The operations and bytes of a program that takes about as long as its way to another thread, 20 µs."""


def _returns_at_once(program: ParsedProgram, asynchronous: bool) -> bool:
    """Whether a call of a program takes a few microseconds: because it returns before its work is done, or because the
    work is little.
    """
    if _has_control_flow(program):
        return False
    if asynchronous:
        return True
    try:
        work = cost(program)
    except PjrtError:
        return False
    return work.flops + 10 * work.transcendentals + work.bytes_accessed <= _SHORT


def _has_control_flow(program: ParsedProgram) -> bool:
    """Whether a program has operations for which a call waits: its own thread reads the condition when it is
    computed.
    """
    return any(operation.name in _CONTROL_FLOW for operation in program.walk())


_CONTROL_FLOW = frozenset({"stablehlo.while", "stablehlo.if", "stablehlo.case"})
