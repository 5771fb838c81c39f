"""Collectives that devices with memory of their own do in their queues, by methods of ``pjrt.host.Memory``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pjrt.api.device import MemorySpace
from pjrt.api.errors import UnimplementedError
from pjrt.api.shape_spec import ShapeSpec
from pjrt.devices.reference.core.block import INTERPRETER, Environment, Kernel, context_of, one_or_all
from pjrt.host import Allocation, Memory
from pjrt.host.device_memory import enqueuing
from pjrt.host.fences import Joint, checked_fences
from pjrt.stablehlo.ir.types import TensorType

if TYPE_CHECKING:
    from pjrt.devices.author.values import DeviceValues
    from pjrt.devices.reference.ops.distribution import DeviceCollective


class _Part(NamedTuple):
    """One device's part of a collective: for each operand its value, and new memory for the result."""

    sources: Sequence[Allocation]
    targets: Sequence[Allocation]


class _Outcome(NamedTuple):
    """The fences of one device for the operands that the author's method took, which may not be all."""

    fences: Sequence[Any]
    joint: Joint


class CollectiveKernel:
    """The kernel of a collective that the devices do, with the interpreter's as its fallback.

    Args:
        memory: the author's allocator.
        values: the form of its values.
        collective: the collective.
        fallback: the interpreter's kernel, which takes the environment first.

    Attributes:
        device: the device that does it: that of the author until the method declines.
    """

    elementwise = False
    environment = True

    def __init__(self, memory: Memory, values: DeviceValues, collective: DeviceCollective, fallback: Kernel) -> None:
        self._memory = memory
        self._values = values
        self._collective = collective
        self._fallback = fallback
        self.device = values.device
        self._source = f"{type(memory).__name__}.{collective.method}"
        types = [type_ for type_ in collective.step.output_types if isinstance(type_, TensorType)]
        self._specs = [ShapeSpec(type_.sizes, type_.element) for type_ in types]

    @staticmethod
    def of(memory: Memory, values: DeviceValues, kernel: Kernel, fallback: Kernel) -> Kernel:
        """Return the kernel of an op, if it is a collective that a memory has a method for; else the fallback."""
        collective = getattr(kernel, "collective", None)
        if collective is None or not _has(memory, collective.method):
            return fallback
        return CollectiveKernel(memory, values, collective, fallback)

    def __call__(self, environment: Environment, *values: Any) -> Any:
        """Return the results of this device."""
        host = context_of(environment).host
        meeting, step = self._collective.meeting, self._collective.step
        group = meeting.group(environment)
        if group is None or host is None or len(group) == 1 or not host.are_here(group):
            return self._fallback(environment, *values)
        space: MemorySpace = host.device.default_memory_space
        try:
            sources = self._values.arguments(environment, values, {}, step)
            part = _Part(sources, [Allocation.new(self._memory, spec, space) for spec in self._specs])
        except UnimplementedError:  # the author's memory has no arrays of such a type: on no device
            return self._fallback(environment, *values)
        outcome: _Outcome = meeting.together(environment, group, part, self._enqueue)
        try:
            for fence, source, target in zip(outcome.fences, part.sources, part.targets, strict=False):
                if fence is not None:
                    work = host.work.add(fence, step, self._source)
                    source.used_by(work)
                    target.busy_until(work)
                    if self._values.waits:
                        work.result()
        finally:
            host.work.join(outcome.joint)
        if len(outcome.fences) < len(part.targets):
            self.device = INTERPRETER
            return self._fallback(environment, *values)
        return one_or_all(part.targets)

    def _enqueue(self, parts: Sequence[_Part]) -> Sequence[_Outcome]:
        """Call the author's method for each operand, for all devices at once."""
        method = getattr(self._memory, self._collective.method)
        taken: list[Sequence[Any]] = []
        for number in range(len(self._specs)):
            sources = [part.sources[number].handle for part in parts]
            targets = [part.targets[number].handle for part in parts]
            with enqueuing:
                fences = method(sources, targets, parts[0].sources[number].spec, **self._collective.facts)
            if fences is NotImplemented:
                break
            taken.append([None] * len(parts) if fences is None else checked_fences(fences, self._source, len(parts)))
        joint = Joint(len(parts))
        return [_Outcome([fences[place] for fences in taken], joint) for place in range(len(parts))]


def _has(memory: Memory, method: str) -> bool:
    return getattr(type(memory), method) is not getattr(Memory, method)
