"""The client of a model: one with as many devices as its program needs."""

from __future__ import annotations

from typing import Any

import pjrt.ifrt
from pjrt import plugins
from pjrt.api.client import Client
from pjrt.api.errors import InvalidArgumentError
from pjrt.api.partitioning import Partitioning


def client_for(name: str | None, partitioning: Partitioning, options: dict[str, Any]) -> Client:
    """Return a new client of a device with enough devices for a program.

    Args:
        name: as of ``pjrt.client``.
        partitioning: the number of devices of the program.
        options: the options of the client; ``num_devices`` among them is followed.

    Raises:
        InvalidArgumentError: the device has too few devices and cannot make more.
    """
    needed = partitioning.num_devices
    client = plugins.client(name, **options)
    if len(client.devices) >= needed:
        return client
    count, platform = len(client.devices), client.platform_name
    client.close()
    if "num_devices" not in options:
        try:
            client = plugins.client(name, **options, num_devices=needed)
        except (InvalidArgumentError, TypeError):  # a function that makes clients and takes no num_devices
            raise _too_few(platform, partitioning, count) from None
        if len(client.devices) >= needed:
            return client
        client.close()
    raise _too_few(platform, partitioning, count)


def check_devices(client: pjrt.ifrt.Client, partitioning: Partitioning) -> None:
    """Raise an error unless a client has enough devices.

    Raises:
        InvalidArgumentError: the client has too few devices.
    """
    if len(client.devices) < partitioning.num_devices:
        raise _too_few(client.platform_name, partitioning, len(client.devices))


def _too_few(platform: str, partitioning: Partitioning, count: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{partitioning} need {partitioning.num_devices} devices, the client of {platform!r} has {count}; use a client "
        "with more devices, where the device can make more with the option num_devices, or export the model for fewer"
    )
