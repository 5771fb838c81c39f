"""Launchers: the ways to start the workers of a cluster."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from pjrt.api.errors import InvalidArgumentError
from pjrt.clusters.launchers.launcher import Launcher, WorkerHandle, WorkerOutput, WorkerStart

__all__ = ["LAUNCHERS", "Launcher", "WorkerHandle", "WorkerOutput", "WorkerStart", "make_launcher"]

LAUNCHERS: Mapping[str, str] = {
    "local": "pjrt.clusters.launchers.launcher:LocalLauncher",
    "ssh": "pjrt.clusters.launchers.launcher:SshLauncher",
    "ray": "pjrt.clusters.launchers.ray:RayLauncher",
    "external": "pjrt.clusters.launchers.launcher:ExternalLauncher",
}
"""The class of each launcher by its name."""


def make_launcher(name: str, hosts: int | Sequence[str], options: dict[str, Any]) -> Launcher:
    """Return the launcher with a name.

    Args:
        name: the name.
        hosts: the number of workers, or the host of each.
        options: the options of the launcher and of others; those of the launcher are removed.

    Raises:
        InvalidArgumentError: there is no such launcher, or a host or an option is wrong.
        FailedPreconditionError: a package that the launcher needs is not installed.
    """
    place = LAUNCHERS.get(name)
    if place is None:
        raise InvalidArgumentError(
            f"expected one of the launchers {', '.join(LAUNCHERS)}, or a Launcher of your own, found {name!r}"
        )
    module, _, attribute = place.partition(":")
    launcher: type[Launcher] = getattr(importlib.import_module(module), attribute)
    own = {option: options.pop(option) for option in launcher.option_names if option in options}
    return launcher(hosts, own)
