"""JAX's rules for CPUs, on platforms of this package.

JAX selects lowering rules by the platform's name, and has none for names that it does not know. Our platforms get its
rules for CPUs. They also get the parts that a user wrote for CPUs, in ``jax.lax.platform_dependent`` and in functions
of ``jax.export``, where nothing was written for them.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

_CPU = "cpu"

_Branches = Sequence[tuple[str, ...] | None]
"""The platforms of each branch of ``platform_dependent``; ``None`` is the default branch, for all other platforms."""

_names: set[str] = set()
_lock = threading.Lock()


def add_cpu_rules(name: str) -> None:
    """Have JAX lower programs of a platform by its rules for CPUs, those of now and those of later.

    Args:
        name: the platform name of the client, which JAX lowers by. For ``cpu`` nothing changes.
    """
    from jax._src.interpreters import mlir
    from jax._src.lax import lax, parallel

    if name == _CPU:
        return
    with _lock:
        if not _names:
            _extend_platform_dependent()
            _extend_exported_calls()
        if name in _names:
            return
        _names.add(name)
        if name not in mlir._platforms_with_donation:
            mlir._platforms_with_donation.append(name)
        # A view of JAX's own table: modules that are imported later, such as those of sparse matrices, add rules to it.
        rules = mlir._platform_specific_lowerings
        # The rule of CPUs refuses the algorithms of products that XLA's CPU would ignore, such as TF32_TF32_F32.
        own = {lax.dot_general_p: mlir._lowerings[lax.dot_general_p], **rules.get(name, {})}
        # JAX has this rule for GPUs only. It is nothing but the operation collective_broadcast of StableHLO.
        if parallel.pbroadcast_p in rules["cuda"]:
            own.setdefault(parallel.pbroadcast_p, rules["cuda"][parallel.pbroadcast_p])
        rules[name] = collections.ChainMap(own, rules[_CPU])


def _extend_platform_dependent() -> None:
    """Have ``jax.lax.platform_dependent`` take the branch for CPUs where no other one fits."""
    from jax._src.interpreters import mlir
    from jax._src.lax.control_flow import conditionals

    lower_index, lower_branches = conditionals._platform_index_lowering, conditionals._cond_lowering

    def index(ctx: Any, *, platforms: _Branches) -> Any:
        return lower_index(ctx, platforms=_extended(platforms))

    def branches(ctx: Any, *arguments: Any, **parameters: Any) -> Any:
        if (platforms := parameters.get("branches_platforms")) is not None:
            parameters["branches_platforms"] = _extended(platforms)
        return lower_branches(ctx, *arguments, **parameters)

    mlir.register_lowering(conditionals.platform_index_p, index)
    mlir.register_lowering(conditionals.cond_p, branches)


def _extended(platforms: _Branches) -> _Branches:
    """Return the platforms of each branch, with ours beside the CPU; a default branch is for ours too and stays so."""
    if None in platforms:
        return platforms
    others = sorted(_names.difference(*filter(None, platforms)))
    return tuple((*names, *others) if names and _CPU in names else names for names in platforms)


def _extend_exported_calls() -> None:
    """Have functions that ``jax.export`` exported for CPUs run on our platforms."""
    from jax._src.export import _export
    from jax._src.interpreters import mlir

    original = _export._call_exported_lowering

    def lower(ctx: Any, *arguments: Any, exported: Any) -> Any:
        platforms = ctx.module_context.platforms
        if len(platforms) == 1 and platforms[0] in _names.difference(exported.platforms):
            # The place of the name among the platforms is the index of their code in the program.
            renamed = tuple(platforms[0] if name == _CPU else name for name in exported.platforms)
            exported = dataclasses.replace(exported, platforms=renamed)
        return original(ctx, *arguments, exported=exported)

    mlir.register_lowering(_export.call_exported_p, lower)
