"""Checks of the extensions that answer about executables: Shardings and ExecutableMetadata."""

from __future__ import annotations

from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.programs.executables import answer_of, executable_of
from pjrt.conformance.plugin.contract.programs.owned_bytes import reread
from pjrt.conformance.plugin.subject import Subject

_PARAMETERS = "PJRT_Shardings_PJRT_Executable_ParameterShardings"
_OUTPUTS = "PJRT_Shardings_PJRT_Executable_OutputShardings"
_METADATA = "PJRT_ExecutableMetadata_GetExecutableMetadata"
_END = "PJRT_ExecutableMetadata_DestroySerializedMetadata"


@check(
    "shardings.counts",
    calls=(_PARAMETERS, _OUTPUTS),
    over={"parameters": (_PARAMETERS, "num_parameters", 2), "outputs": (_OUTPUTS, "num_outputs", 1)},
    rule="There is a sharding for each parameter and each result, or null where the executable has none.",
)
def _counts(subject: Subject, case: tuple[str, str, int]) -> None:
    name, field, count = case
    subject.require_extension("Shardings")
    answer = answer_of(subject, name, executable=executable_of(subject, "add"))
    if answer.shardings:
        number = getattr(answer, field)
        subject.expect(number == count == len(answer.shardings), f"{count} shardings", f"{number}: {answer.shardings}")


@check(
    "shardings.live_as_long_as_the_executable",
    calls=(_OUTPUTS,),
    rule="The shardings belong to the executable, and live as long as it.",
)
def _live(subject: Subject) -> None:
    subject.require_extension("Shardings")
    first = answer_of(subject, _OUTPUTS, executable=executable_of(subject, "add"))
    before = list(first.shardings or ())
    for _ in range(3):
        answer_of(subject, _OUTPUTS, executable=executable_of(subject, "mixed_results"))
    after = list(reread(first).shardings or ())
    subject.expect(after == before, str(before), str(after))


@check(
    "executable_metadata.get",
    calls=(_METADATA, _END),
    rule="The metadata of an executable is allocated by the plugin, and given back by its destroy function.",
)
def _metadata(subject: Subject) -> None:
    subject.require_extension("ExecutableMetadata")
    handle = executable_of(subject, "add")
    for _ in range(3):
        answer = answer_of(subject, _METADATA, executable=handle)
        subject.expect(answer.metadata is not None, "metadata", "null")
        pointer = int.from_bytes(answer.struct_bytes[-8:], "little")
        subject.attempt(_END, metadata=pointer)
