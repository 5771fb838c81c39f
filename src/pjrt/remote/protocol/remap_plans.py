"""Remap plans inside messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pjrt.api.errors import InvalidArgumentError
from pjrt.ifrt.array import ArraySpec
from pjrt.ifrt.client import Client
from pjrt.ifrt.remap_plan import Interval, Mapping, RemapPlan
from pjrt.remote.protocol.array_specs import array_spec_of, array_spec_proto
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.shardings import device_list_of


def remap_plan_of(client: Client, proto: Any) -> RemapPlan:
    """Return the plan in a ``RemapPlanProto``.

    Raises:
        InvalidArgumentError: an interval is not complete, or a device has no shard in the input or the output.
    """
    inputs = tuple(array_spec_of(client, spec) for spec in proto.input_specs)
    outputs = tuple(array_spec_of(client, spec) for spec in proto.output_specs)
    if proto.input_devices_for_output:  # newer clients state the same in both forms
        return RemapPlan(inputs, outputs, tuple(_by_devices(client, proto, inputs, outputs)))
    mappings = tuple(
        Mapping(
            each.in_array,
            each.out_array,
            _intervals(each.from_start, each.from_end, each.from_step),
            _intervals(each.to_start, each.to_end, each.to_step),
        )
        for each in proto.mappings
    )
    return RemapPlan(inputs, outputs, mappings)


def remap_plan_proto(plan: RemapPlan) -> Any:
    """Return a plan as a ``RemapPlanProto``."""
    proto = wire.RemapPlanProto(
        input_specs=map(array_spec_proto, plan.input_specs), output_specs=map(array_spec_proto, plan.output_specs)
    )
    for mapping in plan.mappings:
        message = proto.mappings.add(in_array=mapping.in_array, out_array=mapping.out_array)
        for side, intervals in (("from", mapping.from_), ("to", mapping.to)):
            for part in ("start", "end", "step"):
                getattr(message, f"{side}_{part}").extend(getattr(interval, part) for interval in intervals)
    return proto


def _intervals(starts: Iterable[int], ends: Iterable[int], steps: Iterable[int]) -> tuple[Interval, ...]:
    try:
        return tuple(Interval(*row) for row in zip(starts, ends, steps, strict=True))
    except ValueError as error:
        raise InvalidArgumentError("expected a start, an end and a step for each interval of a remap plan") from error


def _by_devices(
    client: Client, proto: Any, inputs: tuple[ArraySpec, ...], outputs: tuple[ArraySpec, ...]
) -> Iterator[Mapping]:
    """Yield the mappings of the newer form of plans: the inputs of an output, each with the devices of its shards."""
    for output in proto.input_devices_for_output:
        for source in output.input_devices:
            for device in device_list_of(client, source.device_list):
                try:
                    start = inputs[source.in_array].sharding.devices.index(device)
                    end = outputs[output.out_array].sharding.devices.index(device)
                except (IndexError, ValueError) as error:
                    raise InvalidArgumentError(
                        f"expected a shard on {device} in input {source.in_array} and output {output.out_array} of a "
                        f"remap plan of {len(inputs)} inputs and {len(outputs)} outputs"
                    ) from error
                yield Mapping(
                    source.in_array, output.out_array, (Interval(start, start + 1),), (Interval(end, end + 1),)
                )
