"""The compiler of a host platform: the author's ``compile``, with checks and serialization."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pjrt.api.capability import Capabilities, Effort, StaticCheck, Support, decide, only_format
from pjrt.api.checks import expect_bytes
from pjrt.api.compile_options import CompileOptions, Partitioning
from pjrt.api.errors import InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.api.program import AnyProgram, Program
from pjrt.api.shape_spec import Shapes
from pjrt.host.compiled import Compiled, CompileFunction
from pjrt.host.device_errors import without_traceback
from pjrt.host.device_memory.memory import Memory
from pjrt.host.executable import HostExecutable, Origin
from pjrt.host.serialization import unpack

StaticCheckFunction = Callable[[Program, CompileOptions, Capabilities], StaticCheck]
"""An author's ``static_check(program, options, capabilities)``, such as ``pjrt.stablehlo.static_check``."""


PartitioningFunction = Callable[[Program], Partitioning]
"""An author's ``partitioning(program)``, such as ``pjrt.stablehlo.partitioning_of``."""

RefineFunction = Callable[[Program, Shapes], Program]
"""An author's ``refine(program, shapes)``, such as ``pjrt.stablehlo.refine``."""

FingerprintFunction = Callable[[Program], bytes]
"""An author's ``fingerprint(program)``, such as ``pjrt.stablehlo.fingerprint``."""

_BYTECODE = b"ML\xefR"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCompiler:
    """The compiler of a platform; ``HostClient`` documents the author's part of its attributes."""

    platform_name: str
    platform_version: str
    default_memory_kind: str
    memory: Memory | None
    compile_function: CompileFunction
    deserialize_function: Callable[[bytes, Program, CompileOptions], Any] | None
    formats: tuple[str, ...] | None
    capabilities: Capabilities | Callable[[], Capabilities]
    static_check: StaticCheckFunction | None
    partitioning: PartitioningFunction | None
    refine: RefineFunction | None
    fingerprint_function: FingerprintFunction | None

    def compile(
        self, program: AnyProgram, options: CompileOptions | None, shapes: Shapes | None = None
    ) -> HostExecutable:
        """Compile a program by the author's ``compile``, for these shapes of its arguments.

        Raises:
            InvalidArgumentError: the platform does not accept the program's format, or the program does not take
                arguments of these shapes.
            UnimplementedError: the author declares no function for programs with dynamic shapes.
            PjrtError: the author's function raised an exception.
        """
        program = Program.of(program)
        if shapes is not None:
            if self.refine is None:
                raise UnimplementedError(
                    f"'{self.platform_name}' takes no shapes of arguments; compile without shapes, or "
                    "give its client the option 'refine'"
                )
            program = self.refine(program, shapes)
        if self.formats is not None and str(program.format) not in self.formats:
            raise InvalidArgumentError(
                f"'{self.platform_name}' takes programs in the formats {', '.join(self.formats)}, found "
                f"'{program.format}'"
            )
        options = self._completed(program, options)
        return self._executable(lambda: self.compile_function(program, options), program, options)

    def declared_capabilities(self) -> Capabilities:
        """Return what the author declares about the devices."""
        declarations = self.capabilities
        return declarations if isinstance(declarations, Capabilities) else declarations()

    def supports(
        self,
        program: AnyProgram,
        options: CompileOptions | None,
        effort: Effort | str | None,
        capabilities: Capabilities,
        compile: Callable[[], Any],
    ) -> Support:
        """Return whether devices with these capabilities can run a program; see ``Client.supports``.

        Args:
            program: the program.
            options: compile options.
            effort: the effort to make.
            capabilities: those of the devices.
            compile: a function that compiles the program for the devices.
        """
        code = Program.of(program)
        if self.static_check is None:
            return decide(effort, only_format(code, capabilities), compile)
        return decide(effort, self.static_check(code, self._completed(code, options), capabilities), compile)

    def deserialize(self, serialized: bytes, options: CompileOptions | None) -> HostExecutable:
        """Return the executable in the bytes of ``Executable.serialize``.

        Raises:
            InvalidArgumentError: the bytes are not an executable, or one for another platform.
        """
        program, kept, payload = unpack(
            expect_bytes(serialized, "a serialized executable as bytes"), self.platform_name
        )
        options = kept if options is None else self._completed(program, options)
        function = self.deserialize_function
        if payload is None or function is None:
            return self.compile(program, options)
        return self._executable(lambda: function(payload, program, options), program, options)

    def fingerprint(self, program: Program, options: CompileOptions) -> str:
        """Return a number, in digits, that differs between processes if they run different programs; empty if that
        cannot be told: bytecode holds source locations, and those of one program may differ.
        """
        if self.fingerprint_function is not None:
            code = self.fingerprint_function(program)
        elif program.code.startswith(_BYTECODE):
            return ""
        else:
            code = program.code
        return options.fingerprint(code)

    def _completed(self, program: Program, options: CompileOptions | None) -> CompileOptions:
        """Return options in which nothing is left to the program."""
        chosen = CompileOptions.of(options)
        if chosen.states_partitioning:
            return chosen
        return chosen.completed(Partitioning() if self.partitioning is None else self.partitioning(program))

    def _executable(self, make: Callable[[], Any], program: Program, options: CompileOptions) -> HostExecutable:
        try:
            compiled = Compiled.of(make())
        except PjrtError:
            raise
        except Exception as error:
            raise without_traceback(error) from None
        origin = Origin(self.platform_name, self.platform_version, self.default_memory_kind, program, options)
        return HostExecutable(compiled, origin)
