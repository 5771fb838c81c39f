"""Advice for failed compilations: what in the program is the reason, in the program's words.

The messages of compilers name operations of their own. A program is looked into only when a compilation has failed.
"""

from __future__ import annotations

from typing import Any

from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, PjrtError, ResourceExhaustedError
from pjrt.api.program import Program
from pjrt.stablehlo._dense import left_out
from pjrt.stablehlo._diagnostics import shortened
from pjrt.stablehlo._mlir import MlirModule
from pjrt.stablehlo.conversion import to_module
from pjrt.stablehlo.entry_signature import ArgumentInfo, signature_of
from pjrt.stablehlo.operation import ParsedProgram
from pjrt.stablehlo.parser import parse_module
from pjrt.stablehlo.reader import read
from pjrt.stablehlo.shapes.argument_shapes import is_dynamic, spelled_shape, symbols_in_shape
from pjrt.stablehlo.shardings.stated_partitioning import with_partitioning
from pjrt.stablehlo.shardings.stated_sharding import StatedSharding

_SHAPES = "compile(program, shapes="
_SHARDINGS = "expected shardings over the devices of the program"


def with_advice(error: PjrtError, program: Program, options: CompileOptions | None = None) -> PjrtError:
    """Return the error of a compilation, or a clearer one if the reason is in the arguments of the program.

    Reasons are constants without values, arguments of dynamic shapes, and shardings over another number of devices than
    the program is for.

    Args:
        error: the error.
        program: the program.
        options: the options of the compilation; ``None`` where they leave everything to the program.
    """
    if isinstance(error, FailedPreconditionError | ResourceExhaustedError):  # of the client, not of the program
        return error
    if _SHAPES in error.message or _SHARDINGS in error.message:  # the device is another client of this package
        return error
    try:
        module = to_module(read(program), trusted=True)
        parsed = parse_module(module, bodies=False)
        arguments = signature_of(parsed, module).arguments
        count = with_partitioning(program, options, module).partitioning.num_partitions
        advice = _on_constants(module) or _on_shapes(arguments) or _on_shardings(arguments, parsed, count)
    except PjrtError:
        return error
    return error if advice is None else InvalidArgumentError(f"{advice}: {shortened(error.message)}")


def _on_constants(module: MlirModule) -> str | None:
    constants = left_out(module)
    if not constants:
        return None
    return (
        f"expected the values of {len(constants)} constants, which were left out when the program was written, first "
        f"that of type {constants[0].results[0].type}, {constants[0].location}; write it with all elements of its "
        "constants"
    )


def _on_shapes(arguments: tuple[ArgumentInfo, ...]) -> str | None:
    dynamic = {
        i: argument.symbolic_shape for i, argument in enumerate(arguments) if is_dynamic(argument.symbolic_shape)
    }
    if not dynamic:
        return None
    symbols = sorted({symbol for shape in dynamic.values() for symbol in symbols_in_shape(shape)})
    example: dict[Any, Any] = dict.fromkeys(symbols, 8)
    if not symbols:
        example = {i: tuple(size if isinstance(size, int) else 8 for size in shape) for i, shape in dynamic.items()}
    spelled = ", ".join(f"{arguments[index].name or index} {spelled_shape(shape)}" for index, shape in dynamic.items())
    return (
        f"the device does not compile programs with dynamic shapes, and this one has arguments of such shapes "
        f"({spelled}); give their shapes, as in {_SHAPES}{example}), or by --shape"
    )


def _on_shardings(arguments: tuple[ArgumentInfo, ...], parsed: ParsedProgram, count: int) -> str | None:
    meshes = parsed.meshes
    for index, argument in enumerate(arguments):
        sharding = StatedSharding.of(argument.sharding, len(argument.symbolic_shape), meshes)
        if sharding.tiling is None or sharding.tiling.is_replicated or len(sharding.tiling.places) == count:
            continue
        return (
            f"{_SHARDINGS}, which states {count} partitions, found one over {len(sharding.tiling.places)} for argument "
            f"{argument.name or index} ({sharding}); state as many partitions as the mesh has devices"
        )
    return None
