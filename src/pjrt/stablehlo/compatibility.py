"""Compatibility: whether a device can run a program, judged by a look into the program.

The device is known by its ``Capabilities`` only. Its declarations are believed; where it declares nothing, the verdict
stays open. A device that lists its operations is expected to look at each of them. A device that does not is a
compiler, which may remove what it could not run, so only what it cannot avoid rules a program out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from pjrt.api.capability import (
    Capabilities,
    Effort,
    Reason,
    ReasonKind,
    StaticCheck,
    Support,
    Verdict,
    decide,
    format_reason,
)
from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, PjrtError
from pjrt.api.program import AnyProgram, Program, ProgramFormat
from pjrt.stablehlo import conversion
from pjrt.stablehlo._requirements import STRUCTURE, Requirements
from pjrt.stablehlo.format import artifact_version
from pjrt.stablehlo.mlir_walk import walk
from pjrt.stablehlo.parser import parse_module
from pjrt.stablehlo.reader import read
from pjrt.stablehlo.shardings.stated_partitioning import with_partitioning
from pjrt.stablehlo.version import Version


def supports(
    program: AnyProgram,
    options: CompileOptions | None,
    capabilities: Capabilities,
    *,
    effort: Effort | str | None = None,
    compile: Callable[[], Any] | None = None,
) -> Support:
    """Return whether a device with these capabilities can run a program.

    Args:
        program: a program in any encoding.
        options: how it is compiled; the defaults are for one device.
        capabilities: what is known of the device.
        effort: the effort to make; None for the cheapest that gives a yes or a no.
        compile: compiles the program for the device; None where that is impossible.

    Raises:
        InvalidArgumentError: the source is not a program.
        DataLossError: the program is truncated or corrupt.
    """
    return decide(effort, static_check(program, options, capabilities), compile)


def static_check(program: AnyProgram, options: CompileOptions | None, capabilities: Capabilities) -> StaticCheck:
    """Return a check of a program for a device with these capabilities; see ``pjrt.api.capability.decide``.

    The program is parsed once, where that is needed.

    Raises:
        InvalidArgumentError: the source is not a program.
        DataLossError: the program is truncated or corrupt.
    """
    code = read(program)
    return _Check(code, with_partitioning(code, options), capabilities).reasons


class _Check:
    """One program and one device."""

    def __init__(self, program: Program, options: CompileOptions, capabilities: Capabilities) -> None:
        self._program = program
        self._options = options
        self._device = capabilities

    def reasons(self, effort: Effort) -> Sequence[Reason]:
        """Return the reasons against the program that an effort finds, and those that leave the verdict open."""
        reasons = [*self._format(), *self._version(effort)]
        if any(reason.verdict is Verdict.NO or reason.kind is ReasonKind.FORMAT for reason in reasons):
            return reasons
        try:
            return [*reasons, *(self._names() if effort is Effort.OPS else self._requirements.reasons())]
        except FailedPreconditionError as error:
            message = f"it cannot be looked into: {error.message}"
        except PjrtError as error:
            message = error.message
        return [*reasons, _open(ReasonKind.FORMAT, str(self._program.format), message)]

    @cached_property
    def _module(self) -> Any:
        return conversion.to_module(self._program, trusted=True)

    @cached_property
    def _requirements(self) -> Requirements:
        return Requirements(parse_module(self._module, largest_constant=0), self._device, self._options)

    def _format(self) -> list[Reason]:
        format_ = str(self._program.format)
        refusal = format_reason(format_, self._device)
        if refusal is not None:
            return [refusal]
        if format_ not in tuple(ProgramFormat):
            return [_open(ReasonKind.FORMAT, format_, f"only the device knows the format '{format_}'")]
        return []

    def _version(self, effort: Effort) -> list[Reason]:
        """Return why the device may not read the program's version, even after a conversion to one that it reads."""
        written, stated = artifact_version(self._program), self._device.stablehlo_current_version
        if stated is None:
            return []
        newest = Version.of(stated)
        message = f"the program is written at StableHLO {written}, the device reads up to {newest}"
        if written is not None and written > newest and not self._is_read_here(written):
            return [Reason(Verdict.NO, ReasonKind.VERSION, str(written), message)]
        if effort is Effort.OPS or not _writes_newer(newest):
            return []
        try:
            conversion.serialize(self._program, newest, trusted=True)
        except InvalidArgumentError as error:
            if written is None:  # then it need not be an artifact
                return [_open(ReasonKind.VERSION, str(newest), error.message)]
            return [Reason(Verdict.NO, ReasonKind.VERSION, str(written), f"{message}, and {error.message}")]
        except PjrtError:  # the parser reports the same later
            return []
        return []

    def _is_read_here(self, written: Version) -> bool:
        """Whether this jaxlib reads an artifact, and so can write it at an older version.

        That includes an artifact of a newer version, if it holds nothing that is new.
        """
        try:
            return written <= conversion.current_version() or bool(self._module)
        except PjrtError:
            return False

    def _names(self) -> list[Reason]:
        runs = self._device.operations
        if runs is None:
            return [_open(ReasonKind.OP, "operations", "the device does not say which operations it runs")]
        missing = [] if self._used <= {*runs, *STRUCTURE} else self._requirements.operations()
        return missing or [_open(ReasonKind.TYPE, "types", "types and attributes were not looked at")]

    @cached_property
    def _used(self) -> set[str]:
        """The names of the operations in the program's functions; nothing else of them is parsed."""
        with self._module as module:
            functions = [inner.operation for inner in module.body if inner.operation.name == "func.func"]
            return {operation.name for function in functions for operation in walk(function)} - {"func.func"}


def _open(kind: ReasonKind, subject: str, message: str) -> Reason:
    return Reason(Verdict.MAYBE, kind, subject, message)


def _writes_newer(version: Version) -> bool:
    """Whether this jaxlib's StableHLO is newer than a version, so that programs may hold what the version lacks."""
    try:
        return version < conversion.current_version()
    except PjrtError:
        return False
