"""The devices in the box: for each name the place of its plugin class, which is imported when it is first asked for."""

from __future__ import annotations

import functools
import importlib

from pjrt.api.plugin import Plugin

PLACES = {
    "cpu": "pjrt.devices.xla:XlaPlugin",
    "reference": "pjrt.devices.reference.plugin:ReferencePlugin",
}


@functools.cache
def plugin(name: str) -> Plugin:
    """The plugin of a device in the box; one object a name."""
    module, _, attribute = PLACES[name].partition(":")
    made: Plugin = getattr(importlib.import_module(module), attribute)()
    return made
