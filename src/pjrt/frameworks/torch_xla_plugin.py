"""What PyTorch/XLA finds through the ``torch_xla.plugins`` entry points: for each name the plugin of that name.

A package with a device called ``gadget`` has the entry point ``GADGET = "pjrt.frameworks.torch_xla_plugin:gadget"``,
and its users say ``PJRT_DYNAMIC_PLUGINS=1 PJRT_DEVICE=GADGET``.
"""

from __future__ import annotations

import functools
from typing import Any


def __getattr__(name: str) -> Any:
    """What makes the ``DevicePlugin`` of the plugin of a name; it is looked for when it is called."""
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pjrt.frameworks.torch_xla import device_plugin

    return functools.partial(device_plugin, name)
