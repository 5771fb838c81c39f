"""Names of the devices that a benchmark or a comparison measures side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

import pjrt.ifrt
from pjrt.api.checks import unexpected
from pjrt.api.client import Client
from pjrt.plugins import registry

Device: TypeAlias = str | Client | pjrt.ifrt.Client | None
"""The name of a device, as of ``pjrt.client``, or a client; None is the default device."""


def named_devices(devices: Sequence[Device]) -> list[tuple[str, str | Client | pjrt.ifrt.Client]]:
    """Return each device with a name that no other has: ``cpu``, then ``cpu (2)``.

    Raises:
        InvalidArgumentError: the devices are not a list, but one name or client.
        NotFoundError: there is no default device.
    """
    if isinstance(devices, str | Client | pjrt.ifrt.Client):
        raise unexpected(devices, "a list of devices such as ['cpu']")
    count: Counter[str] = Counter()
    named: list[tuple[str, str | Client | pjrt.ifrt.Client]] = []
    for each in devices:
        device = registry.default() if each is None else each
        name = device if isinstance(device, str) else device.platform_name
        count[name] += 1
        named.append((name if count[name] == 1 else f"{name} ({count[name]})", device))
    return named
