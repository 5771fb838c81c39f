"""What a plugin is sent: a program that it can read.

A program newer than the plugin's StableHLO is written at the plugin's version, as its attributes state it. That takes
jaxlib; where it is not installed, and for what no portable artifact can be made of (another dialect), the program goes
as it is, and the plugin judges.
"""

from __future__ import annotations

from pjrt.api.attributes import Attributes
from pjrt.api.errors import FailedPreconditionError, PjrtError
from pjrt.api.program import Program, ProgramFormat

_VERSION = "stablehlo_current_version"


def prepared(program: Program | str | bytes, attributes: Attributes) -> tuple[Program, PjrtError | None]:
    """The program as the plugin with these attributes takes it.

    Returns:
        The program, and the reason why it goes as it is although it should have been written anew, or ``None``.

    Raises:
        InvalidArgumentError: it is no program, or a portable artifact that cannot be written at the plugin's version.
        DataLossError: it is truncated or corrupt.
    """
    from pjrt import stablehlo

    read = stablehlo.read(program)
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


def doubted(error: PjrtError, doubt: PjrtError | None) -> PjrtError:
    """The error of a compilation, with what had been doubtful about its program before."""
    if doubt is not None:
        error.add_note(
            f"The program was sent as it is, because it could not be written at the plugin's StableHLO version: {doubt}"
        )
    return error
