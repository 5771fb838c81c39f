"""Device counts: clients with as many devices as a program needs, where a device can make more than its default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pjrt.api.client import Client
from pjrt.api.errors import InvalidArgumentError
from pjrt.plugins import registry

OPTION = "num_devices"
"""The option by which a device makes more devices, as ``cpu`` has it."""


def client_with_devices(
    name: str | os.PathLike[str] | None, count: int, options: Mapping[str, Any] | None = None
) -> Client:
    """Return a new client of a device with at least a number of devices, or with its default number if it cannot.

    Args:
        name: as of ``pjrt.client``.
        count: the number of devices.
        options: the options of the client. If ``num_devices`` is among them, it is followed.

    Raises:
        PjrtError: as for ``pjrt.client``.
    """
    options = dict(options or {})
    client = registry.client(name, **options)
    if len(client.devices) >= count or OPTION in options:
        return client
    client.close()
    try:
        larger = registry.client(name, **options, **{OPTION: count})
    except (InvalidArgumentError, TypeError):  # TypeError: a function that makes clients and takes no such option
        return registry.client(name, **options)
    return larger
