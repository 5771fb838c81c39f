"""Vendors' plugins: which wheel brings one, where its library lies in it, and what is known of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pjrt import system
from pjrt.api.attributes import NamedValue
from pjrt.plugins.declaration import Declaration, MemoryOptions, ProcessOptions, Sharing
from pjrt.plugins.discovery import libraries, packages


@dataclass(frozen=True)
class Wheel:
    """A wheel with a plugin.

    Attributes:
        distribution: what ``pip install`` calls it.
        library: the plugin's library, as a path from a folder of ``sys.path``.
    """

    distribution: str
    library: str


@dataclass(frozen=True)
class Vendor:
    """What is known of a vendor's plugin.

    Attributes:
        wheels: those that may bring it, the one to recommend first.
        priority: as in ``Declaration``.
        sharing: as in ``Declaration``.
        partition: as in ``Declaration``.
        processes: as in ``Declaration``.
        resident: as in ``Declaration``.
        memory: as in ``Declaration``.
        options: as in ``Declaration``.
        without_hardware: environment variables for where its hardware is not, unless they are set.
    """

    wheels: tuple[Wheel, ...]
    priority: int
    sharing: Sharing = Sharing.MANY
    partition: tuple[str, ...] = ()
    processes: ProcessOptions | None = None
    resident: str = ""
    memory: MemoryOptions | None = None
    options: Mapping[str, NamedValue] = field(default_factory=lambda: MappingProxyType({}))
    without_hardware: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


# What XLA's clients of GPUs are told about memory.
_GPU_MEMORY = MemoryOptions(
    on_demand={"preallocate": False}, preallocated={"preallocate": True}, fraction="memory_fraction"
)

# And about processes that share the GPUs of a machine.
_GPU_PROCESSES = ProcessOptions(devices="visible_devices", index="node_id", total="num_nodes")

_OWN_THREADS = "it and its driver have threads that nothing stops"

# Where a TPU is, libtpu asks the machine's metadata server for its place in the slice. Where none is, that server
# does not exist, and libtpu keeps asking it for minutes. These settings answer in its place: do not ask, you are the
# only worker of a small slice. Topologies and compiling do not depend on which slice they name. Besides, libtpu refuses
# to be loaded by two processes at once, to keep them off one TPU; where there is none, several may well compile.
_WITHOUT_TPU = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
}

VENDORS = {
    "tpu": Vendor(
        (Wheel("libtpu", "libtpu/libtpu.so"),),
        priority=400,
        sharing=Sharing.ONE_PROCESS,
        partition=("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES"),
        resident=_OWN_THREADS,
        without_hardware=_WITHOUT_TPU,
    ),
    "cuda": Vendor(
        (
            Wheel("jax-cuda13-pjrt", "jax_plugins/xla_cuda13/xla_cuda_plugin.so"),
            Wheel("jax-cuda12-pjrt", "jax_plugins/xla_cuda12/xla_cuda_plugin.so"),
        ),
        priority=300,
        partition=("CUDA_VISIBLE_DEVICES",),
        processes=_GPU_PROCESSES,
        resident=_OWN_THREADS,
        memory=_GPU_MEMORY,
    ),
    "rocm": Vendor(
        (
            Wheel("jax-rocm7-pjrt", "jax_plugins/xla_rocm7/xla_rocm_plugin.so"),
            Wheel("jax-rocm60-pjrt", "jax_plugins/xla_rocm60/xla_rocm_plugin.so"),
        ),
        priority=200,
        partition=("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
        processes=_GPU_PROCESSES,
        resident=_OWN_THREADS,
        memory=_GPU_MEMORY,
    ),
    "xpu": Vendor(
        (Wheel("intel-extension-for-openxla", "jax_plugins/intel_extension_for_openxla/pjrt_plugin_xpu.so"),),
        priority=0,  # nothing tells whether its hardware is here
        resident=_OWN_THREADS,
        options={"platform_name": "sycl"},
    ),
}
"""The vendors' plugins by the names that they go by here."""


def found() -> Iterator[Declaration]:
    """The plugins of the wheels that are installed, the best first.

    Nothing is imported for it: the packages around some plugins import a whole framework.
    """
    for name, vendor in VENDORS.items():
        for wheel in vendor.wheels:
            path = _place(wheel)
            if path is not None:
                yield _declared(name, vendor, wheel, path)


def known_library(path: Path) -> Declaration:
    """A library that somebody gives the path of, with what is known of a vendor's plugin of its file name."""
    for name, vendor in VENDORS.items():
        for wheel in vendor.wheels:
            if Path(wheel.library).name == path.name:
                return Declaration(str(path), "a path", library=path, **_facts(name, vendor))
    return Declaration(str(path), "a path", library=path)


def advice(name: str) -> str:
    """How to get a vendor's plugin, if the name is one; otherwise empty."""
    if name not in VENDORS:
        return ""
    return " or ".join(f"'pip install {wheel.distribution}'" for wheel in VENDORS[name].wheels)


def _declared(name: str, vendor: Vendor, wheel: Wheel, path: Path) -> Declaration:
    plugin = Declaration(
        name,
        f"wheel {wheel.distribution}",
        distribution=wheel.distribution,
        version=packages.version(wheel.distribution),
        **_facts(name, vendor),
    )
    return libraries.or_broken(plugin, lambda: replace(plugin, library=libraries.installed(str(path))))


def _facts(name: str, vendor: Vendor) -> dict[str, Any]:
    hardware = system.device_files(name)
    return {
        "hardware": hardware,
        "priority": vendor.priority,
        "sharing": vendor.sharing,
        "partition": vendor.partition,
        "processes": vendor.processes,
        "resident": vendor.resident,
        "memory": vendor.memory,
        "options": vendor.options,
        "environment": {} if system.any_file(hardware) else vendor.without_hardware,
    }


def _place(wheel: Wheel) -> Path | None:
    package, _, rest = wheel.library.partition("/")
    for folder in libraries.folders(libraries.find_module(package)):
        path = folder / rest
        if path.is_file():
            return path
    return None
