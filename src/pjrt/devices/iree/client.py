"""The client of the ``iree`` device, and the way from parsed programs to functions on handles."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import InvalidArgumentError, PjrtError
from pjrt.api.executable import Executable
from pjrt.devices.author.code import DeclinedError
from pjrt.devices.iree import compiler, packages
from pjrt.devices.iree.compiler import ModuleCache, Target, compile_error
from pjrt.devices.iree.runtime import ALIGNMENT, IreeGpuMemory, IreeMemory, IreeProgram, Runtime
from pjrt.devices.iree.support import boundary, overwritten, refusal, source_text
from pjrt.devices.stablehlo_client import StableHloClient
from pjrt.host import Compiled
from pjrt.host.executable import HostExecutable
from pjrt.host.loaded_executable import HostLoadedExecutable
from pjrt.stablehlo import cost
from pjrt.stablehlo.ir.operation import ParsedProgram

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


PLATFORM = "iree"


class IreeClient(StableHloClient):
    """IREE's compiler and runtime.

    Args:
        num_devices: the number of devices. Each device of the drivers of processors is a virtual one of this machine's;
            those of the other drivers are the first of the machine's.
        driver: the driver of IREE's runtime: ``local-task`` and ``local-sync`` for processors, with threads of its own
            and without, ``cuda``, ``hip`` or ``vulkan``.
        target_cpu: the processor to compile for, as LLVM names it; this machine's by default.
        target_triple: the target triple to compile for, as LLVM names it; this machine's by default.
        target_gpu: the GPU to compile for, such as ``sm_80`` or ``gfx942``; IREE's default by default. ``hip`` has
            none.
        flags: further flags of IREE's compiler.
        compile_in: ``subprocess``, where a crash of the compiler is an error, or ``process``.
        cache: a folder for compiled modules, which any number of processes share; none by default.
        fallback: ``reference`` for the interpreter, which runs what IREE does not; ``None`` for an error instead.
        memory_limit: the most bytes of buffers on each device; no limit by default.
        collective_timeout: how long the devices of a launch wait for each other, in seconds.

    Raises:
        InvalidArgumentError: an option is not as expected.
    """

    __slots__ = ("runtime", "target")

    def __init__(
        self,
        num_devices: int = 1,
        *,
        driver: str = "local-task",
        target_cpu: str | None = None,
        target_triple: str | None = None,
        target_gpu: str | None = None,
        flags: Sequence[str] = (),
        compile_in: str = "subprocess",
        cache: str | os.PathLike[str] | None = None,
        fallback: str | None = "reference",
        memory_limit: int | None = None,
        collective_timeout: float = 60.0,
    ) -> None:
        if compile_in not in PLACES:
            raise InvalidArgumentError(f"expected one of {', '.join(PLACES)} as compile_in, found {compile_in!r}")
        self.target = target = Target.of(driver, target_cpu, target_triple, target_gpu, flags)
        self.runtime = runtime = Runtime(driver, num_devices)
        compiler = IreeCompiler(target, runtime, compile_in, None if cache is None else Path(cache).expanduser())
        super().__init__(
            PLATFORM,
            compile=compiler.compile,
            deserialize=compiler.deserialize,
            fallback=fallback,
            whole_programs=True,
            fuse=None if fallback is None else lambda operation: not refusal(operation),
            num_devices=num_devices,
            memory=(IreeMemory if target.is_local else IreeGpuMemory)(runtime),
            platform_version=f"IREE {packages.version()}, {target}",
            alignment=ALIGNMENT,
            device_kind=f"{PLATFORM} {driver}",
            device_attributes={"driver": driver},
            memory_limit=memory_limit,
            collective_timeout=collective_timeout,
        )

    def open(self) -> None:
        """Open the devices of IREE's runtime, which happens at their first use otherwise.

        Raises:
            FailedPreconditionError: the runtime is not installed.
            UnavailableError: the driver's library or its hardware is missing.
        """
        assert self.runtime.devices

    def load(self, executable: Executable, options: CompileOptions | None = None) -> HostLoadedExecutable:
        if isinstance(executable, HostExecutable) and executable.platform_name == PLATFORM and options is None:
            # Its functions are those of another client or of a topology, which has no devices.
            return self.deserialize(executable.serialize())
        return super().load(executable, options)

    def close(self) -> None:
        super().close()
        self.runtime.close()
