"""The plugin under test, as checks see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pjrt.capi import raw
from pjrt.conformance.plugin.executions import Executions
from pjrt.conformance.plugin.samples import Samples


class Subject(Executions):
    """The plugin under test in the process of one check.

    ``plugin`` makes calls without any rule; ``call`` makes calls that must succeed, and ``fails`` such that must fail.
    The client, its devices and its memories are made when a check first asks for them. What a check leaves goes with
    its process.

    Args:
        plugin: the plugin.
        options: the options of clients that the user gave.
        samples: the programs.
        name: the plugin's name, the path of its library, or ``FILE.py:FUNCTION``.

    Attributes:
        name: by which another process can load the plugin.
    """

    def __init__(self, plugin: raw.Plugin, options: Mapping[str, Any], samples: Samples, name: str = "") -> None:
        super().__init__(plugin, options, samples)
        self.name = name
