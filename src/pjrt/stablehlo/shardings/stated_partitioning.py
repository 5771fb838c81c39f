"""The partitioning that a program states: one answer for clients, topologies, ``supports`` and the command line."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pjrt.api.compile_options import CompileOptions, Partitioning
from pjrt.api.errors import InvalidArgumentError, PjrtError
from pjrt.api.program import AnyProgram, Program, ProgramFormat
from pjrt.stablehlo import _hlo, _mlir
from pjrt.stablehlo.debug_options import mesh_shardings_enabled
from pjrt.stablehlo.mlir_walk import top_level

if TYPE_CHECKING:
    from pjrt.stablehlo._mlir import MlirModule

# As MLIR spells them, in text and among the strings of bytecode.
_NAMES = (b"mhlo.num_replicas", b"mhlo.num_partitions")
_OVER_MESH = re.compile(rb"\{\s*(?:mesh|maximal_mesh|single_device)\s*\[")
"""The beginning of a sharding over the axes of a mesh, as XLA spells it."""

_TILED = re.compile(r"\{devices=[^\"]*")
"""A sharding of GSPMD's that cuts a value."""

_ONE = re.compile(rb"mhlo\.num_(?:replicas|partitions)\s*=\s*1\s*:")


def partitioning_of(program: Program, module: MlirModule | None = None) -> Partitioning:
    """Return what a program states about its replicas, its partitions and the kind of its shardings.

    A program that states nothing, or that cannot be looked into (because it does not parse, or jaxlib is missing), is
    for one device. Programs whose bytes show that they state nothing are not parsed.

    Args:
        program: a program in any encoding. Its bytes are trusted, as a compiler trusts them.
        module: the program as an MLIR module, where the caller has parsed it already.

    Raises:
        InvalidArgumentError: the program states a count that is not a number from 1 up.
    """
    if program.format in (ProgramFormat.HLO, ProgramFormat.HLO_WITH_CONFIG):
        return _of_hlo(program)
    if not _may_state_something(program.code):
        return Partitioning()
    if module is None:
        from pjrt.stablehlo.conversion import to_module
        from pjrt.stablehlo.reader import read

        try:
            module = to_module(read(program), trusted=True)
        except PjrtError:  # the compiler reports the reason, and better
            return Partitioning()
    with module as mlir:
        shardy = _over_mesh(program.code) or _has_shardy(mlir)
        return Partitioning(*_mlir.device_counts(mlir.operation.attributes), shardy)


def with_partitioning(
    program: AnyProgram, options: CompileOptions | None, module: MlirModule | None = None
) -> CompileOptions:
    """Return compile options that leave nothing to the program: what they do not state is read from it.

    Args:
        program: the program.
        options: the options; ``None`` for the default ones.
        module: the program as an MLIR module, where the caller has parsed it already.
    """
    chosen = CompileOptions.of(options)
    return chosen if chosen.states_partitioning else chosen.completed(partitioning_of(Program.of(program), module))


def with_fitting_partitioner(module: MlirModule, options: CompileOptions) -> CompileOptions:
    """Return compile options by which XLA does not have Shardy partition a program whose shardings are GSPMD's.

    Where XLA takes shardings over the axes of a mesh, as since jaxlib 0.12, it ends the process over such a program.
    Elsewhere it leaves the shardings out.

    Args:
        module: the program.
        options: the options; nothing is left to the program.

    Raises:
        InvalidArgumentError: the program has shardings of both kinds.
    """
    if not options.partitioning.use_shardy_partitioner:
        return options
    with module as mlir:
        functions = [each for each in top_level(mlir) if each.name == "func.func"]
        tiled = next((m for each in functions for m in _TILED.finditer(_spelled(each, "arg_attrs"))), None)
        if tiled is None or _SHARDY_IN_XLA in _spelled(mlir.operation, "mhlo.frontend_attributes"):
            return options
        if _has_shardy(mlir):
            if not mesh_shardings_enabled(options.to_proto()):
                return options
            raise InvalidArgumentError(f"expected shardings of one kind, found {tiled[0]} of GSPMD's beside Shardy's")
    return replace(options, use_shardy_partitioner=False)


def _may_state_something(code: bytes) -> bool:
    """Whether a program may be for several devices or have shardings of Shardy's: it would contain their names."""
    stated = sum(code.count(name) for name in _NAMES)
    return stated != len(_ONE.findall(code)) or b"sdy" in code or _over_mesh(code)


def _of_hlo(program: Program) -> Partitioning:
    try:
        with_config = program.format == ProgramFormat.HLO_WITH_CONFIG
        counts = _hlo.device_counts(program.code) if with_config else (1, 1)
        return Partitioning(*counts, _SHARDY_IN_XLA.encode() in program.code or _hlo.has_mesh_shardings(program.code))
    except PjrtError:  # the compiler reports the reason, and better
        return Partitioning()


def has_mesh_shardings(program: Program) -> bool:
    """Whether a program may have shardings over the axes of a mesh in XLA's spelling."""
    if program.format in (ProgramFormat.HLO, ProgramFormat.HLO_WITH_CONFIG):
        return _hlo.has_mesh_shardings(program.code)
    return _over_mesh(program.code)


def has_shardings_of_both(program: Program) -> bool:
    """Whether a program of MLIR may have tiles of GSPMD's beside Shardy's shardings in the form for HLO."""
    code = program.code
    return program.format == ProgramFormat.MLIR and _SHARDY_IN_XLA.encode() in code and b"mhlo.sharding" in code


def _over_mesh(code: bytes) -> bool:
    """Whether MLIR may hold shardings of XLA's over the axes of a mesh, which are Shardy's in XLA's spelling."""
    return _OVER_MESH.search(code) is not None


def _has_shardy(mlir: Any) -> bool:
    """Whether shardings are Shardy's: as its dialect, or, in portable artifacts, as XLA's frontend attributes."""
    for operation in top_level(mlir):
        if operation.name == "sdy.mesh":
            return True
        if operation.name == "func.func" and any("sdy.sharding" in _spelled(operation, of) for of in _OF_VALUES):
            return True
    return _SHARDY_IN_XLA in _spelled(mlir.operation, "mhlo.frontend_attributes")


_SHARDY_IN_XLA = "xla.sdy.meshes"
_OF_VALUES = ("arg_attrs", "res_attrs")


def _spelled(operation: Any, name: str) -> str:
    return str(operation.attributes[name]) if name in operation.attributes else ""
