"""Functions that make clients for a framework, and how they are called."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any

from pjrt.api.checks import expect_int
from pjrt.api.client import Client
from pjrt.api.device import NamedValue
from pjrt.api.errors import InternalError
from pjrt.api.key_value_store import KeyValueStore, job_of_framework
from pjrt.api.topology import TopologyDescription
from pjrt.capi.environment import no_layers

ClientFactory = Callable[..., Client]
"""A function that makes a client from create options, given by keyword.

It may have the parameters ``key_value_store`` (the framework's store, or ``None``), ``node_id``, ``num_nodes`` and
``partition_index`` (the place of the process in the framework's job), and ``premapped_buffer_size``, an option of TPUs.
It gets only those of these five that it names.

The function may have the attribute ``named_topology``, a function of a topology's name and of options by keyword, which
returns the topology. Then no client is made for a topology with a name.
"""

PLACE_OPTIONS = frozenset({"node_id", "num_nodes", "partition_index"})
"""The options that place a process in a job. JAX gives them to every plugin, also to plugins that do not know them."""

_OF_TPUS = frozenset({"premapped_buffer_size"})
"""The options of a TPU's client, which TorchTPU gives to every plugin."""

_log = logging.getLogger("pjrt")


def takes(factory: ClientFactory, option: str) -> bool:
    """Return whether a function takes an option: by a parameter of that name, or by ``**options``."""
    parameters = inspect.signature(factory).parameters
    return option in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def make_client(
    factory: ClientFactory, options: Mapping[str, NamedValue], store: KeyValueStore | None, whose: str
) -> Client:
    """Return a new client for a framework.

    Args:
        factory: the function.
        options: the framework's create options, with the place of the process in its job.
        store: the job's store; ``None`` where the framework has none.
        whose: what the function belongs to, for an error.

    Raises:
        InternalError: the function returns something else.
    """
    parameters = inspect.signature(factory).parameters
    ignored = (PLACE_OPTIONS | _OF_TPUS) - set(parameters)
    arguments: dict[str, Any] = {name: value for name, value in options.items() if name not in ignored}
    if unknown := sorted(_OF_TPUS & ignored & set(options)):
        _log.info("%s ignores the framework's options %s, which are for TPUs", whose, ", ".join(unknown))
    if "key_value_store" in parameters:
        arguments["key_value_store"] = store
    place = [options.get(name) for name in ("node_id", "num_nodes")]
    index, count = (None if number is None else expect_int(number, "the place in the job") for number in place)
    # The layers stand before the plugin of the framework: the client behind it has none of its own.
    with no_layers(), job_of_framework(store, index, count):
        client = factory(**arguments)
    if not isinstance(client, Client):
        raise InternalError(f"the factory of {whose} must return a pjrt.Client, found {type(client).__name__}")
    return client


def named_topology(factory: ClientFactory, name: str, options: Mapping[str, NamedValue]) -> TopologyDescription | None:
    """Return the topology of a name from a function's ``named_topology``; ``None`` where it has none."""
    function: Callable[..., TopologyDescription] | None = getattr(factory, "named_topology", None)
    if function is None:
        return None
    with no_layers():
        return function(name, **options)
