"""The plugin of the ``reference`` device: makes its clients and topologies."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from pjrt.abi.generated.version import API_VERSION
from pjrt.api.checks import check_num_devices, check_option_names, expect_int
from pjrt.api.device import Attributes
from pjrt.api.errors import InvalidArgumentError
from pjrt.api.plugin import Plugin

if TYPE_CHECKING:
    from pjrt.devices.reference.client import ReferenceClient
    from pjrt.host.device import HostTopology


class ReferencePlugin(Plugin):
    """The plugin of the interpreter of StableHLO on numpy."""

    @property
    def name(self) -> str:
        return "reference"

    @property
    def api_version(self) -> tuple[int, int]:
        return API_VERSION

    @property
    def attributes(self) -> Attributes:
        from pjrt.devices.reference.client import plugin_attributes

        return plugin_attributes()

    def client(self, /, **options: Any) -> ReferenceClient:
        """Make a client.

        Args:
            options: those of ``ReferenceClient``.
        """
        from pjrt.devices.reference.client import ReferenceClient

        names = list(inspect.signature(ReferenceClient.__init__).parameters)[1:]
        check_option_names(self.name, options, names)
        check_num_devices(self.name, options)
        for name in ("debug_nans", "optimize", "fold", "vet"):
            if not isinstance(options.get(name, False), bool | None):
                raise InvalidArgumentError(
                    f"expected True or False as the option {name} of the device 'reference', found {options[name]!r}"
                )
        limit = options.get("memory_limit")
        if limit is not None and expect_int(limit, "memory_limit of the device 'reference' as a number of bytes") < 1:
            raise InvalidArgumentError(f"expected a memory_limit of at least 1 byte, found {limit}")
        if not (options.get("trace") is None or callable(options["trace"])):
            raise InvalidArgumentError(
                f"expected a function as the option trace of the device 'reference', found {options['trace']!r}"
            )
        return ReferenceClient(**options)

    def topology(self, name: str = "", /, **options: Any) -> HostTopology:
        """Return a number of virtual devices.

        Args:
            name: the number of devices, such as ``8``; optional.
            options: those of ``client``; ``num_devices`` is another way to give the number.
        """
        from pjrt.host.device import named_topology

        return named_topology(self.name, self.client, name, options)

    def deserialize_topology(self, serialized: bytes) -> HostTopology:
        return self.topology().deserialize(serialized)
