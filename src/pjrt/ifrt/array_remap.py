"""Remapped arrays: the shards of arrays as the shards of others, where they are."""

from __future__ import annotations

from collections.abc import Sequence

from pjrt.api.buffer import Buffer
from pjrt.api.errors import InvalidArgumentError
from pjrt.ifrt.array import Array, ArrayCopySemantics, ArraySpec
from pjrt.ifrt.remap_plan import RemapPlan


def remapped(
    plan: RemapPlan, arrays: Sequence[Array], semantics: ArrayCopySemantics
) -> list[tuple[ArraySpec, list[Buffer]]]:
    """Return the outputs of a plan: the spec of each, and its buffers in this process.

    Args:
        plan: the shard of an input for each shard of an output.
        arrays: the inputs.
        semantics: ``DONATE_INPUT``; ``REUSE_INPUT`` for a single input.

    Raises:
        InvalidArgumentError: the plan is invalid, the arrays are not those that it describes, or the semantics is
            another one.
    """
    plan.validate()
    if semantics is ArrayCopySemantics.ALWAYS_COPY or (
        semantics is ArrayCopySemantics.REUSE_INPUT and len(arrays) != 1
    ):
        raise InvalidArgumentError(
            f"expected DONATE_INPUT, or REUSE_INPUT with one array, found {semantics.name} with {len(arrays)}"
        )
    plan.check_inputs([array.spec for array in arrays])
    rows = [
        dict(zip(array.sharding.devices.addressable_devices, array._taken(semantics), strict=True)) for array in arrays
    ]
    # A shard stays on its device, so the device finds its buffer; those of other processes have none here.
    return [
        (
            spec,
            [
                rows[i][device]
                for (i, _), device in zip(sources, spec.sharding.devices, strict=True)
                if device.is_addressable
            ],
        )
        for spec, sources in plan.outputs()
    ]
