"""Requests about executables: their types, their cost, their text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pjrt.api.errors import PjrtError, UnimplementedError
from pjrt.api.executable import Executable
from pjrt.api.program import ProgramFormat
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.values import attributes_proto, status_proto, xla_layout_proto
from pjrt.remote.server.requests.table import handles
from pjrt.stablehlo.conversion import to_text
from pjrt.stablehlo.files.hlo_text import to_hlo_text

if TYPE_CHECKING:
    from pjrt.remote.server.session import Session


@handles("loaded_executable_metadata")
def metadata(session: Session, request: Any) -> Any:
    """Return the shardings, layouts, memory kinds, donated parameters and memory of an executable.

    A fact that the device does not report has its error in the response.
    """
    executable = session.executables.get(request.loaded_executable_handle).executable
    program = executable.pjrt_executable
    response = wire.LoadedExecutableMetadataResponse()
    for name in ("parameter_shardings", "output_shardings"):
        shardings = _shardings(program, name)
        if shardings is not None:
            getattr(response, name).shardings.extend(shardings)
    for name in ("parameter_layouts", "output_layouts"):
        try:
            layouts = [xla_layout_proto(layout) for layout in getattr(program, name)]
            getattr(response, f"{name}_list").layouts.extend(layouts)
        except PjrtError as error:
            getattr(response, f"{name}_error").CopyFrom(status_proto(error))
    kinds = [
        spec.sharding.memory_spaces[0].kind for spec in filter(None, executable.output_specs)
    ]  # no None is compiled
    response.output_memory_kinds.memory_kind_lists.add(memory_kinds=kinds)
    response.donated_input_indices.donated_input_indices.extend(sorted(executable.donatable_input_indices))
    try:
        stats = program.memory_stats()
        response.compiled_memory_stats.CopyFrom(wire.CompiledMemoryStatsProto(**stats._asdict()))
    except PjrtError as error:
        response.compiled_memory_stats_error.CopyFrom(status_proto(error))
    try:
        response.size_of_generated_code_in_bytes = program.size_of_generated_code
    except UnimplementedError:
        response.size_of_generated_code_in_bytes = 0
    return response


def _shardings(program: Executable, name: str) -> Sequence[bytes] | None:
    try:
        shardings: Sequence[bytes] | None = getattr(program, name)
    except UnimplementedError:
        return None
    return shardings


# jaxlib's client looks for an error of the next two inside of the response, and fails where it has no response.


@handles("loaded_executable_cost_analysis")
def cost_analysis(session: Session, request: Any) -> Any:
    """Return the cost of one run."""

    def costs() -> Any:
        executable = session.executables.get(request.loaded_executable_handle).executable
        numbers = {name: float(value) for name, value in executable.cost_analysis().items()}
        return wire.LoadedExecutableCostAnalysisResponse(attributes=attributes_proto(numbers))

    return _or_status(costs, wire.LoadedExecutableCostAnalysisResponse)


@handles("loaded_executable_human_readable_program_text")
def program_text(session: Session, request: Any) -> Any:
    """Return the program after the compiler's optimizations as text."""

    def text() -> Any:
        executable = session.executables.get(request.loaded_executable_handle).executable
        program = executable.pjrt_executable.optimized_program()
        spelling = to_text(program, trusted=True) if program.format == ProgramFormat.MLIR else to_hlo_text(program)
        return wire.LoadedExecutableHumanReadableProgramTextResponse(human_readable_program_text=spelling)

    return _or_status(text, wire.LoadedExecutableHumanReadableProgramTextResponse)


@handles("optimized_program")
def optimized_program(session: Session, request: Any) -> Any:
    """Return the program after the compiler's optimizations; one in MLIR as text, which clients of any jaxlib read."""
    executable = session.executables.get(request.loaded_executable_handle).executable
    program = executable.pjrt_executable.optimized_program()
    code = to_text(program, trusted=True).encode() if program.format == ProgramFormat.MLIR else program.code
    return wire.OptimizedProgramResponse(format=program.format, code=code)


def _or_status(respond: Callable[[], Any], response: Any) -> Any:
    """Return the response, or one with the status of the error."""
    try:
        return respond()
    except PjrtError as error:
        return response(status=status_proto(error))
