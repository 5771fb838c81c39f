"""The target of the ``torch_xla.plugins`` entry points of other packages: for each name the plugin of that name.

A package with a device called ``gadget`` has the entry point ``GADGET = "pjrt.frameworks.torch_xla_plugin:gadget"``,
and its users set ``PJRT_DYNAMIC_PLUGINS=1 PJRT_DEVICE=GADGET``.
"""

from __future__ import annotations

import functools
from typing import Any


def __getattr__(name: str) -> Any:
    """Return a function that looks the plugin of a name up and makes its ``DevicePlugin``."""
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pjrt.frameworks.torch_xla import device_plugin

    return functools.partial(device_plugin, name)
