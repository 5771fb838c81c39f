"""The plugin of the ``iree`` device: makes its clients and topologies."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from pjrt.abi.generated.version import API_VERSION
from pjrt.api.checks import check_num_devices, check_option_names
from pjrt.api.device import Attributes
from pjrt.api.plugin import Plugin

if TYPE_CHECKING:
    from pjrt.devices.iree.client import IreeClient
    from pjrt.host.device import HostTopology


class IreePlugin(Plugin):
    """The plugin of IREE's compiler and runtime."""

    @property
    def name(self) -> str:
        return "iree"

    @property
    def api_version(self) -> tuple[int, int]:
        return API_VERSION

    @property
    def attributes(self) -> Attributes:
        from pjrt.devices.iree import packages
        from pjrt.devices.stablehlo_client import stablehlo_versions

        packages.check()  # before jaxlib, so that the report of a plugin that cannot be used names the right package
        return {"xla_version": 2, **stablehlo_versions()}

    def client(self, /, **options: Any) -> IreeClient:
        """Make a client.

        Args:
            options: those of ``IreeClient``.
        """
        client = self._make(options)
        client.open()
        return client

    def topology(self, name: str = "", /, **options: Any) -> HostTopology:
        """Return a number of described devices, to compile for; their driver and hardware need not exist.

        Args:
            name: the number of devices, such as ``8``; optional.
            options: those of ``client``; ``num_devices`` is another way to give the number.
        """
        from pjrt.host.device import named_topology

        return named_topology(self.name, lambda **each: self._make(each), name, options)

    def deserialize_topology(self, serialized: bytes) -> HostTopology:
        return self.topology().deserialize(serialized)

    def _make(self, options: dict[str, Any]) -> IreeClient:
        from pjrt.devices.iree.client import IreeClient

        names = list(inspect.signature(IreeClient.__init__).parameters)[1:]
        check_option_names(self.name, options, names)
        check_num_devices(self.name, options)
        return IreeClient(**options)
