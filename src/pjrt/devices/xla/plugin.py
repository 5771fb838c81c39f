"""The plugin of the ``cpu`` device: what makes its clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pjrt.api.attributes import Attributes
from pjrt.api.client import check_option_names
from pjrt.api.errors import InvalidArgumentError
from pjrt.api.plugin import Plugin

if TYPE_CHECKING:
    from pjrt.devices.xla.client import XlaClient


class XlaPlugin(Plugin):
    """XLA's CPU compiler and runtime."""

    @property
    def name(self) -> str:
        return "cpu"

    @property
    def api_version(self) -> tuple[int, int]:
        return (0, 114)

    @property
    def attributes(self) -> Attributes:
        return {"xla_version": 2}

    def client(self, **options: Any) -> XlaClient:
        """A new client.

        Args:
            options: ``num_devices``, the number of virtual devices (1 if not said); ``asynchronous``, whether
                executions return before they are done (they do if not said).
        """
        check_option_names(self.name, options, ("num_devices", "asynchronous"))
        count = options.get("num_devices", 1)
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_DEVICES:
            raise InvalidArgumentError(
                f"the option num_devices of the device 'cpu' is a number from 1 to {MOST_DEVICES}, found {count!r}"
            )
        asynchronous = options.get("asynchronous", True)
        if not isinstance(asynchronous, bool):
            raise InvalidArgumentError(
                f"the option asynchronous of the device 'cpu' is True or False, found {asynchronous!r}"
            )
        from pjrt.devices.xla.client import XlaClient

        return XlaClient(count, asynchronous)


MOST_DEVICES = 4096
"""More virtual devices than this are taken for a slip of the pen."""
