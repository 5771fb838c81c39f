"""The capabilities of an author's device: those of the author's code, and those of the fallback."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pjrt.api.capability import Capabilities, Feature
from pjrt.devices.author.kernels import Kernel
from pjrt.devices.reference import capability


def capabilities_of(
    kernels: Mapping[str, Kernel] | None, operations: Collection[str] | None, fallback: bool, handlers: Collection[str]
) -> Capabilities:
    """Return the capabilities of a device.

    Args:
        kernels: the author's kernels.
        operations: the names of the operations that the author's compiler takes; None for all.
        fallback: whether the interpreter runs everything else.
        handlers: names of functions of the host that custom calls may call.
    """
    compiled = frozenset() if operations is None else frozenset(operations)
    native = compiled | frozenset(kernels or ()) if kernels or compiled else None
    if fallback:
        return Capabilities(native_operations=native).completed(capability.capabilities(handlers))
    return Capabilities(
        operations=None if native is None else dict.fromkeys(native),
        native_operations=native,
        features={Feature.PARTITIONING: True},
    )
