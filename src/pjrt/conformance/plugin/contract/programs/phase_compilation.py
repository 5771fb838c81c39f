"""Checks of the extension PhaseCompile: compiling phase by phase."""

from __future__ import annotations

from typing import Any

from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.programs.compilation import OPTIONS
from pjrt.conformance.plugin.contract.programs.executables import answer_of
from pjrt.conformance.plugin.subject import Subject

_GET, _END = "PJRT_PhaseCompile_Get_Compiler", "PJRT_PhaseCompile_Destroy_Compiler"
_NAMES, _RUN = "PJRT_PhaseCompile_Get_PhaseNames", "PJRT_PhaseCompile_Run_Phase"


def _compiler(subject: Subject) -> int:
    subject.require_extension("PhaseCompile")
    return int(answer_of(subject, _GET).phase_compiler)


def _phases(subject: Subject, compiler: int) -> list[bytes]:
    answer = answer_of(subject, _NAMES, phase_compiler=compiler)
    return [bytes(name) for name in answer.phase_names or ()]


@check(
    "phase_compile.compiler",
    calls=(_GET, _END),
    rule="Each phase compiler belongs to the caller, who destroys it.",
)
def _get(subject: Subject) -> None:
    compilers = [_compiler(subject) for _ in range(3)]
    subject.expect(all(compilers), "compilers", str(compilers))
    for compiler in compilers:
        subject.attempt(_END, phase_compiler=compiler)


@check(
    "phase_compile.phase_names",
    calls=(_NAMES,),
    rule="The phases have names, in the order in which they run.",
)
def _names(subject: Subject) -> None:
    compiler = _compiler(subject)
    names = _phases(subject, compiler)
    subject.expect(b"" not in names and len(set(names)) == len(names), "names that are unique", str(names))
    again = _phases(subject, compiler)
    subject.expect(again == names, str(names), str(again))


def _run(subject: Subject, compiler: int, phases: list[bytes]) -> Any:
    topology = answer_of(subject, "PJRT_Client_TopologyDescription", client=subject.client).topology
    code = subject.program("add").code
    return subject.attempt(
        _RUN,
        phase_compiler=compiler,
        input_programs=[code],
        input_programs_sizes=[len(code)],
        phases_to_run=phases,
        phases_to_run_sizes=[len(phase) for phase in phases],
        compile_options=OPTIONS,
        topology=topology,
    )


@check(
    "phase_compile.unknown_phase",
    calls=(_RUN,),
    rule="A phase of an unknown name is refused with an error.",
)
def _unknown(subject: Subject) -> None:
    compiler = _compiler(subject)
    answer = _run(subject, compiler, [b"no such phase"])
    subject.expect(answer.error is not None, "an error", "a program")
    subject.attempt(_END, phase_compiler=compiler)
