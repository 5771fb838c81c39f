"""The placement of a program's parameters and results: their type on each device, and the array over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pjrt.api.layout import Layout, TiledLayout
from pjrt.api.shape_spec import ShapeSpec
from pjrt.ifrt.concrete_sharding import ConcreteEvenSharding
from pjrt.ifrt.device_list import DeviceList
from pjrt.ifrt.hlo_sharding import HloSharding
from pjrt.ifrt.sharding import Sharding
from pjrt.remote.client.buffer import BufferType
from pjrt.remote.client.program_types import ValueType
from pjrt.remote.protocol.values import sharding_proto

if TYPE_CHECKING:
    from pjrt.remote.client.client import RemoteClient
    from pjrt.remote.client.device import RemoteDevice


@dataclass(slots=True)
class ValuePlacement:
    """One parameter or result of a program on its devices.

    Attributes:
        spec: its type on one device; ``None`` if its shape is known only when the program runs.
        whole: its type in the program; ``None`` as above.
        kind: the kind of memory that it is in.
        layout: its layout.
        types: the type of its buffer on each device of the server. For a parameter, the last one that fitted: comparing
            with it first saves most of the checks of an execution.
        sharding: the array over all devices, as a serialized ``ShardingProto``; empty for one device.
    """

    spec: ShapeSpec | None
    whole: ShapeSpec | None
    kind: str
    layout: TiledLayout | None
    types: list[BufferType | None]
    sharding: bytes


def placements(
    client: RemoteClient,
    values: Sequence[ValueType],
    kinds: Sequence[str],
    layouts: Sequence[Layout] | None,
    devices: Sequence[RemoteDevice],
    num_replicas: int,
) -> list[ValuePlacement]:
    """Return where the values of a program are.

    Args:
        client: the client.
        values: the parameters or the results.
        kinds: the kind of memory of each.
        layouts: the layout of each; ``None`` if they are unknown.
        devices: the devices, one for each partition, and those of the next replica after those of the first; in a job,
            also those of other processes.
        num_replicas: the number of replicas.
    """
    return [
        _placement(client, value, kind, None if layouts is None else layouts[number], devices, num_replicas)
        for number, (value, kind) in enumerate(zip(values, kinds, strict=True))
    ]


def _placement(
    client: RemoteClient,
    value: ValueType,
    kind: str,
    layout: Layout | None,
    devices: Sequence[RemoteDevice],
    num_replicas: int,
) -> ValuePlacement:
    tiled = layout if isinstance(layout, TiledLayout) else None
    sharding = b""
    if len(devices) > 1 and value.whole is not None and value.local is not None:
        sharding = _sharding(value, value.whole, value.local, kind, devices, num_replicas).SerializeToString()
    placement = ValuePlacement(value.local, value.whole, kind, tiled, [], sharding)
    placement.types.extend(_buffer_type(client, placement, device) for device in devices if device.is_addressable)
    return placement


def _buffer_type(client: RemoteClient, placement: ValuePlacement, device: RemoteDevice) -> BufferType | None:
    """Return the type of a value's buffer on a device; ``None`` if its shape is known only when the program runs."""
    spec = placement.spec
    if spec is None:
        return None
    layout = placement.layout or TiledLayout.row_major(len(spec.shape))
    space = device.memory_space(placement.kind)
    return BufferType(client, client.connection, device, space, spec.shape, spec.element_type, layout)  # type: ignore[arg-type]


def _sharding(
    value: ValueType,
    whole: ShapeSpec,
    local: ShapeSpec,
    kind: str,
    devices: Sequence[RemoteDevice],
    num_replicas: int,
) -> Any:
    """Return the sharding that the array of a value has on the server: that of ``pjrt.ifrt.LoadedExecutable``."""
    device_list = DeviceList(devices)
    sharding: Sharding
    if num_replicas == 1 and value.sharding is not None:
        sharding = HloSharding.from_proto(device_list, value.sharding, kind)
    else:  # each replica has data of its own
        sharding = ConcreteEvenSharding(device_list, whole.shape, local.shape, kind)
    return sharding_proto(sharding)
