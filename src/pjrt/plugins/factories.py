"""A function for each plugin that makes its clients: the library of an exported plugin imports it.

``pjrt export cpu`` writes a library for the place ``pjrt.plugins.factories:cpu``.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pjrt.api.client import Client
from pjrt.api.errors import FailedPreconditionError, NotFoundError
from pjrt.api.key_value_store import KeyValueStore
from pjrt.plugins import registry
from pjrt.plugins.declaration import Declaration, ProcessOptions

_log = logging.getLogger("pjrt")


def factory(name: str) -> Callable[..., Client]:
    """Return the function that makes the clients of a plugin.

    Args:
        name: the plugin's name, the path of its library, or ``FILE.py:ATTRIBUTE``.

    Raises:
        NotFoundError: there is no such plugin.
        FailedPreconditionError: the only plugin of that name is a library that exports the plugin of that name.
    """
    declaration = _exported(name)
    is_library = declaration.library is not None

    def make(
        key_value_store: KeyValueStore | None = None,
        node_id: int | None = None,
        num_nodes: int | None = None,
        partition_index: int | None = None,
        least_devices: int | None = None,
        **options: Any,
    ) -> Client:
        place = {"node_id": node_id, "num_nodes": num_nodes, "partition_index": partition_index}
        known = {name: value for name, value in place.items() if value is not None}
        options |= _place_options(known, declaration.processes, is_library=is_library)
        if is_library and key_value_store is not None:
            options["key_value_store"] = key_value_store
        count = least_devices or 0
        if not count or registry.NUM_DEVICES in {**registry.default_options(declaration), **options}:
            return registry.client_of(declaration, **options)
        client = registry.client_with_devices(declaration, count, options)
        if len(client.addressable_devices) < count:
            _log.warning(
                "jax_num_cpu_devices or XLA_FLAGS asks for %d CPU devices; the device %r has %d and cannot make more",
                count, declaration.name, len(client.addressable_devices),
            )  # fmt: skip
        return client

    # The device may have no option for the name of a topology, and a client would need the devices.
    make.named_topology = functools.partial(registry.topology_of, declaration)  # type: ignore[attr-defined]
    make.__module__, make.__qualname__, make.__name__ = __name__, name, name
    return make


LEAST_DEVICES = "least_devices"
"""The option of these functions for the number of devices that a client shall have at least, if its device can."""


def _place_options(place: Mapping[str, int], names: ProcessOptions | None, *, is_library: bool) -> dict[str, Any]:
    """Return the place of the process in the job as options of a client.

    ``jax.distributed`` gives it under the option names of XLA's GPU clients; the device's declaration may name its own.
    A device in Python that declares none does not get the place: each of its processes knows its own devices only.
    """
    if names is None:
        return dict(place) if is_library else {}
    own_names = {"node_id": names.index, "num_nodes": names.total}
    return {own_names.get(name) or name: value for name, value in place.items() if is_library or own_names.get(name)}


def _exported(name: str) -> Declaration:
    """Return the plugin that an exported library of a name stands for.

    A framework's user may give the library the name of its own device, which then leads back to the library:
    ``PJRT_NAMES_AND_LIBRARY_PATHS=reference:libreference.so``. The device is the one that the library took the name of.
    """
    declaration = registry.declaration(name)
    for plugin in (declaration, *declaration.shadowed):
        if plugin.library is None or not _exports(plugin.library, name):
            return plugin
    raise FailedPreconditionError(
        f"the library {str(declaration.library)!r} exports the plugin {name!r}, and is itself the only plugin of that "
        f"name; give it another name, such as my_{name}"
    )


def _exports(library: Path, name: str) -> bool:
    from pjrt.native.library import device_of  # here, because a built-in device does without the C API

    return device_of(library) == f"{__name__}:{name}"


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Callable[..., Client]:
        """Return the function of the plugin with this name; ``NAME?OPTIONS`` is quoted, with options of its clients."""
        name, _, options = name.partition("?")
        try:
            if options:
                return functools.partial(factory(unquote(name)), **json.loads(unquote(options)))
            return factory(name)
        except NotFoundError as error:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}: {error.message}") from None
