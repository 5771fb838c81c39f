"""Requests about the whole client: its devices and memories, and their defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pjrt.api.attributes import Attributes
from pjrt.api.capability import ATTRIBUTE
from pjrt.api.client import Client
from pjrt.api.device import Device
from pjrt.api.memory_space import MemorySpace
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.values import attributes_proto, element_type_of, layout_spelling
from pjrt.remote.protocol.versions import BATCHES, SAVED_EXECUTABLES
from pjrt.remote.server.requests.table import handles

if TYPE_CHECKING:
    from pjrt.remote.server.session import Session


# Programs may come with shardings of Shardy.
_FOR_JAX: Attributes = {"serialize_with_sdy": True}
# jaxlib's client has no request to save executables, so that JAX must keep none in its compilation cache.
_OF_PROTOCOL: Attributes = {"supports_executable_serialization": False}


@handles("init", counted=False)
def init(session: Session, request: Any) -> Any:
    """Return the devices and memories of the client, and the number of the session."""
    client = session.client
    spaces: dict[int, MemorySpace] = {}
    response = wire.InitResponse(
        session_id=session.id,
        platform_name=session.platform_name,
        platform_version=client.platform_version,
        platform_id=0,
        process_index=client.process_index,
        runtime_type=client.runtime_type,
        client_attributes=attributes_proto(_attributes(client.pjrt_client, session)),
    )
    for device in client.devices:
        spaces |= _add_device(response, device, session.platform_name)
    for space in spaces.values():
        response.memories.add(
            id=space.id,
            memory_space_kind=space.kind,
            kind_id=space.kind_id,
            device_ids=[device.id for device in space.devices],
            debug_string=space.debug_string,
            to_string=str(space),
        )
    return response


@handles("get_default_device_assignment")
def default_device_assignment(session: Session, request: Any) -> Any:
    """Return the devices that a program runs on by default."""
    assignment = session.client.default_device_assignment(request.num_replicas, request.num_partitions)
    return wire.GetDefaultDeviceAssignmentResponse(
        device_assignment=wire.DeviceAssignmentProto(
            replica_count=assignment.num_replicas,
            computation_count=assignment.num_partitions,
            computation_devices=[
                wire.DeviceAssignmentProto_ComputationDevice(replica_device_ids=column)
                for column in zip(*assignment.device_ids, strict=True)
            ],
        )
    )


@handles("get_default_layout")
def default_layout(session: Session, request: Any) -> Any:
    """Return the layout of arrays on a device by default."""
    session.client.lookup_device(request.device_id)
    layout = session.client.pjrt_client.default_layout(element_type_of(request.dtype), tuple(request.dims))
    return wire.GetDefaultLayoutResponse(serialized_pjrt_layout=layout_spelling(layout))


def _attributes(client: Client, session: Session) -> Attributes:
    """Return the attributes of a client, with those that jaxlib's client asks for, and those for clients of this
    package: its declared capabilities, and the protocol's extensions.
    """
    extensions = {SAVED_EXECUTABLES: session.saves_executables}
    if session.takes_batches:
        extensions[BATCHES] = True
    return {**_FOR_JAX, **client.attributes, **_OF_PROTOCOL, ATTRIBUTE: client.capabilities.to_json(), **extensions}


def _add_device(response: Any, device: Device, platform_name: str) -> dict[int, MemorySpace]:
    message = response.all_devices.add(
        id=device.id,
        local_device_id=device.id,
        local_hardware_id=device.local_hardware_id if device.is_addressable else -1,
        platform_name=platform_name,
        device_kind=device.kind,
        debug_string=device.description.debug_string,
        to_string=str(device),
        attributes=attributes_proto(device.attributes),
    )
    response.primary_device_ids.append(device.id)
    if not device.is_addressable:
        return {}
    response.addressable_device_ids.append(device.id)
    message.default_memory_id = device.default_memory_space.id
    message.memory_ids.extend(space.id for space in device.memory_spaces)
    return {space.id: space for space in device.memory_spaces}
