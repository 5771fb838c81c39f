"""The custom calls that XLA asks Python about while it divides a program: who answers, and which are refused."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pjrt.api.errors import InvalidArgumentError
from pjrt.api.program import is_for_stranger, is_from_framework
from pjrt.stablehlo.encodings import jaxlib
from pjrt.stablehlo.encodings.hlo_parameters import DIVIDED_TARGET, ELEMENT_TYPES, INSPECTED_TARGET
from pjrt.stablehlo.ir.mlir_module import walk
from pjrt.stablehlo.ir.types import TensorType

_PURPOSE = "divide custom calls"


def prepare_calls(targets: Collection[str]) -> dict[str, str]:
    """Prepare for the custom calls that XLA asks this process about while it divides a program.

    Those of ``let_ask`` are answered. For some, JAX writes the address of a Python function into the program, and XLA
    follows it: another process has something else there.

    Args:
        targets: the targets of the program's custom calls.

    Returns:
        The targets that calls must have instead; see ``rename_calls``.

    Raises:
        InvalidArgumentError: nobody answers, and the program does not come from JAX in this process, through the C API:
            a file or a client of a server may state any address.
    """
    renamed = {}
    for target in targets:
        asked = _asked.get(target)
        wrapper = _FUNCTIONS.get(target)
        if wrapper and (asked is None or is_for_stranger()):
            if not ("jax" in sys.modules and is_from_framework()):
                raise InvalidArgumentError(
                    f"expected a program that needs no Python of another process, found a call of {target!r}: it asks "
                    f"a function that was given to {wrapper}; run it with JAX in the process of that function, or "
                    "write it without: jax.shard_map states how work is divided"
                )
        elif asked:
            name = _RENAMED.get(target, target)
            _register(target, name, asked.may_be_replicated)
            if name != target:
                renamed[target] = name
    if not _in_batches.isdisjoint(targets):
        register_batches()
    return renamed


def rename_calls(mlir: Any, names: Mapping[str, str]) -> None:
    """Give the custom calls of a module the targets that ``prepare_calls`` returned."""
    ir = jaxlib.load("mlir.ir", _PURPOSE)
    for operation in walk(mlir.operation) if names else ():
        attributes = operation.attributes
        if "call_target_name" in attributes and attributes["call_target_name"].value in names:
            attributes["call_target_name"] = ir.StringAttr.get(names[attributes["call_target_name"].value])


_RENAMED = {"CustomSPMDPartitioning": "pjrt_custom_partitioning"}
"""The targets that JAX answers for in each process that has imported it: XLA asks whoever came first."""

_FUNCTIONS = {
    **dict.fromkeys(("CustomSPMDPartitioning", *_RENAMED.values()), "JAX's custom_partitioning"),
    **dict.fromkeys(("InspectSharding", INSPECTED_TARGET), "jax.debug.inspect_array_sharding"),
}
"""The custom calls that ask Python functions while XLA divides a program, and what of JAX makes them."""


@dataclass(frozen=True)
class CallPartitioner:
    """The functions that XLA asks about the calls of a target while it divides a program, of jaxlib's own objects.

    A function that infers or propagates must not raise an exception: XLA ends the process over it.

    Attributes:
        divide: given the shapes and the shardings of the operands, those of the result and the call's configuration, it
            returns a module for the parts of one device, and the shardings that the operands and the result get.
        infer: given the same but the sharding of the result, it returns that, or ``None``.
        propagate: given the sharding that users want of the result, its shape and the configuration, it returns that
            sharding or another one.
        may_be_replicated: whether all devices may run a call that has effects.
    """

    divide: Callable[[Sequence[Any], Sequence[Any], Any, Any, bytes], tuple[bytes, Sequence[Any], Any]]
    infer: Callable[[Sequence[Any], Sequence[Any], Any, bytes], Any]
    propagate: Callable[[Any, Any, bytes], Any]
    may_be_replicated: bool


def let_ask(target: str, asked: CallPartitioner) -> None:
    """Let XLA ask, from the next program of this process on, how the calls of a target are divided."""
    _asked[target] = asked


def divide_in_batches(target: str) -> None:
    """Let XLA divide the calls of a target along their leading dimensions, from the next program of this process on."""
    _in_batches.add(target)


def register_batches() -> None:
    """Tell XLA about the targets of ``divide_in_batches``, and about LAPACK's, as JAX does."""
    _register_batches(frozenset(_in_batches))


@functools.cache
def _register_batches(targets: frozenset[str]) -> None:
    jax = jaxlib.load("_jax", _PURPOSE)
    for name in (*jaxlib.load("lapack", _PURPOSE).batch_partitionable_targets(), *targets):
        jax.register_custom_call_as_batch_partitionable(name)


@functools.cache
def _register(target: str, name: str, may_be_replicated: bool) -> None:
    """Tell XLA, once a process, to ask how calls are divided that have the name and stand for those of the target."""

    def divide(*arguments: Any) -> Any:
        return _asked[target].divide(*arguments)

    def infer(*arguments: Any) -> Any:
        return _asked[target].infer(*arguments)

    def propagate(*arguments: Any) -> Any:
        return _asked[target].propagate(*arguments)

    client = jaxlib.load("xla_client", _PURPOSE)
    client.register_custom_call_partitioner(name, propagate, divide, infer, may_be_replicated)


def part_types(shapes: Sequence[Any], shardings: Sequence[Any]) -> list[str]:
    """Return the types, as MLIR spells them, of the parts of values that one device gets."""
    parts = [sharding.tile(shape) for shape, sharding in zip(shapes, shardings, strict=True)]
    elements = [ELEMENT_TYPES[part.xla_element_type().value] for part in parts]
    return [str(TensorType(tuple(p.dimensions()), e)) for p, e in zip(parts, elements, strict=True)]


def _divide_callback(shapes: Any, shardings: Any, _result_shape: Any, result_sharding: Any, config: bytes) -> Any:
    """Divide a call of ``DIVIDED_TARGET``: each part of the operands has a call."""
    if not _CALLBACK.fullmatch(config):
        raise InvalidArgumentError(f"expected {DIVIDED_TARGET} to have a number alone, found {config!r}")
    types = part_types(shapes, shardings)
    arguments = ", ".join(f"%{i}: {type_}" for i, type_ in enumerate(types))
    call = (
        f"stablehlo.custom_call @{DIVIDED_TARGET}({', '.join(f'%{i}' for i in range(len(types)))}) "
        f"{{api_version = 4 : i32, backend_config = {config.decode()}, has_side_effect = true}} : "
        f"({', '.join(types)}) -> ()"
    )
    return f"func.func @main({arguments}) {{ {call} return }}".encode(), shardings, result_sharding


_asked = {
    DIVIDED_TARGET: CallPartitioner(
        _divide_callback,
        infer=lambda _shapes, _shardings, _result_shape, _config: None,  # there are no results
        propagate=lambda sharding, _shape, _config: sharding,
        may_be_replicated=True,
    )
}
_in_batches: set[str] = set()
_CALLBACK = re.compile(rb"\{callback = \d+ : i64\}")
