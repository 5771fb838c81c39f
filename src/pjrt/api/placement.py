"""Placement: the device and memory space of a new buffer. For implementations of clients; callers do not need it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pjrt.api.checks import expect
from pjrt.api.device import Device
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError
from pjrt.api.memory_space import MemorySpace

if TYPE_CHECKING:
    from pjrt.api.client import Client


def choose_place(client: Client, device: Device | None, memory_space: MemorySpace | None) -> tuple[Device, MemorySpace]:
    """Return the device and memory space for a buffer whose caller named either, both or none of them.

    Raises:
        InvalidArgumentError: the two do not belong together or to this client, or this process cannot address them.
        FailedPreconditionError: neither is named, and this process can address no device of the client.
    """
    if memory_space is not None:
        expect(memory_space, MemorySpace, "a memory space of this client, one of client.memory_spaces")
    if device is None:
        if memory_space is None:
            device = default_device(client)
        else:
            device = next((d for d in memory_space.devices if d.is_addressable), None)
            if device is None:
                raise InvalidArgumentError(f"no device of this process can address the memory space {memory_space}")
    expect(device, Device, "a device of this client, one of client.addressable_devices")
    if device.client is not client:
        raise InvalidArgumentError(
            f"{device} belongs to another client ({device.client!r}); use one of client.addressable_devices"
        )
    if not device.is_addressable:
        raise InvalidArgumentError(
            f"{device} belongs to process {device.process_index}; use one of client.addressable_devices"
        )
    if memory_space is None:
        return device, device.default_memory_space
    if memory_space not in device.memory_spaces:
        spaces = ", ".join(str(space) for space in device.memory_spaces)
        raise InvalidArgumentError(f"{device} cannot address the memory space {memory_space}; it has {spaces}")
    return device, memory_space


def default_device(client: Client) -> Device:
    """Return the device that is meant where a caller names none: the client's first addressable one.

    Raises:
        FailedPreconditionError: This process can address no device of the client.
    """
    devices = client.addressable_devices
    if not devices:
        raise FailedPreconditionError(
            f"this process can address none of the {len(client.devices)} devices of '{client.platform_name}', so there "
            "is nowhere to put a buffer; use a process that has devices, one of the process_index of client.devices"
        )
    return devices[0]
