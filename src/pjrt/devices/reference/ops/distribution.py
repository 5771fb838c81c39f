"""Collectives among the devices of a launch, and channels between them and to the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError
from pjrt.api.shape_spec import ShapeSpec
from pjrt.devices.reference.core.block import TOKEN, Context, Environment, Kernel, Step, context_of, one_or_all
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.core.reducers import Reducer
from pjrt.devices.reference.core.registry import op
from pjrt.devices.reference.numerics.element_types import BOOLEAN, compute_dtype
from pjrt.devices.reference.spmd import Group, Rendezvous, channel_of, finder_of, group_table
from pjrt.host.processes import Collective
from pjrt.stablehlo.ir.types import TensorType

Array = Any


@op("stablehlo.replica_id", environment=True, foldable=False)
def replica_id(view: OpView) -> Kernel:
    """Return the number of the replica."""
    return lambda environment: np.uint32(context_of(environment).replica_id)


@op("stablehlo.partition_id", environment=True, foldable=False)
def partition_id(view: OpView) -> Kernel:
    """Return the number of the partition."""
    return lambda environment: np.uint32(context_of(environment).partition_id)


class _Meeting:
    """The groups of a collective, and the place where each of them meets."""

    def __init__(self, view: OpView) -> None:
        self._view, self._find = view, finder_of(view)
        self._rendezvous = Rendezvous(view.name, view.meeting(self._find))

    def group(self, environment: Environment) -> Group | None:
        """Return this process's group; ``None`` if it is in none."""
        return self._find(context_of(environment))

    def together(
        self, environment: Environment, group: Group, value: Any, work: Callable[[list[Any]], Sequence[Any]]
    ) -> Any:
        """Let the last process of a group do some work on the values of all; return this process's result."""
        return self._rendezvous.together(context_of(environment), group, value, work)

    def collective(self, environment: Environment, group: Group | None = None) -> Collective:
        """Return the collective of this process's group.

        Raises:
            InvalidArgumentError: the process is in no group.
        """
        context = context_of(environment)
        group = group or self._find(context)
        if group is None:
            raise InvalidArgumentError(
                f"expected replica {context.replica_id}, partition {context.partition_id} in one of the groups of "
                f"{self._view.name}, found it in none"
            )
        return self._rendezvous.collective(context, group)


@dataclasses.dataclass(frozen=True)
class DeviceCollective:
    """A collective as devices with queues may do it themselves; an attribute ``collective`` of its kernel.

    Attributes:
        method: the method of ``pjrt.host.Memory`` that does it.
        facts: its further arguments.
        step: the op, for messages.
        meeting: the groups, and the place where each of them meets.
    """

    method: str
    facts: Mapping[str, Any]
    step: Step
    meeting: _Meeting


def _with_method(view: OpView, meeting: _Meeting, kernel: Kernel, method: str, **facts: Any) -> Kernel:
    """Return the kernel of a collective with what a device's own method for it needs."""
    types = [*view.operands, *view.results]
    if all(isinstance(t, TensorType) and t.is_static and not t.quantization for t in types):
        step = Step(view.name, view.location, (), (), view.operands, view.results)
        kernel.collective = DeviceCollective(method, facts, step, meeting)  # type: ignore[attr-defined]
    return kernel


_REDUCTIONS = {"add": "add", "multiply": "multiply", "minimum": "minimum", "maximum": "maximum"}


