"""The StableHLO programs of collectives, one operation each, over one device of each process of a group."""

from __future__ import annotations

from collections.abc import Sequence

REDUCTIONS = ("add", "multiply", "minimum", "maximum")
"""The reductions that XLA's CPU device combines between processes."""


def all_gather(count: int, size: int) -> str:
    """Return the program that puts the ``size`` bytes of each of ``count`` devices one behind the other."""
    attributes = f"all_gather_dim = 0 : i64, {_group(count)}"
    return _program("all_gather", attributes, f"tensor<{size}xui8>", f"tensor<{count * size}xui8>")


def all_reduce(count: int, size: int, element: str, reduction: str) -> str:
    """Return the program that combines the ``size`` elements of each of ``count`` devices."""
    type_ = f"tensor<{size}x{element}>"
    return _program("all_reduce", _group(count), type_, type_, _body(element, reduction))


def reduce_scatter(count: int, size: int, element: str, reduction: str) -> str:
    """Return the program that combines ``count`` rows of ``size`` elements, and leaves each device a row."""
    attributes = f"scatter_dimension = 0 : i64, {_group(count)}"
    types = f"tensor<{count * size}x{element}>", f"tensor<{size}x{element}>"
    return _program("reduce_scatter", attributes, *types, _body(element, reduction))


def all_to_all(count: int, size: int) -> str:
    """Return the program in which each device sends a row of ``size`` bytes to each."""
    type_ = f"tensor<{count * size}xui8>"
    dimensions = "split_dimension = 0 : i64, concat_dimension = 0 : i64"
    return _program("all_to_all", f"{dimensions}, split_count = {count} : i64, {_group(count)}", type_, type_)


def permute(pairs: Sequence[tuple[int, int]], size: int) -> str:
    """Return the program that sends ``size`` bytes along pairs of source and target."""
    type_ = f"tensor<{size}xui8>"
    rows = ", ".join(f"[{source}, {target}]" for source, target in pairs)
    attributes = f"source_target_pairs = dense<[{rows}]> : tensor<{len(pairs)}x2xi64>"
    return _program("collective_permute", attributes, type_, type_)


def _group(count: int) -> str:
    members = ", ".join(map(str, range(count)))
    return f"replica_groups = dense<[[{members}]]> : tensor<1x{count}xi64>"


def _body(element: str, reduction: str) -> str:
    scalar = f"tensor<{element}>"
    return (
        f" ({{ ^bb0(%x: {scalar}, %y: {scalar}): %z = stablehlo.{reduction} %x, %y : {scalar} "
        f"stablehlo.return %z : {scalar} }})"
    )


def _program(operation: str, attributes: str, argument: str, result: str, body: str = "") -> str:
    return (
        f"module @{operation} {{ func.func @main(%argument: {argument}) -> {result} {{ "
        f'%result = "stablehlo.{operation}"(%argument){body} {{{attributes}}} : ({argument}) -> {result} '
        f"return %result : {result} }} }}"
    )
