"""Lower a JAX function to what all contestants can run: one StableHLO program with flat arguments and results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxlib.mlir.dialects import stablehlo


@dataclasses.dataclass(frozen=True)
class Lowered:
    """A function of flat arguments, ready for each contestant.

    Attributes:
        jitted: the function under `jax.jit`.
        code: the same as a StableHLO portable artifact of the version that this jaxlib writes.
        arguments: the flat example arguments.
        results: shape and dtype of each flat result.
        donated: how many of the first arguments are donated.
    """

    jitted: Callable[..., Any]
    code: bytes
    arguments: list[np.ndarray]
    results: list[tuple[tuple[int, ...], np.dtype]]
    donated: int


def lower(function: Callable[..., Any], *arguments: Any, donate_first: bool = False) -> Lowered:
    """Lower `function` for these example arguments, which may be nested; `donate_first` donates the first of them."""
    leaves, structure = jax.tree.flatten(arguments)

    def flat(*flat_arguments: jax.Array) -> list[jax.Array]:
        return jax.tree.leaves(function(*jax.tree.unflatten(structure, flat_arguments)))

    donated = len(jax.tree.leaves(arguments[0])) if donate_first else 0
    jitted = jax.jit(flat, donate_argnums=tuple(range(donated)), keep_unused=True)
    lowered = jitted.lower(*leaves)
    # From text, since serializing the module itself would change it, and JAX means to compile it later.
    text = str(lowered.compiler_ir("stablehlo"))
    code = bytes(stablehlo.serialize_portable_artifact_str(text, stablehlo.get_current_version()))
    results = [(result.shape, np.dtype(result.dtype)) for result in lowered.out_info]
    return Lowered(jitted, code, leaves, results, donated)
