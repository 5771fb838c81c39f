"""The output of ``pjrt inspect``: arguments and results, their parts on each device, and saved executables."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pjrt
from pjrt.api.errors import PjrtError
from pjrt.api.printable import readable_bytes
from pjrt.cli._console import print_facts, print_table
from pjrt.models.model_file import ModelFile
from pjrt.stablehlo import ArgumentInfo, ProgramInfo, ResultInfo, TensorType
from pjrt.stablehlo.facts.signatures import CallSignature, Parameter, Result
from pjrt.stablehlo.ir.argument_shapes import StatedShape, spelled_shape
from pjrt.stablehlo.ir.sharding import Mesh, Sharding
from pjrt.stablehlo.ir.sharding_parser import StatedSharding

if TYPE_CHECKING:  # most files have a program, and need no module of executables
    from pjrt.artifacts.saved_executable import SavedExecutable


# Shardings: the meshes, and how each argument and result is cut.


def is_partitioned(info: ProgramInfo) -> bool:
    """Whether a program is for several partitions, or states a sharding."""
    values: list[ArgumentInfo | ResultInfo] = [*info.arguments, *info.results]
    return info.num_partitions > 1 or any(value.sharding for value in values)


def spelled_mesh(mesh: Mesh) -> str:
    """Return the axes of a mesh and their sizes, such as ``data=4, model=2``."""
    axes = ", ".join(f"{name}={size}" for name, size in mesh.axes.items())
    order = "" if mesh.devices == tuple(range(len(mesh.devices))) else f", in the order {list(mesh.devices)}"
    return f"{axes or 'one device'} ({len(mesh.devices)} devices{order})"


def sharding_cells(value: ArgumentInfo | ResultInfo, shape: StatedShape, meshes: Mapping[str, Mesh]) -> list[str]:
    """Return two cells of a table: how an argument or result is cut, and the part that one device has."""
    if not isinstance(value.type, TensorType):
        return ["", ""]
    if not value.sharding:
        return ["not stated", ""]
    return tiling_cells(StatedSharding.of(value.sharding, len(shape), meshes), shape)


def tiling_cells(sharding: StatedSharding, shape: StatedShape) -> list[str]:
    """Return two cells of a table: a sharding, and the part that one device has of an array of some shape."""
    padded = "" if sharding.is_even(shape) else ", the last one padded"
    return [str(sharding), f"{spelled_shape(sharding.shard_shape(shape))}{padded}" if sharding.tiling else ""]


def sharding_dict(value: ArgumentInfo | ResultInfo, shape: StatedShape, meshes: Mapping[str, Mesh]) -> dict[str, Any]:
    """Return the sharding of an argument or result for ``--json``: the program's spelling, and what it means."""
    if not value.sharding or not isinstance(value.type, TensorType):
        return {"sharding": value.sharding}
    return tiling_dict(StatedSharding.of(value.sharding, len(shape), meshes), shape)


def tiling_dict(sharding: StatedSharding, shape: StatedShape) -> dict[str, Any]:
    """Return a sharding for ``--json``, and the part that one device has of an array of some shape."""
    facts: dict[str, Any] = {"sharding": sharding.text}
    if sharding.tiling is not None:
        tiles = sharding.tiling.tiles or (1,) * len(shape)
        copies = 1 if sharding.tiling.is_replicated else sharding.tiling.copies
        facts |= {"shard_shape": list(sharding.shard_shape(shape)), "parts": list(tiles)}
        facts |= {"axes": [list(axes) for axes in sharding.axes] or None, "copies": copies}
        if sharding.tiling.terms:
            facts |= {"terms": sharding.tiling.num_terms, "reduction": sharding.tiling.reduction}
    return facts


def mesh_dict(mesh: Mesh) -> dict[str, Any]:
    """Return a mesh for ``--json``."""
    return {"axes": dict(mesh.axes), "devices": list(mesh.devices)}


@dataclass(frozen=True, slots=True)
class SignatureRow:
    """An argument or a result.

    Attributes:
        index: the index that a caller of the model gives; None for an argument that no caller passes.
        name: the name that a caller gives; empty if unknown.
        shape: its shape, with the symbols of dynamic sizes.
        info: what the program states about it.
        needed: whether it is an argument of the program. The program of a framework may lack unused ones.
    """

    index: int | None
    name: str
    shape: StatedShape
    info: ArgumentInfo | ResultInfo
    needed: bool = True


def argument_rows(file: ModelFile, info: ProgramInfo) -> list[SignatureRow]:
    """Return the arguments of a program: those that no caller passes, then the parameters of the model in order."""
    parameters = _parameters(file)
    if parameters is None:
        return [_row(index, each) for index, each in enumerate(info.arguments)]
    hidden = int(len(file.platforms) > 1)  # the index of the platform, which commands and models pass
    positions = {each.argument + hidden for each in parameters if each.argument is not None}
    rows = [_row(None, each) for position, each in enumerate(info.arguments) if position not in positions]
    for each in parameters:
        if each.argument is None:
            type_ = TensorType(tuple(None if isinstance(size, str) else size for size in each.shape), each.element_type)
            rows.append(SignatureRow(each.index, each.name, each.shape, ArgumentInfo(each.name, type_), needed=False))
        else:
            rows.append(_row(each.index, info.arguments[each.argument + hidden], each))
    return rows


def result_rows(file: ModelFile, info: ProgramInfo) -> list[SignatureRow]:
    """Return the results of a program."""
    results = () if _parameters(file) is None else file.results
    if len(results) != len(info.results):  # results of the program that are no arrays, such as tokens
        return [_row(index, each) for index, each in enumerate(info.results)]
    return [_row(each.index, of_program, each) for each, of_program in zip(results, info.results, strict=True)]


