"""The partitioning that a program states: one answer for clients, topologies, ``supports`` and the command line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import PjrtError
from pjrt.api.partitioning import Partitioning
from pjrt.api.program import AnyProgram, Program, ProgramFormat
from pjrt.stablehlo import _hlo, _mlir
from pjrt.stablehlo.mlir_walk import top_level

if TYPE_CHECKING:
    from pjrt.stablehlo._mlir import MlirModule

# As MLIR spells them, in text and among the strings of bytecode.
_NAMES = (b"mhlo.num_replicas", b"mhlo.num_partitions")
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
    if program.format == ProgramFormat.HLO_WITH_CONFIG:
        return _of_hlo(program.code)
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
        return Partitioning(*_mlir.device_counts(mlir.operation.attributes), _has_shardy(mlir))


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


def _may_state_something(code: bytes) -> bool:
    """Whether a program may be for several devices or have shardings of Shardy's: it would contain their names."""
    stated = sum(code.count(name) for name in _NAMES)
    return stated != len(_ONE.findall(code)) or b"sdy" in code


def _of_hlo(code: bytes) -> Partitioning:
    try:
        replicas, partitions = _hlo.device_counts(code)
    except PjrtError:
        return Partitioning()
    return Partitioning(replicas, partitions, _SHARDY_IN_XLA.encode() in code)


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
