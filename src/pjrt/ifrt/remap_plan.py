"""Remap plans: which shard of which input array becomes which shard of which output (``xla::ifrt::RemapPlan``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pjrt.api.buffer import Buffer
from pjrt.api.errors import InvalidArgumentError
from pjrt.ifrt.array import Array, ArrayCopySemantics, ArraySpec


@dataclass(frozen=True, slots=True)
class Interval:
    """Shards from ``start`` to before ``end``, every ``step``-th (``RemapPlan::Interval``)."""

    start: int
    end: int
    step: int = 1

    def shards(self) -> range:
        """Return the numbers of the shards."""
        return range(self.start, self.end, self.step)

    def check(self, count: int, what: str) -> None:
        """Raise an error if the interval is not one of ``count`` shards.

        Raises:
            InvalidArgumentError: the step is not positive, or the interval reaches beyond the shards.
        """
        if self.step <= 0:
            raise InvalidArgumentError(f"expected a positive step in an interval of {what}, found {self}")
        if not 0 <= self.start <= self.end or self.end > count + self.step - 1:
            raise InvalidArgumentError(f"expected an interval of the {count} shards of {what}, found {self}")

    def __str__(self) -> str:
        return f"[{self.start}:{self.end}:{self.step}]"


@dataclass(frozen=True, slots=True)
class Mapping:
    """Shards of one input that become shards of one output (``RemapPlan::Mapping``).

    Attributes:
        in_array: the number of the input.
        out_array: the number of the output.
        from_: the shards of the input.
        to: as many shards of the output.
    """

    in_array: int
    out_array: int
    from_: tuple[Interval, ...]
    to: tuple[Interval, ...]


@dataclass(frozen=True, slots=True)
class RemapPlan:
    """A plan that makes arrays of the shards of others and moves no shard.

    Attributes:
        input_specs: the inputs.
        output_specs: the outputs.
        mappings: which shard becomes which. Each shard of an output comes from exactly one shard of an input, and no
            shard is used twice.
    """

    input_specs: tuple[ArraySpec, ...]
    output_specs: tuple[ArraySpec, ...]
    mappings: tuple[Mapping, ...] = field(default=())

    def validate(self) -> None:
        """Check the plan (``Validate``).

        Raises:
            InvalidArgumentError: a shard is used twice or missing, a shard would change its device, its kind of memory,
                its shape or its element type, or a mapping names an array or an interval that does not exist.
        """
        used: set[tuple[int, int]] = set()
        filled: set[tuple[int, int]] = set()
        for (i, a), (o, b) in self._moves():
            source, target = self.input_specs[i], self.output_specs[o]
            if (i, a) in used:
                raise InvalidArgumentError(f"shard {a} of input {i} ({source}) is used twice")
            if (o, b) in filled:
                raise InvalidArgumentError(f"shard {b} of output {o} ({target}) has two sources")
            used.add((i, a))
            filled.add((o, b))
            if source.element_type is not target.element_type:
                raise InvalidArgumentError(f"expected one element type, found {source} mapped to {target}")
            if source.sharding.devices[a] != target.sharding.devices[b]:
                raise InvalidArgumentError(
                    f"shard {a} of input {i} is on {source.sharding.devices[a]}, shard {b} of output {o} on "
                    f"{target.sharding.devices[b]}; a remap moves no data: copy the array first"
                )
            if source.sharding.memory_kind != target.sharding.memory_kind:
                raise InvalidArgumentError(
                    f"expected one kind of memory, found {source} mapped to {target}; a remap moves no data: copy the "
                    "array first"
                )
            if source.sharding.shard_shape(source.shape) != target.sharding.shard_shape(target.shape):
                raise InvalidArgumentError(f"expected shards of one shape, found {source} mapped to {target}")
        for o, spec in enumerate(self.output_specs):
            missing = [b for b in range(len(spec.sharding.devices)) if (o, b) not in filled]
            if missing:
                raise InvalidArgumentError(f"the shards {missing} of output {o} ({spec}) have no source")

    def check_inputs(self, specs: Sequence[ArraySpec]) -> None:
        """Raise an error if arrays are not the inputs of the plan.

        Raises:
            InvalidArgumentError: the number of arrays differs, or one is of another shape, type or sharding.
        """
        if tuple(specs) != self.input_specs:
            raise InvalidArgumentError(
                f"expected the arrays {[str(spec) for spec in self.input_specs]}, found {[str(spec) for spec in specs]}"
            )

    def outputs(self) -> Iterator[tuple[ArraySpec, list[tuple[int, int]]]]:
        """Yield each output with the input and the shard that each of its shards comes from."""
        sources = {target: source for source, target in self._moves()}
        for o, spec in enumerate(self.output_specs):
            yield spec, [sources[o, b] for b in range(len(spec.sharding.devices))]

    def _moves(self) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        for mapping in self.mappings:
            if mapping.in_array not in range(len(self.input_specs)):
                raise InvalidArgumentError(f"the plan has no input {mapping.in_array}")
            if mapping.out_array not in range(len(self.output_specs)):
                raise InvalidArgumentError(f"the plan has no output {mapping.out_array}")
            source, target = self.input_specs[mapping.in_array], self.output_specs[mapping.out_array]
            for intervals, spec, what in ((mapping.from_, source, "input"), (mapping.to, target, "output")):
                for interval in intervals:
                    interval.check(len(spec.sharding.devices), f"an {what}")
            froms = [shard for interval in mapping.from_ for shard in interval.shards()]
            tos = [shard for interval in mapping.to for shard in interval.shards()]
            if len(froms) != len(tos):
                raise InvalidArgumentError(
                    f"expected as many target shards as the {len(froms)} sources, found {len(tos)}"
                )
            for a, b in zip(froms, tos, strict=True):
                yield (mapping.in_array, a), (mapping.out_array, b)


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
