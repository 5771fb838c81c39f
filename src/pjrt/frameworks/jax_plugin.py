"""The target of the ``jax_plugins`` entry points: it registers devices with JAX when JAX looks for plugins.

It registers each installed plugin that has a table ``frameworks.jax``, which may be empty, in its manifest or in the
configuration. ``PJRT_JAX_DEVICES`` names further devices, separated by commas: names for ``pjrt.client``, or paths of
plugins' libraries. A device becomes JAX's default only if its table says ``make_default``. A device that cannot be used
is left out with a warning.
"""

from __future__ import annotations

import logging
import os

VARIABLE = "PJRT_JAX_DEVICES"

_log = logging.getLogger("pjrt")


def initialize() -> None:
    """Register the devices; JAX calls it when it looks for plugins."""
    from pjrt.plugins import registry

    named = [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]
    declared = [
        plugin.name
        for plugin in registry.declarations()
        if "jax" in plugin.frameworks and not plugin.disabled and plugin.has_hardware
    ]
    for name in dict.fromkeys((*named, *declared)):
        _register(name, quietly=name not in named)


def _register(name: str, *, quietly: bool) -> None:
    from pjrt.api.errors import PjrtError
    from pjrt.frameworks import jax

    if jax.is_registered(name):
        return
    try:
        platform = jax.register(name)
    except PjrtError as error:
        _log.warning("the device %r is unavailable to JAX: %s", name, error.message)
        return
    if quietly:
        jax.let_fail(platform)