def _parameters(file: ModelFile) -> Sequence[Parameter] | None:
    try:
        return file.parameters
    except PjrtError:  # an argument that is no array, such as a token
        return None


def _row(index: int | None, info: ArgumentInfo | ResultInfo, call: Result | None = None) -> SignatureRow:
    if not isinstance(info.type, TensorType):
        return SignatureRow(index, info.name, (), info)
    stated: StatedShape = info.symbolic_shape if isinstance(info, ArgumentInfo) else info.shape
    if call is None:
        return SignatureRow(index, info.name, stated, info)
    sizes = [of_call if size is None else size for size, of_call in zip(stated, call.shape, strict=True)]
    return SignatureRow(index, call.name or info.name, sizes, info)


# Saved executables.

Shardings = Sequence[bytes] | None

_Value = tuple[Result, int | None, str]
"""An argument or result, its position among those of the program, and notes."""


def print_executable(executable: SavedExecutable) -> None:
    """Print the facts of a saved executable, its arguments and its results."""
    print_facts(_facts(executable))
    signature = _signature(executable)
    if signature is not None:
        parameters = [(each, each.argument, _notes(each)) for each in signature.parameters]
        _print_values(executable, "argument", parameters, executable.parameter_shardings)
        results = [(each, each.index, "") for each in signature.results]
        _print_values(executable, "result", results, executable.output_shardings)


def _print_values(executable: SavedExecutable, kind: str, values: Sequence[_Value], shardings: Shardings) -> None:
    is_cut = executable.num_partitions > 1
    rows = []
    for value, position, notes in values:
        sharding = _sharding(value, position, shardings, executable.num_partitions)
        cells = ["", ""] if sharding is None else tiling_cells(sharding, value.shape)
        rows.append([value.index, value.name, _type(value), *(cells if is_cut else []), notes])
    titles = [kind, "name", "type", *(["sharding", "of each device"] if is_cut else []), "notes"]
    print_table(titles, rows, right=[kind])


def executable_as_dict(executable: SavedExecutable) -> dict[str, Any]:
    """Return the facts of a saved executable for ``--json``."""
    signature = _signature(executable)
    facts: dict[str, Any] = {
        "name": executable.name,
        "encoding": "saved executable",
        "platform": executable.platform_name,
        "platform_version": executable.platform_version,
        "device_kind": executable.device_kind,
        "num_replicas": executable.num_replicas,
        "num_partitions": executable.num_partitions,
        "size": len(executable.serialize()),
        "weights": len(executable.weights),
        "option_overrides": _overrides(executable),
    }
    if signature is not None:
        facts["arguments"] = [
            {
                **_as_dict(executable, each, each.argument, executable.parameter_shardings),
                "donated": each.donated,
                "needed": each.argument is not None,
            }
            for each in signature.parameters
        ]
        facts["results"] = [
            _as_dict(executable, each, each.index, executable.output_shardings) for each in signature.results
        ]
    return facts


def _facts(executable: SavedExecutable) -> list[tuple[str, object]]:
    facts: list[tuple[str, object]] = [
        ("program", executable.name or "without a name"),
        ("written as", "saved executable"),
        ("compiled for", f"{executable.platform_name}, {executable.device_kind}"),
        ("compiled by", executable.platform_version),
        ("made for", f"{executable.num_replicas} replicas, {executable.num_partitions} partitions"),
        ("size", readable_bytes(len(executable.serialize()))),
    ]
    if executable.weights:
        count, size = len(executable.weights), sum(array.nbytes for array in executable.weights.values())
        facts.append(("weights", f"{count} arrays, {readable_bytes(size)}"))
    overrides = _overrides(executable)
    if overrides:
        facts.append(("options", ", ".join(f"{name}={value}" for name, value in sorted(overrides.items()))))
    with contextlib.suppress(pjrt.UnimplementedError):
        facts.append(("memory", f"{readable_bytes(executable.memory_stats().needed_in_bytes)} on each device"))
    if _signature(executable) is None:
        facts.append(("arguments", "unknown: it was saved without its program"))
    return facts


def _overrides(executable: SavedExecutable) -> dict[str, Any]:
    try:
        return dict(executable.compile_options().option_overrides)
    except pjrt.UnimplementedError:
        return {}


def _signature(executable: SavedExecutable) -> CallSignature | None:
    try:
        return executable.signature
    except pjrt.UnimplementedError:
        return None


def _type(value: Result) -> str:
    return f"{value.element_type.name.lower()}[{','.join(map(str, value.shape))}]"


def _notes(parameter: Parameter) -> str:
    notes = (("donated", parameter.donated), ("not needed", parameter.argument is None))
    return ", ".join(note for note, is_true in notes if is_true)


def _as_dict(executable: SavedExecutable, value: Result, position: int | None, shardings: Shardings) -> dict[str, Any]:
    sharding = _sharding(value, position, shardings, executable.num_partitions)
    return {
        "name": value.name,
        "element_type": value.element_type.name,
        "shape": list(value.shape),
        **(
            {"sharding": value.sharding, "shard_shape": None}
            if sharding is None
            else tiling_dict(sharding, value.shape)
        ),
    }


def _sharding(value: Result, position: int | None, shardings: Shardings, num_partitions: int) -> StatedSharding | None:
    """Return the sharding that the compiler chose, which has no axes: the meshes are not saved."""
    if shardings is None or position is None:
        return None
    return StatedSharding(value.sharding, Sharding.from_proto(shardings[position], num_partitions))
