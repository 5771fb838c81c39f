"""A saved executable as ``pjrt inspect`` shows it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import pjrt
from pjrt.api.printable import readable_bytes
from pjrt.artifacts.saved_executable import SavedExecutable
from pjrt.cli._console import print_facts, print_table
from pjrt.cli._shardings import tiling_cells, tiling_dict
from pjrt.stablehlo.shardings.sharding import Sharding
from pjrt.stablehlo.shardings.sharding_parser import StatedSharding
from pjrt.stablehlo.signatures import CallSignature, Parameter, Result

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


def as_dict(executable: SavedExecutable) -> dict[str, Any]:
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
