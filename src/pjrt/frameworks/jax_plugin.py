"""The target of the ``jax_plugins`` entry points: it registers devices with JAX when JAX looks for plugins.

It registers each installed plugin that has a table ``frameworks.jax``, which may be empty, in its manifest or in the
configuration. ``PJRT_JAX_DEVICES`` names further devices, separated by commas: names for ``pjrt.client``, or paths of
plugins' libraries. A device becomes JAX's default only if its table says ``make_default``. A device that cannot be used
is left out with a warning. ``PJRT_JAX_AS_CPU`` names one device that takes the place of JAX's CPU.
"""

from __future__ import annotations

import logging
import os
import sys

from pjrt.api.printable import printable

VARIABLE = "PJRT_JAX_DEVICES"
AS_CPU = "PJRT_JAX_AS_CPU"

_log = logging.getLogger("pjrt")


def initialize() -> None:
    """Register the devices; JAX calls it when it looks for plugins."""
    from pjrt.plugins import registry

    _warn_of_a_job_without_jax()
    named = [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]
    declared = [
        plugin.name
        for plugin in registry.declarations()
        if "jax" in plugin.frameworks and not plugin.disabled and plugin.has_hardware
    ]
    for name in dict.fromkeys((*named, *declared)):
        _register(name, quietly=name not in named)
    if as_cpu := os.environ.get(AS_CPU, "").strip():
        _take_place_of_cpu(as_cpu)


def _warn_of_a_job_without_jax() -> None:
    """Warn if this process is in a job of ours that JAX knows nothing of: a program would train a model per process."""
    home = sys.modules.get("pjrt.distributed.initialization")
    job = None if home is None else home.current()
    if job is None or job.process_count == 1:
        return
    import jax

    if not jax.distributed.is_initialized():
        _log.warning(
            "process %d of %d is in a job of pjrt.distributed.initialize, and JAX takes no part in it: JAX sees the "
            "devices of this process alone; call jax.distributed.initialize(address, %d, %d) in its place",
            job.process_index,
            job.process_count,
            job.process_count,
            job.process_index,
        )


def _take_place_of_cpu(name: str) -> None:
    from pjrt.api.errors import PjrtError
    from pjrt.frameworks import jax

    if not jax.is_cpu_free():
        return  # the program has registered a device as ``cpu`` itself
    try:
        jax.register(name, platform="cpu")
    except PjrtError as error:  # no program runs on JAX's own CPU then, unnoticed
        jax.refuse_cpu(f"{AS_CPU}={name}: {printable(error.message)}")


def _register(name: str, *, quietly: bool) -> None:
    from pjrt.api.errors import PjrtError
    from pjrt.frameworks import jax

    if jax.is_registered(name):
        return
    try:
        platform = jax.register(name)
    except PjrtError as error:
        _log.warning("the device %r is unavailable to JAX: %s", name, printable(error.message))
        return
    if quietly:
        jax.let_fail(platform)
