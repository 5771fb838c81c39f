"""The parameters of a plugin's executable, for which the C API has no function: those of its optimized program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pjrt.api.errors import UnimplementedError
from pjrt.api.executable import Executable
from pjrt.api.program import ProgramFormat

if TYPE_CHECKING:
    from pjrt.stablehlo.hlo_parameters import HloParameter


def parameters_of(executable: Executable) -> Sequence[HloParameter]:
    """Return the names, types and shapes of the parameters; a name is empty where it is unknown.

    Raises:
        UnimplementedError: the plugin does not report the optimized program, or reports it in its own format.
    """
    from pjrt import stablehlo
    from pjrt.stablehlo.hlo_parameters import HloParameter, hlo_parameters
    from pjrt.stablehlo.signatures import shape_spec

    program = executable.optimized_program()
    if program.format in (ProgramFormat.HLO, ProgramFormat.HLO_WITH_CONFIG):
        return hlo_parameters(program)
    if program.format != ProgramFormat.MLIR:
        raise UnimplementedError(
            f"the parameters of {executable.name!r} are unknown: the plugin reports the optimized program as "
            f"'{program.format}', expected hlo or mlir; give the arguments by position, as numpy arrays"
        )
    signature = stablehlo.signature(program, trusted=True)
    specs = [shape_spec(argument.type) for argument in signature.arguments]
    if None in specs:
        raise UnimplementedError(
            f"the parameters of {executable.name!r} are not all arrays of static shape; give the arguments by position"
        )
    return [
        HloParameter(argument.name, spec)
        for argument, spec in zip(signature.arguments, specs, strict=True)
        if spec is not None
    ]
