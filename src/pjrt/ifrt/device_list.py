"""Device lists: devices of one client in a fixed order (``xla::ifrt::DeviceList``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, overload

from pjrt.api.checks import expect_all
from pjrt.api.client import Client
from pjrt.api.device import Device
from pjrt.api.errors import InvalidArgumentError


class DeviceList(Sequence[Device]):
    """Devices of one client, each once, in a fixed order.

    Two lists are equal if they have the same devices in the same order.

    Args:
        devices: the devices; devices of other processes are allowed.

    Attributes:
        ids: the global ids of the devices.
        addressable_devices: the devices that this process can use (``AddressableDeviceList``).

    Raises:
        InvalidArgumentError: the list is empty, has a device twice, or has devices of several clients.
    """

    __slots__ = ("_devices", "_hash", "addressable_devices", "ids")

    def __init__(self, devices: Iterable[Device]) -> None:
        self._devices = tuple(expect_all(devices, Device, "a device of a client"))
        if not self._devices:
            raise InvalidArgumentError("expected at least one device, found an empty list")
        ids = [device.id for device in self._devices]
        if len(set(ids)) != len(ids):
            raise InvalidArgumentError(f"expected each device once, found the ids {ids}")
        others = {id(device.client) for device in self._devices}
        if len(others) > 1:
            raise InvalidArgumentError(f"expected devices of one client, found devices of {len(others)}")
        self.ids = tuple(ids)
        self._hash = hash(self.ids)
        self.addressable_devices = tuple(device for device in self._devices if device.is_addressable)

    @staticmethod
    def of(devices: DeviceList | Iterable[Device]) -> DeviceList:
        """Return the devices as a device list."""
        return devices if isinstance(devices, DeviceList) else DeviceList(devices)

    @property
    def client(self) -> Client:
        """The client of all devices."""
        return self._devices[0].client

    @property
    def is_fully_addressable(self) -> bool:
        """Whether this process can use all of the devices."""
        return len(self.addressable_devices) == len(self._devices)

    def __len__(self) -> int:
        return len(self._devices)

    @overload
    def __getitem__(self, index: int) -> Device: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Device, ...]: ...
    def __getitem__(self, index: Any) -> Any:
        return self._devices[index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeviceList):
            return NotImplemented
        return self is other or self._devices == other._devices

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"DeviceList([{', '.join(map(str, self._devices))}])"
