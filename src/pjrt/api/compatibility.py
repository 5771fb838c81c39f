"""Support: whether a device can run a program, with the reasons, found before it runs.

How much is done to find out is an ``Effort``. A yes or a no is given only where it is known; where what is known does
not decide, the verdict is maybe, and the reasons say what is missing.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pjrt.api.capability import Capabilities
from pjrt.api.errors import (
    AbortedError,
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    PjrtError,
    ResourceExhaustedError,
    UnavailableError,
    UnimplementedError,
)
from pjrt.api.executable import Executable
from pjrt.api.loaded_executable import LoadedExecutable
from pjrt.api.program import Program

if TYPE_CHECKING:
    from pjrt.api.client import Client
    from pjrt.api.compile_options import CompileOptions
    from pjrt.api.topology import TopologyDescription


class Verdict(enum.StrEnum):
    """Whether a device can run a program."""

    YES = "yes"
    NO = "no"
    MAYBE = "maybe"


class Effort(enum.StrEnum):
    """How much is done to find out, the cheapest first."""

    OPS = "ops"
    """The names of the program's operations, its format and its version are looked at."""
    TYPES = "types"
    """So are types and attributes: element types, shapes, targets of custom calls, kinds of memory, counts."""
    COMPILE = "compile"
    """The program is compiled, and what comes out thrown away."""


class ReasonKind(enum.StrEnum):
    """What a reason is about."""

    OP = "op"
    TYPE = "type"
    ATTRIBUTE = "attribute"
    VERSION = "version"
    FORMAT = "format"
    FEATURE = "feature"
    COMPILE = "compile"


class SourceLocation(NamedTuple):
    """A place in the program's source.

    Attributes:
        name: what the author calls it, such as ``jit(f)/dot_general``; empty if it has no name.
        file: the file, ``-`` for the program's own text; empty if it is not known.
        line: the line, from 1; 0 if it is not known.
        column: the column, from 1; 0 if it is not known.
    """

    name: str
    file: str
    line: int
    column: int

    def __str__(self) -> str:
        file = "<program>" if self.file == "-" else self.file
        at = (f"{file}:{self.line}:{self.column}" if self.column else f"{file}:{self.line}") if file else ""
        return f"{self.name} at {at}" if self.name and at else self.name or at


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a device cannot run a program, or why that is not known.

    Attributes:
        verdict: ``NO`` if it rules the program out, ``MAYBE`` if it leaves the question open.
        kind: what it is about.
        subject: the operation, type, attribute, version, format or feature.
        message: what the program needs and what the device has.
        locations: where in the source; the first few of them.
        count: in how many places; 0 where it is not about places.
    """

    verdict: Verdict
    kind: ReasonKind
    subject: str
    message: str
    locations: tuple[SourceLocation, ...] = ()
    count: int = 0

    def __str__(self) -> str:
        at = ", ".join(map(str, self.locations))
        more = self.count - len(self.locations)
        return self.message + (f" [{at}{f' and {more} more' if at and more > 0 else ''}]" if at else "")


@dataclass(frozen=True, slots=True)
class Support:
    """Whether a device can run a program.

    Attributes:
        verdict: yes, no or maybe; a ``Support`` is true where it is yes.
        effort: the effort that found it.
        reasons: why not, those that rule it out first; or what leaves it open; empty where it is yes.
    """

    verdict: Verdict
    effort: Effort
    reasons: tuple[Reason, ...] = ()

    @staticmethod
    def of(effort: Effort, reasons: Sequence[Reason]) -> Support:
        """The verdict that reasons lead to: yes if there are none."""
        ordered = tuple(sorted(reasons, key=lambda reason: reason.verdict is not Verdict.NO))
        return Support(ordered[0].verdict if ordered else Verdict.YES, effort, ordered)

    def __bool__(self) -> bool:
        return self.verdict is Verdict.YES

    def as_dict(self) -> dict[str, Any]:
        """The verdict with its reasons as plain values, for JSON; ``from_dict`` reads it."""
        return {
            "verdict": self.verdict.value,
            "effort": self.effort.value,
            "reasons": [
                {
                    "verdict": reason.verdict.value,
                    "kind": reason.kind.value,
                    "subject": reason.subject,
                    "message": reason.message,
                    "count": reason.count,
                    "locations": [place._asdict() for place in reason.locations],
                }
                for reason in self.reasons
            ],
        }

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> Support:
        """What ``as_dict`` gave."""
        reasons = tuple(
            Reason(
                Verdict(each["verdict"]),
                ReasonKind(each["kind"]),
                each["subject"],
                each["message"],
                tuple(SourceLocation(**place) for place in each["locations"]),
                each["count"],
            )
            for each in plain["reasons"]
        )
        return Support(Verdict(plain["verdict"]), Effort(plain["effort"]), reasons)


StaticCheck = Callable[[Effort], Sequence[Reason]]
"""What is found by looking, with ``Effort.OPS`` or ``Effort.TYPES``."""


def only_format(program: Program | str | bytes, capabilities: Capabilities) -> StaticCheck:
    """What looks at a program's format and at nothing else: for devices that do not know programs."""
    format_, taken = str(Program.of(program).format), capabilities.program_formats
    if taken is not None and format_ not in taken:
        message = f"the program has the format '{format_}', the device takes {', '.join(taken)}"
        reason = Reason(Verdict.NO, ReasonKind.FORMAT, format_, message)
    else:
        reason = Reason(Verdict.MAYBE, ReasonKind.OP, "operations", "the device does not look into programs")
    return lambda effort: (reason,)


