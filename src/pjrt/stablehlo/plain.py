"""Plain programs: StableHLO for one device and nothing else, for compilers that know no shardings."""

from __future__ import annotations

from typing import Any

from pjrt.api.errors import InvalidArgumentError
from pjrt.api.program import AnyProgram, Program, ProgramFormat
from pjrt.stablehlo import _mlir
from pjrt.stablehlo.conversion import serialize, to_module
from pjrt.stablehlo.mlir_walk import inline, walk
from pjrt.stablehlo.reader import as_program
from pjrt.stablehlo.shardings.stated_partitioning import partitioning_of
from pjrt.stablehlo.version import Version

_HINTS = frozenset({"sdy.sharding_constraint", "sdy.reshard", "sdy.propagation_barrier", "sdy.all_slice"})
"""Shardy's operations that give back their operand, on one device."""

_GROUPS = frozenset({"sdy.sharding_group"})
_INLINED = frozenset({"sdy.manual_computation", "sdy.named_computation"})
_HINT_CALLS = frozenset({"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement"})
"""Targets of custom calls that give back their operand, on one device."""

_ATTRIBUTES = ("sdy.sharding", "sdy.sharding_rule", "mhlo.sharding", "mhlo.frontend_attributes", "mhlo.memory_kind")
_MODULE_ATTRIBUTES = (
    "mhlo.frontend_attributes",
    "mhlo.num_partitions",
    "mhlo.num_replicas",
    "mhlo.spmd_output_sharding",
    "mhlo.spmd_parameters_shardings",
    "mhlo.use_auto_spmd_partitioning",
)


def plain(program: AnyProgram, version: Version | str | None = None, *, trusted: bool = False) -> Program:
    """Return a program of one device without any trace of shardings, be they Shardy's or GSPMD's.

    What a program computes, its names and its donated arguments stay. Compilers other than XLA need this: Shardy's
    dialect alone, of which JAX writes an empty mesh, is an error to them.

    Args:
        program: a program in any encoding, its text or bytes, or the path of its file.
        version: the StableHLO version of the reader: the result is a portable artifact at that version. By default the
            result is MLIR bytecode.
        trusted: as for ``parse``.

    Raises:
        InvalidArgumentError: the program is for several replicas or partitions (``partition`` makes it one of one
            device), or ``version`` lacks a part of it.
        PjrtError: as for ``parse``.
    """
    program = as_program(program)
    stated = partitioning_of(program)
    if stated.num_devices != 1:
        raise InvalidArgumentError(
            f"expected a program of one device, found one of {stated.num_replicas} replicas × {stated.num_partitions} "
            "partitions; make it one of a device with pjrt.stablehlo.partition"
        )
    module = to_module(program, trusted=trusted)
    copy = _mlir.parse(_mlir.write_bytecode(module))
    with copy as mlir:
        _strip(mlir.operation)
        code = _mlir.bytecode_of(mlir.operation)
    stripped = Program(code, ProgramFormat.MLIR)
    return stripped if version is None else serialize(stripped, version, trusted=True)


def _strip(module: Any) -> None:
    for name in _MODULE_ATTRIBUTES:
        _drop(module, name)
    for operation in list(walk(module)):
        name = operation.name
        for attribute in _ATTRIBUTES:
            _drop(operation, attribute)
        if name == "func.func":
            _strip_function(operation)
        elif name == "sdy.mesh" or name in _GROUPS:
            operation.erase()
        elif name in _HINTS or _is_hint_call(operation):
            operation.results[0].replace_all_uses_with(operation.operands[0])
            operation.erase()
        elif name in _INLINED:
            inline(operation)


def _is_hint_call(operation: Any) -> bool:
    return (
        operation.name == "stablehlo.custom_call"
        and str(operation.attributes["call_target_name"].value) in _HINT_CALLS
        and len(operation.operands) == 1
        and str(operation.operands[0].type) == str(operation.results[0].type)
    )


def _strip_function(function: Any) -> None:
    """Drop the shardings of a function's arguments and results; other attributes stay."""
    for which in ("arg_attrs", "res_attrs"):
        if which not in function.attributes:
            continue
        array = function.attributes[which]
        kept = [
            type(each).get({item.name: item.attr for item in each if item.name not in _ATTRIBUTES}) for each in array
        ]
        function.attributes[which] = type(array).get(kept)


def _drop(operation: Any, name: str) -> None:
    if name in operation.attributes:
        del operation.attributes[name]
