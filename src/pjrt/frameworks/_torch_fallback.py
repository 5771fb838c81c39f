"""The CPU for operators that TorchTPU lacks: their tensors are copied to the host, and the results back."""

from __future__ import annotations

import atexit
import collections
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from pjrt.api.errors import UnimplementedError

_KEY = "PrivateUse1"
_COMPOSITE = ("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
"""The kinds of kernels that are made of other operators: they need no fallback of their own."""

_log = logging.getLogger("pjrt")
_libraries: list[Any] = []  # PyTorch forgets the functions of a library that is freed
counts: collections.Counter[str] = collections.Counter()
"""The counts of each operator's runs on the CPU."""


def install(device: str, *, at_end: bool) -> None:
    """Register the CPU's kernel of each operator of PyTorch that has none for a device of the key ``PrivateUse1``.

    Operators whose result is a view of an argument are left out: a copy would not be one.

    Args:
        device: the device's name in PyTorch.
        at_end: whether the log says at the end of the process how often each of them ran.
    """
    import torch

    if _libraries:
        return
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    library = torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    if at_end:
        atexit.register(_log_counts)
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith("aten::") or has(name, _KEY) or not has(name, "CPU"):
            continue
        if any(has(name, key) for key in _COMPOSITE):
            continue
        function = _function(name, device)
        if function is not None:
            library.impl(name, function, _KEY)


def _function(name: str, device: str) -> Callable[..., Any] | None:
    """Return the function that runs an operator on the CPU; None for one that returns a view."""
    import torch

    name, _, overload = name.partition(".")
    schema = torch._C._get_schema(name, overload)
    if any(each.alias_info and not each.alias_info.is_write for each in schema.returns):
        return None
    return partial(_run, name, overload, schema, device)


def _log_counts() -> None:
    lines = [f"{count:8} {name}" for name, count in counts.most_common()] or ["    none"]
    _log.warning("operators that ran on the CPU, and how often:\n%s", "\n".join(lines))


def _run(name: str, overload: str, schema: Any, device: str, /, *args: Any, **kwargs: Any) -> Any:
    """Run an operator on the CPU: copy what it takes, what it changes, and what it returns."""
    import torch
    from torch.utils._pytree import tree_map

    full = f"{name}.{overload}" if overload else name
    if not counts[full]:
        _log.warning("TorchTPU has no operator %s: it runs on the CPU, with copies of its tensors", full)
    counts[full] += 1
    operator = getattr(getattr(torch.ops.aten, name.removeprefix("aten::")), overload or "default")
    changed: dict[str, list[Any]] = {}  # what it writes to, by the name of the set of aliases

    def on_host(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.cpu()
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if isinstance(value, torch.Generator) and value.device.type == device:
            raise UnimplementedError(
                f"{full} runs on the CPU, and cannot use a generator of the device {device!r}; give a CPU's"
            )
        return value

    def copied(argument: Any, value: Any) -> Any:
        moved = tree_map(on_host, value)
        if argument.alias_info is not None and argument.alias_info.is_write:
            originals, copies = (list(each) if isinstance(each, list | tuple) else [each] for each in (value, moved))
            changed["".join(sorted(argument.alias_info.before_set))] = list(zip(originals, copies, strict=True))
        return moved

    arguments = {argument.name: argument for argument in schema.arguments}
    moved = [copied(argument, value) for argument, value in zip(schema.arguments, args, strict=False)]
    named = {key: copied(arguments[key], value) for key, value in kwargs.items()}
    found = operator(*moved, **named)
    for pairs in changed.values():
        for original, copy in pairs:
            if original.shape != copy.shape:
                original.resize_(copy.shape)
            original.copy_(copy)
    if len(schema.returns) == 1:
        return _returned(schema.returns[0], found, changed, device)
    results = zip(schema.returns, found, strict=True) if schema.returns else ()
    return tuple(_returned(each, value, changed, device) for each, value in results)


def _returned(description: Any, found: Any, changed: dict[str, list[Any]], device: str) -> Any:
    """Return a result on the device: what the operator has written to itself, or a copy of something new."""
    import torch
    from torch.utils._pytree import tree_map

    if description.alias_info is not None:
        pairs = changed["".join(sorted(description.alias_info.before_set))]
        originals = [original for original, _ in pairs]
        return originals if isinstance(found, list | tuple) else originals[0]
    return tree_map(lambda value: value.to(device) if isinstance(value, torch.Tensor) else value, found)