def decide(effort: Effort | str | None, static_check: StaticCheck, compile: Callable[[], Any] | None) -> Support:
    """The verdict of one effort, or of the cheapest that gives a yes or a no.

    Args:
        effort: the effort to make; None for as much as is needed.
        static_check: what is found by looking at the program.
        compile: compiles it; None where the device cannot without being here.

    Raises:
        InvalidArgumentError: the effort is none.
    """
    chosen = _effort(effort)
    open_: Support | None = None
    for cheap in (Effort.OPS, Effort.TYPES):
        if chosen in (None, cheap):
            found = static_check(cheap)
            against = [reason for reason in found if reason.verdict is Verdict.NO]
            support = Support.of(cheap, against or found)
            if chosen is cheap or support.verdict is not Verdict.MAYBE:
                return support
            open_ = support
    if compile is None:
        missing = Reason(
            Verdict.MAYBE, ReasonKind.COMPILE, "compile", "it was not compiled: there is no compiler without the device"
        )
        return Support.of(chosen or Effort.TYPES, [*(() if open_ is None else open_.reasons), missing])
    return _compiled(compile, open_)


def _effort(effort: Effort | str | None) -> Effort | None:
    try:
        return None if effort is None else Effort(effort)
    except ValueError:
        raise InvalidArgumentError(f"expected the effort 'ops', 'types' or 'compile', found {effort!r}") from None


def _compiled(compile: Callable[[], Any], before: Support | None) -> Support:
    """The verdict of the compiler; a no keeps what had been in doubt, for that tells where it may come from."""
    try:
        compile()
    except PjrtError as error:
        doubts = () if before is None else before.reasons
        pointed = [reason for reason in doubts if reason.locations or reason.kind is ReasonKind.VERSION]
        return Support.of(Effort.COMPILE, [refusal(error), *pointed])
    return Support(Verdict.YES, Effort.COMPILE)


_TRANSIENT = (AbortedError, CancelledError, DeadlineExceededError, FailedPreconditionError, UnavailableError)
"""What a compiler says about its own state, not about the program."""


def refusal(error: PjrtError) -> Reason:
    """The reason that the error of a compilation gives, with the operation and the places that its text names."""
    verdict = Verdict.MAYBE if isinstance(error, _TRANSIENT) else Verdict.NO
    text = " ".join(error.message.split())
    named = _OPERATION.search(text)
    places = tuple(dict.fromkeys(places_in(error.message)))
    kind, subject = (ReasonKind.OP, named[0]) if named else (ReasonKind.COMPILE, error.code.name)
    message = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return Reason(verdict, kind, subject, message, places[:SHOWN], len(places))


def try_compiling(
    place: Client | TopologyDescription, program: Program | str | bytes, options: CompileOptions | None
) -> None:
    """Compile a program for a client or topology, and throw away what comes out.

    Raises:
        ResourceExhaustedError: a run needs more memory than a device has.
        PjrtError: the compiler refuses the program.
    """
    executable = place.compile(program, options)
    try:
        check_memory(executable, _memory_limit(place))
    finally:
        if isinstance(executable, LoadedExecutable):
            executable.delete()


def check_memory(executable: Executable, limit: int | None) -> None:
    """Hold what one run of an executable needs against the memory of a device.

    Args:
        executable: what was compiled; one that does not tell what it needs passes.
        limit: the bytes that the device has; None if that is not known.

    Raises:
        ResourceExhaustedError: the run needs more than there is.
    """
    if limit is None:
        return
    try:
        needed = executable.memory_stats().needed_in_bytes
    except UnimplementedError:
        return
    if needed > limit:
        raise ResourceExhaustedError(
            f"a run needs {needed} bytes of memory on each device, {needed / limit:.0%} of the {limit} that a device "
            "has; use more partitions, a smaller program or devices with more memory"
        )


def _memory_limit(place: Client | TopologyDescription) -> int | None:
    from pjrt.api.client import Client

    if not isinstance(place, Client):
        return place.device_descriptions[0].memory_limit_in_bytes
    for device in place.addressable_devices:
        try:
            limit = device.memory_stats().bytes_limit
        except UnimplementedError:
            limit = None
        return device.description.memory_limit_in_bytes if limit is None else limit
    return None


SHOWN = 8
"""So many places are told of each reason."""

_LONGEST = 2000
_OPERATION = re.compile(r"\b(?:stablehlo|chlo|mhlo|vhlo|sdy|func|arith|shape|tensor|linalg|math)\.[a-z_]\w*")
_PLACE = re.compile(r"(?P<file>(?<!\S)-|<program>|[^\s\"'()\[\]<>:,]+\.\w+|\"[^\"]+\"):(?P<line>\d+):(?P<column>\d+)")
_NO_COLUMN = re.compile(r"\bLocation:\s+(?P<file>[^\s:]+):(?P<line>\d+)(?![\d:])")
_OF_COMPILERS = (".cc", ".cpp", ".h")
"""How the files of compilers end: where an error was found in them is no place in a program."""

_LINE = re.compile(r"\bline (?P<line>\d+), column (?P<column>\d+)")


def places_in(message: str) -> list[SourceLocation]:
    """The places that an error's text names: ``model.py:7:3``, ``-:1:60``, ``line 1, column 60``."""
    found = []
    for match in _PLACE.finditer(message):
        file = match["file"].strip('"')
        if file.endswith(_OF_COMPILERS):
            continue
        found.append(SourceLocation("", "-" if file == "<program>" else file, int(match["line"]), int(match["column"])))
    found += [SourceLocation("", "-", int(match["line"]), int(match["column"])) for match in _LINE.finditer(message)]
    found += [SourceLocation("", match["file"], int(match["line"]), 0) for match in _NO_COLUMN.finditer(message)]
    return found
