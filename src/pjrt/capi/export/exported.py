"""Exporting: from a function that makes clients to a plugin that frameworks load."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pjrt.api.attributes import Attributes, NamedValue
from pjrt.api.client import Client
from pjrt.api.errors import InternalError, InvalidArgumentError
from pjrt.api.key_value_store import KeyValueStore
from pjrt.api.topology import TopologyDescription
from pjrt.capi.export._table import Table

ClientFactory = Callable[..., Client]
"""Makes a client from create options; may also take ``key_value_store``, which then is the framework's store or ``None``."""


class Exported:
    """A plugin that is made of Python: what ``export`` gives.

    Its table lives as long as the process, as the C API says of tables; clients are made only when a framework asks.
    """

    def __init__(self, factory: ClientFactory, name: str, attributes: Mapping[str, NamedValue]) -> None:
        if not callable(factory):
            raise InvalidArgumentError(f"expected a function that makes clients, found {type(factory).__name__}")
        if not name:
            raise InvalidArgumentError("an exported plugin needs a name, such as 'mydevice'; found an empty one")
        self._factory = factory
        self._name = name
        self._attributes = dict(attributes)
        self._table = Table(self)

    @property
    def name(self) -> str:
        """The name it is exported under."""
        return self._name

    @property
    def attributes(self) -> Attributes:
        """What the plugin says of itself (``PJRT_Plugin_Attributes``)."""
        return self._attributes

    @property
    def capsule(self) -> object:
        """The ``PJRT_Api`` as a capsule named ``pjrt_c_api``, as JAX's ``register_plugin(c_api=…)`` takes it."""
        return self._table.capsule()

    @property
    def address(self) -> int:
        """The address of the ``PJRT_Api``."""
        return self._table.address

    def topology(self, name: str, **options: Any) -> TopologyDescription:
        """The topology that the factory's client describes; a name is passed on as the option ``topology``."""
        if name:
            options["topology"] = name
        with self._make(options, None) as client:
            return client.topology

    def deserialize_topology(self, serialized: bytes) -> TopologyDescription:
        """Not offered: a topology is made by name and options."""
        from pjrt.api.errors import unimplemented

        raise unimplemented(self._name, "TopologyDescription.deserialize")

    def client_for_framework(self, options: Mapping[str, NamedValue], store: KeyValueStore | None) -> Client:
        """A client for a framework that asks for one."""
        return self._make(options, store)

    def _make(self, options: Mapping[str, NamedValue], store: KeyValueStore | None) -> Client:
        given: dict[str, Any] = dict(options)
        if "key_value_store" in inspect.signature(self._factory).parameters:
            given["key_value_store"] = store
        client = self._factory(**given)
        if not isinstance(client, Client):
            raise InternalError(
                f"the factory of the exported plugin '{self._name}' must return a pjrt.Client, found {type(client).__name__}"
            )
        return client

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}>"


def export(factory: ClientFactory, *, name: str, attributes: Mapping[str, NamedValue] | None = None) -> Exported:
    """Shows clients of this package to the world as a PJRT plugin.

    Args:
        factory: called with the framework's create options as keyword arguments, each time it wants a client.
        name: the plugin's name.
        attributes: what the plugin says of itself, besides the versions of StableHLO that are filled in where they are
            not given: frameworks send programs at ``stablehlo_current_version``.

    Returns:
        The exported plugin: ``capsule`` for JAX, ``write_library`` for whoever loads a path.
    """
    return Exported(factory, name, {**_default_attributes(), **(attributes or {})})


def _default_attributes() -> dict[str, NamedValue]:
    from pjrt import stablehlo

    found: dict[str, NamedValue] = {"xla_version": 2}
    current, minimum = stablehlo.current_version(), stablehlo.minimum_version()
    found["stablehlo_current_version"] = (current.major, current.minor, current.patch)
    found["stablehlo_minimum_version"] = (minimum.major, minimum.minor, minimum.patch)
    return found
