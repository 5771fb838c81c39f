"""The client of the plugin under test, and its devices and memories."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from pjrt.capi import raw
from pjrt.conformance.plugin.calls import Calls
from pjrt.conformance.plugin.outcome import Failed, Unsupported


class Clients(Calls):
    """Clients of the plugin, made when a check first asks for them.

    Args:
        plugin: the plugin.
        options: the options of clients that the user gave.
    """

    def __init__(self, plugin: raw.Plugin, options: Mapping[str, Any]) -> None:
        super().__init__(plugin)
        self.options = dict(options)

    @functools.cached_property
    def client(self) -> int:
        """The client with the options of the user.

        Raises:
            Unsupported: none can be made, as where the plugin's hardware is missing.
        """
        return self.new_client()

    @functools.cached_property
    def has_client(self) -> bool:
        """Whether a client can be made: not where the plugin's hardware is missing."""
        try:
            return bool(self.client)
        except Unsupported:
            return False

    def new_client(self, **options: Any) -> int:
        """Return a further client, with the options of the user and these. The check destroys it, or leaves it.

        Raises:
            Unsupported: none can be made with these options.
        """
        values = [raw.named_value(name, value) for name, value in {**self.options, **options}.items()]
        result = self.attempt("PJRT_Client_Create", create_options=values)
        if result.error is not None:
            what = f"a client with {', '.join(options)}" if options else "a client"
            raise Unsupported(f"{what} cannot be made: {result.error}")
        return int(result.client)

    @functools.cached_property
    def devices(self) -> list[int]:
        """The addressable devices of the client, of which there is at least one."""
        devices = self.call("PJRT_Client_AddressableDevices", client=self.client).addressable_devices
        if not devices:
            raise Failed("a client with an addressable device", "none")
        return list(devices)

    @property
    def device(self) -> int:
        """The first addressable device of the client."""
        return self.devices[0]

    def several_devices(self, count: int) -> list[int]:
        """Return some addressable devices.

        Raises:
            Unsupported: the client has fewer.
        """
        if len(self.devices) < count:
            raise Unsupported(f"{count} addressable devices; the client has {len(self.devices)}")
        return self.devices[:count]

    @functools.cached_property
    def memory(self) -> int:
        """The default memory of the first device."""
        self.require("PJRT_Device_DefaultMemory")
        return int(self.call("PJRT_Device_DefaultMemory", device=self.device).memory or 0)

    @functools.cached_property
    def memories(self) -> dict[str, int]:
        """The memories of the first device by their kinds, such as ``device`` and ``pinned_host``."""
        self.require("PJRT_Device_AddressableMemories")
        listed = self.call("PJRT_Device_AddressableMemories", device=self.device).memories or []
        return {self.call("PJRT_Memory_Kind", memory=each).kind.decode(): each for each in reversed(listed)}

    def description(self, device: int) -> int:
        """Return the description of a device."""
        return int(self.call("PJRT_Device_GetDescription", device=device).device_description)
