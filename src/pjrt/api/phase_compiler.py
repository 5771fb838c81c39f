"""Compiling phase by phase, with the parts between the phases in the caller's hands (the PhaseCompile extension)."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pjrt.api.checks import expect, expect_all, expect_bytes
from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import InvalidArgumentError
from pjrt.api.program import Program


@dataclass(frozen=True, slots=True)
class PartialProgram:
    """A part of a program between two phases of its compilation (``xla.PjRtPartialProgramProto``).

    Attributes:
        code: the part itself, in a form that only the compiler knows.
        format: the compiler's name of the form.
        producer_phase: the phase that made the part.
        consumer_phases: the phases that read it; empty if unknown.
        version: the version of the form.
        name: the part's name.
    """

    code: bytes
    format: str = ""
    producer_phase: str = ""
    consumer_phases: tuple[str, ...] = ()
    version: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "code", expect_bytes(self.code, "PartialProgram.code as bytes"))
        for field in ("format", "producer_phase", "version", "name"):
            expect(getattr(self, field), str, f"PartialProgram.{field} as a str")
        phases = expect_all(self.consumer_phases, str, "PartialProgram.consumer_phases as str")
        object.__setattr__(self, "consumer_phases", tuple(phases))

    def to_proto(self) -> bytes:
        """Return the part as a serialized ``xla.PjRtPartialProgramProto``, for a file."""
        from pjrt.api import _protos

        return _protos.encode_partial_program(self)

    @staticmethod
    def from_proto(serialized: bytes) -> PartialProgram:
        """Return the part in a serialized ``xla.PjRtPartialProgramProto``.

        Raises:
            InvalidArgumentError: the bytes are not such a message.
        """
        from pjrt.api import _protos

        return _protos.decode_partial_program(serialized)


class PhaseCompiler(abc.ABC):
    """A compiler that stops after each phase (``PJRT_PhaseCompiler``).

    The parts that a phase makes can be kept, inspected, and passed to a later phase: in this process or another, on
        this
    machine or another with the same plugin.
    """

    __slots__ = ("__weakref__",)

    @property
    @abc.abstractmethod
    def phase_names(self) -> tuple[str, ...]:
        """The phases, in the order in which a compilation runs them (``PJRT_PhaseCompile_Get_PhaseNames``).

        A compiler may list more than one way to do the last step.
        """

    @abc.abstractmethod
    def run(
        self,
        programs: Program | str | bytes | Iterable[PartialProgram],
        phases: str | Sequence[str],
        options: CompileOptions | None = None,
    ) -> tuple[PartialProgram, ...]:
        """Run phases one after the other (``PJRT_PhaseCompile_Run_Phase``).

        Args:
            programs: a whole program for the first phase, or the parts that earlier phases made for the first of these.
            phases: the name of a phase, or of several: each reads all parts that the one before it made.
            options: compile options, which must be the same in all phases. Options that are left to the program are
                read from whole programs only: state the replicas and partitions if there are several.

        Returns:
            The parts that the last of these phases made.

        Raises:
            InvalidArgumentError: no phase is named, or a part is not for the first of them.
            PjrtError: the compiler refused; the message is the vendor's reason.
        """

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self.phase_names)} phases>"


def check_phases(programs: Iterable[PartialProgram], phases: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of the phases to run; the first of them reads the programs.

    Raises:
        InvalidArgumentError: there is no phase, or a part is for another phase.
    """
    names = tuple(expect_all([phases] if isinstance(phases, str) else phases, str, "the name of a phase as a str"))
    if not names:
        raise InvalidArgumentError("expected the name of at least one phase, found none; see PhaseCompiler.phase_names")
    for part in programs:
        if part.consumer_phases and names[0] not in part.consumer_phases:
            raise InvalidArgumentError(
                f"the part {part.name!r} of {part.producer_phase or 'the program'} is read by "
                f"{', '.join(part.consumer_phases)}, not by {names[0]}; leave it out"
            )
    return names
