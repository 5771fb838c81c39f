"""Topologies of a host platform by name: a number of devices, without a client that stays open."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pjrt.api.client import Client
from pjrt.api.errors import InvalidArgumentError, unimplemented
from pjrt.host.client import HostClient
from pjrt.host.topology import HostTopology

_MOST_DIGITS = 9
"""Python refuses to read a number of thousands of digits; nobody has as many devices as a number of ten."""


def named_topology(device: str, make: Callable[..., Client], name: str, options: Mapping[str, Any]) -> HostTopology:
    """The topology of a client, which is made for it and closed: describing devices and compiling take no open one.

    Args:
        device: the device's name, for messages.
        make: makes a client of the options.
        name: the number of devices, such as ``8``; that of a client without the option if empty.
        options: those of the client; ``num_devices`` may stand there instead of in the name.

    Raises:
        InvalidArgumentError: the name is no number, or the options say the number too.
        UnimplementedError: the clients are no host clients, or have another number of devices than they are asked for.
    """
    if name:
        if not name.isdecimal() or len(name) > _MOST_DIGITS or "num_devices" in options:
            raise InvalidArgumentError(
                f"a topology of the device '{device}' is named by the number of its devices, such as '8', or has the "
                f"option num_devices instead; found the name {name!r} and the options {dict(options)}"
            )
        options = {**options, "num_devices": int(name)}
    with make(**options) as client:
        if not isinstance(client, HostClient):
            raise unimplemented(device, "Plugin.topology")
        there = len(client.addressable_devices)
        if name and there != int(name):
            raise unimplemented(device, f"the topology {name!r}", f"it always has {there} devices")
        return client.topology
