"""Programs on the way to a plugin and back: in a version that it can read, with handlers, and their parameters.

A program newer than the plugin's StableHLO is written at the plugin's version, which its attributes state. That needs
jaxlib. Without it, and for a program of another dialect, of which no portable artifact can be made, the program is sent
as it is, and the plugin judges.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pjrt.api.capability import Capabilities
from pjrt.api.device import Attributes
from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.api.executable import Executable
from pjrt.api.program import AnyProgram, Program, ProgramFormat
from pjrt.api.shape_spec import Shapes, ShapeSpec

if TYPE_CHECKING:
    from pjrt.stablehlo.encodings.hlo_parameters import HloParameter

_VERSION = "stablehlo_current_version"


def prepared(
    program: AnyProgram, attributes: Attributes, shapes: Shapes | None = None, capabilities: Capabilities | None = None
) -> tuple[Program, PjrtError | None]:
    """Return a program, for these shapes of its arguments, in the version of the plugin with these attributes.

    With the plugin's capabilities, a program is refused whose arguments have sizes that the plugin does not take: some
    compilers end the process over them.

    Returns:
        The program, and the error that kept it from being written at the plugin's version, or ``None``.

    Raises:
        InvalidArgumentError: the argument is no program, or a portable artifact that cannot be written at the plugin's
            version; or the program does not take arguments of these shapes, or has some of unknown sizes.
        DataLossError: the program is truncated or corrupt.
    """
    from pjrt import stablehlo
    from pjrt.stablehlo.facts.compatibility import check_shapes

    read = stablehlo.read(program)
    if shapes is not None:
        read = stablehlo.refine(read, shapes)
    if capabilities is not None:
        check_shapes(read, capabilities)
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
        from pjrt.stablehlo import artifact_version, vet
        from pjrt.stablehlo.facts.compatibility import with_advice

        with contextlib.suppress(PjrtError):
            if doubt is not None or artifact_version(program) is None:
                vet(program)  # it was not written here, and a damaged one may be what the plugin refuses
            error = with_advice(error, program)
    if doubt is not None:
        error.add_note(
            f"The program was sent as it is, because it could not be written at the plugin's StableHLO version: {doubt}"
        )
    return error


# The C API has no function for the parameters of an executable: they are those of its optimized program.


def parameters_of(executable: Executable) -> Sequence[HloParameter]:
    """Return the names, types and shapes of the parameters; a name is empty where it is unknown.

    Raises:
        UnimplementedError: the plugin does not report the optimized program, or reports it in its own format.
    """
    from pjrt import stablehlo
    from pjrt.stablehlo.encodings.hlo_parameters import HloParameter, hlo_parameters
    from pjrt.stablehlo.facts.signatures import shape_spec

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


_LARGEST_READ = 64 << 20
"""The most bytes of a program that are read for the sake of a check of arguments."""


def expected_parameters(
    source: Program | None, executable: Executable
) -> tuple[list[tuple[int, tuple[int, ...]] | None], tuple[int, ...]] | None:
    """Return what arguments an executable takes on a device, or ``None`` if that is not known.

    Args:
        source: the program that was compiled; without it the optimized program is asked, where it is HLO: a compiler's
            own dialect need not have the types of the arguments.
        executable: the executable.

    Returns:
        The element type and shape of each parameter, ``None`` where any value may stand; and the numbers of those that
        the program says it donates.
    """
    from pjrt import stablehlo
    from pjrt.stablehlo.encodings.hlo_parameters import hlo_parameters
    from pjrt.stablehlo.facts.signatures import shape_spec
    from pjrt.stablehlo.ir.types import TensorType, TokenType

    try:
        program = executable.optimized_program() if source is None else source
        if len(program.code) > _LARGEST_READ:
            return None
        if program.format in (ProgramFormat.HLO, ProgramFormat.HLO_WITH_CONFIG):
            return [_expected(parameter.spec) for parameter in hlo_parameters(program)], ()
        if program.format != ProgramFormat.MLIR or source is None:
            return None
        arguments = stablehlo.signature(program, trusted=True).arguments
    except PjrtError:
        return None
    if not all(isinstance(argument.type, (TensorType, TokenType)) for argument in arguments):
        return None  # a tuple is taken apart
    donated = (number for number, each in enumerate(arguments) if each.is_donor or each.aliases_output is not None)
    return [_expected(shape_spec(argument.type)) for argument in arguments], tuple(donated)


def _expected(spec: ShapeSpec | None) -> tuple[int, tuple[int, ...]] | None:
    if spec is None or spec.element_type is ElementType.TOKEN:  # frameworks give an empty array for a token
        return None
    return int(spec.element_type), spec.shape


# FFI handlers as the addresses that plugins take: of compiled handlers, and of Python functions.

_GPUS = ("cuda", "rocm")
"""The platforms where a Python function gets addresses on the device, and a stream."""


def address_of(handler: Callable[..., Any] | int, traits: int, platform: str) -> int:
    """Return the address of a handler: of a Python function the same one each time, so that it can be registered again.

    Raises:
        InvalidArgumentError: the handler is neither an address nor a function.
        UnimplementedError: the handler is a function, and programs of the platform run in other memory than the host's
            and that of a GPU.
    """
    if isinstance(handler, int) and handler > 0:
        return handler
    if not callable(handler):
        raise InvalidArgumentError(f"expected the address of an FFI handler or a Python function, found {handler!r}")
    if platform == "tpu":
        raise UnimplementedError(
            "a Python function cannot be a handler on 'tpu', whose buffers are not in the host's memory; "
            "give the address of a compiled handler"
        )
    from pjrt.devices.xla.ffi_handler import handler_of

    return handler_of(handler, traits, on_device=platform in _GPUS)


def function_at(address: int) -> Callable[..., Any] | None:
    """Return the Python function of a handler, or ``None`` for a handler that is no Python function of this process."""
    module = sys.modules.get("pjrt.devices.xla.ffi_handler")  # until it is imported no function is a handler
    return None if module is None else module.function_at(address)
