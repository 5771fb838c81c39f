"""Device runs: a program on one device of its device assignment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pjrt.api.buffer import Buffer
from pjrt.api.compile_options import DeviceAssignment
from pjrt.api.device import Device
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, NotFoundError
from pjrt.api.shape_spec import ShapeSpec, TiledLayout
from pjrt.host.compiled import Compiled
from pjrt.host.device import HostDevice
from pjrt.host.device_memory.allocation import Allocation
from pjrt.host.memory_space import HostMemorySpace
from pjrt.host.storage import Storage
from pjrt.host_memory.array import order_and_layout

if TYPE_CHECKING:
    from pjrt.host.execution import Execution

Output = tuple[HostMemorySpace, tuple[int, ...], ElementType, TiledLayout | None]
"""The memory space, shape, element type and layout of an output; the layout is ``None`` if it is row-major."""


class DeviceRun(NamedTuple):
    """A program on one device: what is the same in each execution there, worked out once.

    Attributes:
        device: the device.
        replica: the replica that it runs.
        partition: the partition of the replica.
        spaces: the memory of each output; the last one serves for all further outputs.
        outputs: the outputs; ``None`` if the program does not declare them.
        sizes: the bytes of each declared output.
    """

    device: HostDevice
    replica: int
    partition: int
    spaces: tuple[HostMemorySpace, ...]
    outputs: tuple[Output, ...] | None
    sizes: tuple[int, ...]

    @staticmethod
    def of(compiled: Compiled, device: HostDevice, replica: int = 0, partition: int = 0) -> DeviceRun:
        """Return the run of a program on a device.

        Raises:
            InvalidArgumentError: the device has no memory of a kind that the program declares.
        """
        try:
            for kind in compiled.parameter_memory_kinds or ():
                _space(device, kind)
            spaces = tuple(_space(device, kind) for kind in compiled.output_memory_kinds or (None,))
        except NotFoundError as error:
            raise InvalidArgumentError(f"the program asks for memory that is not there: {error.message}") from None
        specs = compiled.outputs
        outputs = None if specs is None else _outputs(spaces, specs)
        last = len(spaces) - 1
        sizes = tuple(spaces[min(n, last)].size_of(spec) for n, spec in enumerate(specs or ()))
        return DeviceRun(device, replica, partition, spaces, outputs, sizes)

    def buffers(self, execution: Execution) -> list[Buffer]:
        """Return the output buffers of an execution; wait for it if the program does not declare its outputs.

        Raises:
            PjrtError: the execution was waited for and has failed.
        """
        outputs = self.outputs
        if outputs is None:
            execution.definition.result()
            outputs = _outputs(self.spaces, [_spec_of(storage) for storage in execution.outputs or ()])
        device = self.device
        buffer_type = device.client.buffer_type
        return [
            buffer_type(device, space, shape, element_type, storage, layout)
            for (space, shape, element_type, layout), storage in zip(outputs, execution.outputs or (), strict=True)
        ]


def _spec_of(storage: Storage) -> ShapeSpec:
    """Return the type of an output that the program did not declare."""
    value: Any = storage.array
    return value.spec if isinstance(value, Allocation) else ShapeSpec.of(value)


def _space(device: HostDevice, kind: str | None) -> HostMemorySpace:
    return device.default_memory_space if kind is None else device.memory_space(kind)


def _outputs(spaces: tuple[HostMemorySpace, ...], specs: Sequence[ShapeSpec]) -> tuple[Output, ...]:
    last = len(spaces) - 1
    return tuple(
        (
            spaces[min(n, last)],
            spec.shape,
            spec.element_type,
            order_and_layout(spec.layout, spec.shape, spec.element_type)[1],
        )
        for n, spec in enumerate(specs)
    )


def device_runs(
    compiled: Compiled, assignment: DeviceAssignment, devices: Sequence[HostDevice]
) -> Mapping[Device, DeviceRun]:
    """Return the runs on these devices, in the order of the assignment."""
    by_id = {device.id: device for device in devices}
    return {
        by_id[device_id]: DeviceRun.of(compiled, by_id[device_id], replica, partition)
        for replica, row in enumerate(assignment.device_ids)
        for partition, device_id in enumerate(row)
        if device_id in by_id
    }
