"""Assembly: one array of the arrays of single devices, if they fit."""

from __future__ import annotations

from collections.abc import Sequence

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError
from pjrt.ifrt.array import Array, ArraySpec
from pjrt.ifrt.sharding import Sharding, SingleDeviceShardSemantics


def assembled(
    shape: Sequence[int],
    sharding: Sharding,
    shards: Sequence[Array],
    element_type: ElementType | None,
    semantics: SingleDeviceShardSemantics,
) -> ArraySpec:
    """Return the array that shards make, without its data.

    Raises:
        InvalidArgumentError: shards are missing, are on other devices or in another memory, differ in element type, or
            have other shapes than the sharding says.
    """
    sharding.check_shards(semantics)
    parts = sharding.disassemble(shape, semantics)
    if len(parts) != len(shards):
        raise InvalidArgumentError(f"expected {len(parts)} shards for {sharding!r}, found {len(shards)}")
    types = {shard.element_type for shard in shards} | ({element_type} if element_type is not None else set())
    if len(types) != 1:
        raise InvalidArgumentError(
            f"expected shards of one element type, found {sorted(t.name for t in types)}"
            if types
            else f"expected an element_type, because this process has no shard of {sharding!r}"
        )
    for number, (shard, (part, single)) in enumerate(zip(shards, parts, strict=True)):
        place = shard.sharding
        fits = shard.shape == part or shard.element_type is ElementType.TOKEN
        if not fits or (place.devices, place.memory_kind) != (single.devices, single.memory_kind):
            raise InvalidArgumentError(
                f"expected shard {number} of {list(shape)} with {sharding!r} to be {list(part)} on "
                f"{single.devices[0]} in {single.memory_kind}, found {shard.spec}"
            )
    return ArraySpec(tuple(shape), types.pop(), sharding)
