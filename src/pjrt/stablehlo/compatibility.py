"""Support: whether a device can run a program, found by looking into the program.

The device is known by its ``Capabilities`` only. What it says of itself is taken at its word; what it does not say
leaves the verdict open. A device that lists its operations is taken to look at each of them; one that does not is a
compiler, which may do away with what it could not run, so that only what it surely meets rules a program out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from pjrt.api.capability import Capabilities
from pjrt.api.compatibility import Effort, Reason, ReasonKind, StaticCheck, Support, Verdict, decide
from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, PjrtError
from pjrt.api.program import Program, ProgramFormat
from pjrt.stablehlo import conversion
from pjrt.stablehlo._suitability import STRUCTURE, Suitability
from pjrt.stablehlo.format import artifact_version
from pjrt.stablehlo.parser import parse_module
from pjrt.stablehlo.partitioning import with_partitioning
from pjrt.stablehlo.reader import read
from pjrt.stablehlo.version import Version


def supports(
    program: Program | str | bytes,
    options: CompileOptions | None,
    capabilities: Capabilities,
    *,
    effort: Effort | str | None = None,
    compile: Callable[[], Any] | None = None,
) -> Support:
    """Whether a device with these capabilities can run a program.

    Args:
        program: a program in any encoding.
        options: how it is compiled; the defaults are for one device.
        capabilities: what is known of the device.
        effort: the effort to make; None for the cheapest that gives a yes or a no.
        compile: compiles the program for the device; None where that cannot be done.

    Raises:
        InvalidArgumentError, DataLossError: it is no program.
    """
    return decide(effort, static_check(program, options, capabilities), compile)


def static_check(
    program: Program | str | bytes, options: CompileOptions | None, capabilities: Capabilities
) -> StaticCheck:
    """What looks into a program for a device with these capabilities; see ``pjrt.api.compatibility.decide``.

    The program is parsed once, where that is needed.

    Raises:
        InvalidArgumentError, DataLossError: it is no program.
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
        """The reasons against the program that an effort brings, and those that leave it open."""
        found = [*self._format(), *self._version(effort)]
        if any(reason.verdict is Verdict.NO or reason.kind is ReasonKind.FORMAT for reason in found):
            return found
        try:
            if effort is Effort.OPS:
                return [*found, *self._names()]
            return [*found, *self._suitability.reasons()]
        except FailedPreconditionError as error:
            reason = f"it cannot be looked into: {error.message}"
        except PjrtError as error:
            reason = error.message
        return [*found, _open(ReasonKind.FORMAT, str(self._program.format), reason)]

    @cached_property
    def _module(self) -> Any:
        return conversion.to_module(self._program, trusted=True)

    @cached_property
    def _suitability(self) -> Suitability:
        return Suitability(parse_module(self._module, constants=False), self._device, self._options)

    def _format(self) -> list[Reason]:
        format_, taken = str(self._program.format), self._device.program_formats
        if taken is not None and format_ not in taken:
            message = f"the program has the format '{format_}', the device takes {_listed(taken)}"
            return [Reason(Verdict.NO, ReasonKind.FORMAT, format_, message)]
        if format_ not in tuple(ProgramFormat):
            return [_open(ReasonKind.FORMAT, format_, f"only the device knows the format '{format_}'")]
        return []

    def _version(self, effort: Effort) -> list[Reason]:
        """Whether the device reads the program's version, or can be sent it at one that it reads."""
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
        except PjrtError:  # it says so wherever it is parsed
            return []
        return []

    def _is_read_here(self, written: Version) -> bool:
        """Whether an artifact can be read here, to be written at another version: also one of a newer version, if it
        has nothing in it that is new.
        """
        try:
            return written <= conversion.current_version() or bool(self._module)
        except PjrtError:
            return False

    def _names(self) -> list[Reason]:
        runs = self._device.operations
        if runs is None:
            return [_open(ReasonKind.OP, "operations", "the device does not say which operations it runs")]
        if not self._used <= {*runs, *STRUCTURE}:
            found = self._suitability.operations()
            if found:
                return found
        return [_open(ReasonKind.TYPE, "types", "types and attributes were not looked at")]

    @cached_property
    def _used(self) -> set[str]:
        """The names of the program's operations, without parsing more than them."""
        with self._module as module:
            names: set[str] = set()
            for inner in module.body:
                if inner.operation.name == "func.func":
                    _collect(inner.operation, names)
            return names


def _collect(operation: Any, names: set[str]) -> None:
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                names.add(inner.operation.name)
                _collect(inner.operation, names)


def _open(kind: ReasonKind, subject: str, message: str) -> Reason:
    return Reason(Verdict.MAYBE, kind, subject, message)


def _writes_newer(version: Version) -> bool:
    """Whether programs here may hold what a version does not."""
    try:
        return version < conversion.current_version()
    except PjrtError:
        return False


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
