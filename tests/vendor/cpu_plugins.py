"""XLA's plugin for CPUs in wheels of the package index: they run on any machine."""

from __future__ import annotations

import importlib.util
from pathlib import Path

WHEELS = {
    "lammps-jax-pjrt-cpu": ("lammps_jax_pjrt_cpu", "pjrt_c_api_cpu_plugin.so"),
    "fastatomstruct-xla-cpu": ("fastatomstruct_xla_cpu", "libpjrt_cpu.so"),
    "xla-cpu-pjrt": ("xla_plugins.xla_cpu_pjrt", "xla_cpu_pjrt.so"),
}
"""The package and the library of each wheel. CI installs the first; CONTRIBUTING.md has the command for the others."""


def library(wheel: str) -> Path | None:
    """Return the library of a wheel; None if it is not installed."""
    package, name = WHEELS[wheel]
    try:
        found = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        return None
    places = [] if found is None else list(found.submodule_search_locations or ())
    return Path(places[0]) / name if places else None


def lammps() -> Path:
    """Return the library of XLA's plugin of API 0.115."""
    found = library("lammps-jax-pjrt-cpu")
    assert found is not None, "pip install --no-deps lammps-jax-pjrt-cpu==0.11.2"
    return found


INSTALLED = ("lammps-jax-pjrt-cpu", *(name for name in list(WHEELS)[1:] if library(name)))
"""The wheels to test: the first, and those of the others that are installed."""
