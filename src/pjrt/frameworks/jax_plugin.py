"""What JAX finds through the ``jax_plugins`` entry points: installed devices that are meant for it, and others where
the environment asks for them.

A plugin is meant for JAX if it has a table ``frameworks.jax`` in its manifest or in the configuration; it may be empty.
``PJRT_JAX_DEVICES`` names further ones, separated by commas: names that ``pjrt.client`` knows, or paths of plugins'
libraries. What is registered does not become JAX's default unless its table says so, and what cannot be used hurts
nobody else: it is left out with a warning.
"""

from __future__ import annotations

import logging
import os

VARIABLE = "PJRT_JAX_DEVICES"

_log = logging.getLogger("pjrt")


def initialize() -> None:
    """Registers the devices; JAX calls it when it looks for plugins."""
    from pjrt.plugins import registry

    named = [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]
    meant = [
        plugin.name
        for plugin in registry.declarations()
        if "jax" in plugin.frameworks and not plugin.disabled and plugin.has_hardware
    ]
    for name in dict.fromkeys((*named, *meant)):
        _register(name, quietly=name not in named)


def _register(name: str, *, quietly: bool) -> None:
    from pjrt.api.errors import PjrtError
    from pjrt.frameworks import jax

    if jax.is_registered(name):
        return
    try:
        platform = jax.register(name)
    except PjrtError as error:
        _log.warning("the device %r is not there for JAX: %s", name, error.message)
        return
    if quietly:
        jax.let_fail(platform)
