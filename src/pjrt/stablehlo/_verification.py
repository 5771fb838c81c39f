"""The rules of operations that MLIR's verifier does not know: it takes any attributes and any result for them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Sizes = Sequence[int | None]
"""The sizes of a tensor; None for one that is known only when the program runs."""


def broken_rule(operation: Any) -> str:
    """Return the rule that an operation breaks, and what was found; empty if it breaks none."""
    rule = _RULES.get(operation.name)
    return "" if rule is None else rule(operation)


def _gather(operation: Any) -> str:
    widths = list(operation.attributes["slice_sizes"])
    if 0 not in widths or 0 in _sizes(operation.results[0]):
        return ""
    numbers = str(operation.attributes["dimension_numbers"])
    dropped = [int(number) for match in re.findall(_DROPPED, numbers) for number in re.findall(r"\d+", match)]
    if all(widths[dimension] for dimension in dropped):
        return ""
    return f"expects slice sizes of 1 in dimensions that the result drops, found {widths}"


_DROPPED = r"(?:collapsed_slice_dims|operand_batching_dims) = \[([^\]]*)\]"


def _torch_index_select(operation: Any) -> str:
    values, indices = map(_sizes, operation.operands)
    dimension, batches = (operation.attributes[name].value for name in ("dim", "batch_dims"))
    if not 0 <= batches <= min(dimension, len(indices)) or dimension >= len(values):
        return (
            f"expects 0 <= batch_dims <= dim < {len(values)} and batch_dims <= {len(indices)}, found batch_dims "
            f"{batches} and dim {dimension}"
        )
    if not _fit(values[:batches], indices[:batches]):
        return f"expects operands of equal sizes in batch_dims, found {_spelled(values)} and {_spelled(indices)}"
    return _wrong_result(operation, [*values[:dimension], *indices[batches:], *values[dimension + 1 :]])


def _einsum(operation: Any) -> str:
    config = str(operation.attributes["einsum_config"].value)
    given, arrow, wanted = config.replace(" ", "").partition("->")
    terms, operands = given.split(","), [_sizes(operand) for operand in operation.operands]
    if len(terms) != len(operands):
        return f"expects einsum_config to have a term for each of {len(operands)} operands, found {config!r}"
    if "." in config:  # the dimensions that dots stand for are left to the compiler
        return ""
    known: dict[str, int | None] = {}
    for letters, sizes in zip(terms, operands, strict=True):
        if len(letters) != len(sizes) or not re.fullmatch("[a-zA-Z]*", letters):
            return f"expects {len(sizes)} letters for the operand {_spelled(sizes)}, found {letters!r} in {config!r}"
        for letter, size in zip(letters, sizes, strict=True):
            before = known.setdefault(letter, size)
            if not _fit([before], [size]) and 1 not in (before, size):
                return f"expects one size for {letter!r} of {config!r}, found {before} and {size}"
            known[letter] = size if before in (None, 1) else before
    uses = Counter(given)
    result = wanted if arrow else sorted(letter for letter in known if uses[letter] == 1)
    if not known.keys() >= set(result) or len(set(result)) < len(result):
        return f"expects letters of the operands behind the arrow, each once, found {config!r}"
    return _wrong_result(operation, [known[letter] for letter in result])


def _wrong_result(operation: Any, expected: Sizes) -> str:
    found = _sizes(operation.results[0])
    return "" if _fit(expected, found) else f"expects a result of shape {_spelled(expected)}, found {_spelled(found)}"


def _fit(sizes: Sizes, others: Sizes) -> bool:
    return len(sizes) == len(others) and all(
        None in (size, other) or size == other for size, other in zip(sizes, others, strict=True)
    )


def _window(operation: Any) -> str:
    """Refuse the number by which MLIR marks unknown sizes: it takes it for such a size, and no window has one."""
    sizes = list(operation.attributes["window_dimensions"]) if "window_dimensions" in operation.attributes else []
    return "" if all(size > 0 for size in sizes) else f"expects window_dimensions above 0, found {sizes}"


def _sizes(value: Any) -> Sizes:
    type_ = value.type
    return [None if type_.is_dynamic_dim(i) else type_.get_dim_size(i) for i in range(type_.rank)]


def _spelled(sizes: Sizes) -> str:
    return f"[{', '.join('?' if size is None else str(size) for size in sizes)}]"


_RULES: Mapping[str, Callable[[Any], str]] = {
    "stablehlo.einsum": _einsum,
    "stablehlo.gather": _gather,
    "stablehlo.reduce_window": _window,
    "stablehlo.select_and_scatter": _window,
    "stablehlo.torch_index_select": _torch_index_select,
    "stablehlo.unary_einsum": _einsum,
}
