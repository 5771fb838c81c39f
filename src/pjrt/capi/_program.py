"""Programs in a version that the plugin can read.

A program newer than the plugin's StableHLO is written at the plugin's version, which its attributes state. That needs
jaxlib. Without it, and for a program of another dialect, of which no portable artifact can be made, the program is sent
as it is, and the plugin judges.
"""

from __future__ import annotations

from pjrt.api.device import Attributes
from pjrt.api.errors import FailedPreconditionError, PjrtError
from pjrt.api.program import AnyProgram, Program, ProgramFormat
from pjrt.api.shape_spec import Shapes

_VERSION = "stablehlo_current_version"


def prepared(
    program: AnyProgram, attributes: Attributes, shapes: Shapes | None = None
) -> tuple[Program, PjrtError | None]:
    """Return a program, for these shapes of its arguments, in the version of the plugin with these attributes.

    Returns:
        The program, and the error that kept it from being written at the plugin's version, or ``None``.

    Raises:
        InvalidArgumentError: the argument is no program, or a portable artifact that cannot be written at the plugin's
            version; or the program does not take arguments of these shapes.
        DataLossError: the program is truncated or corrupt.
    """
    from pjrt import stablehlo

    read = stablehlo.read(program)
    if shapes is not None:
        read = stablehlo.refine(read, shapes)
    version = attributes.get(_VERSION)
    if read.format != ProgramFormat.MLIR or not isinstance(version, tuple):
        return read, None
    try:
        return stablehlo.serialize(read, version), None
    except FailedPreconditionError as error:  # no jaxlib
        return read, error
    except PjrtError as error:
        if stablehlo.artifact_version(read) is not None:
            raise
        return read, error


def doubted(error: PjrtError, program: Program | None, doubt: PjrtError | None) -> PjrtError:
    """Return the error of a compilation: with advice where the program is the reason, and with a note where it was sent
    as it is because of ``doubt``.
    """
    if program is not None:
        from pjrt.stablehlo.analysis.compatibility import with_advice

        error = with_advice(error, program)
    if doubt is not None:
        error.add_note(
            f"The program was sent as it is, because it could not be written at the plugin's StableHLO version: {doubt}"
        )
    return error