def _reducer(view: OpView) -> tuple[Callable[[Environment, Sequence[Sequence[Array]]], list[Array]], str | None]:
    """Return the function that combines the values of a group, in the group's order, for each operand.

    Also return the one operation that it applies to each operand; ``None`` if it does another thing, or if the order of
    the values matters much.
    """
    reducers = [Reducer(view.regions[0], [view.results[i]]) for i in range(len(view.results))]

    def run(environment: Environment, contributions: Sequence[Sequence[Array]]) -> list[Array]:
        results = []
        for i, reducer in enumerate(reducers):
            total = reducer.open([contributions[0][i]])
            for values in contributions[1:]:
                total = reducer.combine(environment, total, reducer.open([values[i]]))
            results += reducer.close(total)
        return results

    pattern = view.regions[0].pattern
    types = [t for t in (*view.operands, *view.results) if isinstance(t, TensorType)]
    elements = [t.element for t in types]
    plain = all(reducer.ufunc is not None for reducer in reducers) and not any(t.quantization for t in types)
    plain = plain and elements[: len(elements) // 2] == elements[len(elements) // 2 :]
    logical = any(element in BOOLEAN for element in elements)
    return run, _REDUCTIONS.get(pattern or "") if plain and not logical else None


@op("stablehlo.all_reduce")
def all_reduce(view: OpView) -> Kernel:
    """Combine the values of a group's processes; all get the result."""
    meeting, (combine, reduction) = _Meeting(view), _reducer(view)

    def run(environment: Environment, *values: Array) -> Any:
        collective = meeting.collective(environment)
        return one_or_all(collective.all_reduce(values, lambda rows: combine(environment, rows), reduction))

    return _with_method(view, meeting, run, "all_reduce", reduction=reduction) if reduction else run


@op("stablehlo.cross-replica-sum", environment=True, foldable=False)
def cross_replica_sum(view: OpView) -> Kernel:
    """Add up the values of a group of replicas."""
    meeting = _Meeting(view)
    element = view.operand().element
    add, wide = np.logical_or if element in BOOLEAN else np.add, compute_dtype(element)

    def combine(rows: Sequence[Sequence[Array]]) -> list[Array]:
        total = rows[0][0].astype(wide)
        for row in rows[1:]:
            total = add(total, row[0].astype(wide))
        return [total.astype(element.dtype)]

    def run(environment: Environment, value: Array) -> Array:
        return meeting.collective(environment).all_reduce([value], combine, None if element in BOOLEAN else "add")[0]

    return run


@op("stablehlo.reduce_scatter")
def reduce_scatter(view: OpView) -> Kernel:
    """Combine the values of a group's processes; each gets its part of the result."""
    meeting, (combine, reduction) = _Meeting(view), _reducer(view)
    dimension = view.attr("scatter_dimension")

    def run(environment: Environment, value: Array) -> Array:
        group = meeting.group(environment)
        parts = np.split(value, len(group or (0,)), dimension)
        collective = meeting.collective(environment, group)

        def combined(rows: Sequence[Sequence[Array]]) -> list[Array]:
            return [combine(environment, [[part] for part in column])[0] for column in zip(*rows, strict=True)]

        return collective.reduce_scatter(parts, combined, reduction)

    facts = {"reduction": reduction, "dimension": dimension}
    return _with_method(view, meeting, run, "reduce_scatter", **facts) if reduction else run


@op("stablehlo.all_gather", environment=True, quantized=True, foldable=False)
def all_gather(view: OpView) -> Kernel:
    """Put the values of a group's processes side by side; all get the result."""
    meeting, dimension = _Meeting(view), view.attr("all_gather_dim")

    def run(environment: Environment, *values: Array) -> Any:
        contributions = meeting.collective(environment).rendezvous(values)
        return one_or_all([np.concatenate(parts, dimension) for parts in zip(*contributions, strict=True)])

    return _with_method(view, meeting, run, "all_gather", dimension=dimension)


@op("stablehlo.all_to_all", environment=True, quantized=True, foldable=False)
def all_to_all(view: OpView) -> Kernel:
    """Cut each process's value into as many parts as there are processes; each gets its part of all values."""
    meeting = _Meeting(view)
    split, concat = view.attr("split_dimension"), view.attr("concat_dimension")

    def run(environment: Environment, *values: Array) -> Any:
        group = meeting.group(environment)
        return one_or_all(
            [
                np.concatenate(
                    meeting.collective(environment, group).all_to_all(np.split(value, len(group or (0,)), split)),
                    concat,
                )
                for value in values
            ]
        )

    return _with_method(view, meeting, run, "all_to_all", split_dimension=split, concat_dimension=concat)


@op("stablehlo.collective_broadcast", environment=True, quantized=True, foldable=False)
def collective_broadcast(view: OpView) -> Kernel:
    """Give all processes of a group the first one's value; processes in no group get zeros."""
    meeting = _Meeting(view)

    def run(environment: Environment, value: Array) -> Array:
        group = meeting.group(environment)
        return np.zeros_like(value) if group is None else meeting.collective(environment, group).broadcast(value)

    return _with_method(view, meeting, run, "broadcast")


@op("stablehlo.collective_permute", environment=True, quantized=True, foldable=False)
def collective_permute(view: OpView) -> Kernel:
    """Send values along pairs of source and target; processes that are no target get zeros."""
    pairs = [(source, target) for source, target in group_table(view, "source_target_pairs")]
    meeting, kind = _Meeting(view), "partitions" if channel_of(view) > 0 else "replicas"

    def run(environment: Environment, value: Array) -> Array:
        # Among all replicas, or all partitions, in order.
        _check_pairs(view, pairs, len(meeting.group(environment) or ()), kind)
        received = meeting.collective(environment).permute(value, pairs)
        return np.zeros_like(value) if received is None else received

    return _with_method(view, meeting, run, "permute", pairs=pairs)


def _check_pairs(view: OpView, pairs: Iterable[tuple[int, int]], count: int, kind: str) -> None:
    """Refuse a pair of source and target of which one is not among the processes."""
    for pair in pairs:
        if max(pair) >= count:
            raise InvalidArgumentError(
                f"expected source_target_pairs of {view.name} below {count}, the number of {kind}, found {list(pair)}; "
                "change the pair, or compile the program for more"
            )


@op("stablehlo.async_start", quantized=True)
def async_start(view: OpView) -> Kernel:
    """Begin a computation that ``async_done`` waits for; here it is done at once."""
    region = view.regions[0] if view.regions else view.function(view.attr("called_computation"))
    return lambda environment, *values: tuple(region.run(environment, values))


@op("stablehlo.async_done", quantized=True)
def async_done(view: OpView) -> Kernel:
    """Return the results of a computation that ``async_start`` began."""
    return one_or_all


def _host(view: OpView, context: Context) -> Any:
    if context.host is None:
        raise FailedPreconditionError(f"{view.name} needs the host runtime: run the program on a client")
    return context.host


@op("stablehlo.send", environment=True, quantized=True, foldable=False)
def send(view: OpView) -> Kernel:
    """Send values to the host, or to another device, by a channel."""
    to_host, channel = view.attr("is_host_transfer", False), channel_of(view)
    targets = {pair[0]: pair[1] for pair in group_table(view, "source_target_pairs")}

    def run(environment: Environment, *values: Array) -> Any:
        context = context_of(environment)
        host = _host(view, context)
        if to_host:
            for value in values[:-1]:
                host.send(channel, np.ascontiguousarray(value))
        elif not targets:
            host.post(("channel", channel), values[:-1])
        elif _flat_id(context) in targets:
            target = targets[_flat_id(context)]
            _check_pairs(view, targets.items(), context.num_replicas * context.num_partitions, "devices")
            host.check_in_process([divmod(target, context.num_partitions)], view.name)
            host.post(("channel", channel, target), values[:-1])
        return TOKEN

    return run


@op("stablehlo.recv", environment=True, quantized=True, foldable=False)
def recv(view: OpView) -> Kernel:
    """Receive values from the host, or from another device, by a channel; zeros where no device sends to this one."""
    from_host, channel = view.attr("is_host_transfer", False), channel_of(view)
    sources = {target: source for source, target in group_table(view, "source_target_pairs")}
    types = [t for t in view.results if isinstance(t, TensorType)]

    def run(environment: Environment, token: Any) -> Any:
        context = context_of(environment)
        host = _host(view, context)
        if from_host:
            return [*(host.receive(channel, ShapeSpec(t.sizes, t.element)) for t in types), TOKEN]
        if not sources:
            return [*host.take(("channel", channel)), TOKEN]
        if _flat_id(context) not in sources:
            return [*(np.zeros(t.sizes, t.dtype) for t in types), TOKEN]
        pairs = ((source, target) for target, source in sources.items())
        _check_pairs(view, pairs, context.num_replicas * context.num_partitions, "devices")
        host.check_in_process([divmod(sources[_flat_id(context)], context.num_partitions)], view.name)
        return [*host.take(("channel", channel, _flat_id(context))), TOKEN]

    if len(view.results) == 1:
        return lambda environment, token: run(environment, token)[0]
    return run


def _flat_id(context: Context) -> int:
    return context.replica_id * context.num_partitions + context.partition_id


@op("stablehlo.infeed", environment=True, quantized=True, foldable=False)
def infeed(view: OpView) -> Kernel:
    """Return the next values that the host feeds to this device."""
    types = [t for t in view.results if isinstance(t, TensorType)]

    def run(environment: Environment, token: Any) -> Any:
        feed = _host(view, context_of(environment)).infeed()
        values = [np.asarray(value) for value in (feed if isinstance(feed, list | tuple) else [feed])]
        fits = len(values) == len(types) and all(
            v.shape == t.sizes and v.dtype == t.dtype for v, t in zip(values, types, strict=True)
        )
        if not fits:
            shapes = ", ".join(f"{value.dtype}{list(value.shape)}" for value in values)
            raise InvalidArgumentError(
                f"expected {', '.join(map(str, types)) or 'nothing'} from the infeed, found {shapes}"
            )
        return [*values, TOKEN] if types else TOKEN

    return run


@op("stablehlo.outfeed", environment=True, quantized=True, foldable=False)
def outfeed(view: OpView) -> Kernel:
    """Feed values to the host."""

    def run(environment: Environment, *values: Array) -> Any:
        arrays = [np.array(value) for value in values[:-1]]
        _host(view, context_of(environment)).outfeed(arrays[0] if len(arrays) == 1 else tuple(arrays))
        return TOKEN

    return run
