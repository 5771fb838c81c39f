"""Vendors' plugins: the wheels that bring them, the library's path in each wheel, and options that vendors need."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError
from pjrt.plugins import schema
from pjrt.plugins.declaration import Declaration
from pjrt.plugins.discovery import packages

VENDORS = Path(__file__).parent / "vendors"
"""The folder with vendors' plugins as data: a manifest each, ``NAME.json``, with the wheels that bring the plugin."""


@dataclass(frozen=True)
class Wheel:
    """A wheel with a plugin.

    Attributes:
        distribution: its name for ``pip install``.
        library: the plugin's library, as a path relative to a folder of ``sys.path``.
    """

    distribution: str
    library: str


@dataclass(frozen=True)
class Vendor:
    """A vendor's plugin.

    Attributes:
        wheels: those that may bring it, the recommended one first.
        facts: fields of ``Declaration``.
    """

    wheels: tuple[Wheel, ...]
    facts: Mapping[str, Any]


@functools.cache
def vendors() -> Mapping[str, Vendor]:
    """Return the vendors' plugins by name, the one with the highest priority first.

    Their facts are files in the folder ``vendors``: manifests as third parties write them, with the key ``wheels``.
    """
    plugins = {}
    for file in VENDORS.glob("*.json"):
        table = json.loads(file.read_text(encoding="utf-8"))
        wheels = tuple(Wheel(distribution, library) for distribution, library in table.pop("wheels").items())
        plugins[file.stem] = Vendor(wheels, schema.read_table(table))
    return dict(sorted(plugins.items(), key=lambda item: -item[1].facts.get("priority", 0)))


def find() -> Iterator[Declaration]:
    """Return the plugins of the installed wheels, the one with the highest priority first.

    Nothing is imported: the packages around some plugins import a whole framework.
    """
    for name, vendor in vendors().items():
        for wheel in vendor.wheels:
            path = _find_library(wheel)
            if path is not None:
                yield _declared(name, vendor, wheel, path)


def declare_library(path: Path) -> Declaration:
    """Return a declaration of the library at a path, with the vendor's facts if its file name is that of a vendor."""
    for vendor in vendors().values():
        for wheel in vendor.wheels:
            if Path(wheel.library).name == path.name:
                return Declaration(str(path), "a path", library=path, **vendor.facts)
    return Declaration(str(path), "a path", library=path)


def advice(name: str) -> str:
    """Return the commands that install a vendor's plugin; empty if the name is not one of them."""
    if name not in vendors():
        return ""
    return " or ".join(f"'pip install {wheel.distribution}'" for wheel in vendors()[name].wheels)


def _declared(name: str, vendor: Vendor, wheel: Wheel, path: Path) -> Declaration:
    plugin = Declaration(
        name,
        f"wheel {wheel.distribution}",
        distribution=wheel.distribution,
        version=packages.version(wheel.distribution),
        **vendor.facts,
    )
    return packages.or_broken(plugin, lambda: replace(plugin, library=schema.installed_library(path)))


def _find_library(wheel: Wheel) -> Path | None:
    package, _, rest = wheel.library.partition("/")
    paths = (folder / rest for folder in packages.folders(packages.find_module(package)))
    return next((path for path in paths if path.is_file()), None)


# XLA's GPU compilers read the facts about a GPU from a ``stream_executor.GpuTargetConfigProto`` in text form. A client
# on a machine with that GPU reports it as an attribute of its topology; without one they are those of the folder
# ``vendors/gpus``. The text has only the fields that older plugins know, too: they refuse a text with an unknown field.


def cuda_options(name: str) -> Mapping[str, str] | None:
    """Return the options of the CUDA plugin for a topology such as ``h100:1x1x4``.

    The size is slices x hosts x GPUs of a host. Slices and hosts may be left out if they are 1, and so may the size.

    Returns:
        The options; None if the GPU is unknown.

    Raises:
        InvalidArgumentError: the size is not one to three numbers.
    """
    return _gpu_options("cuda", name)


def rocm_options(name: str) -> Mapping[str, str] | None:
    """Return the options of the ROCm plugin for a topology such as ``mi300x:1x1x4``; see ``cuda_options``."""
    return _gpu_options("rocm", name)


def _gpu_options(platform: str, name: str) -> Mapping[str, str] | None:
    gpu, colon, size = name.partition(":")
    table = _gpus(platform)
    facts = table["gpus"].get(gpu.lower())
    if facts is None:
        return None
    if colon and not _SIZE.fullmatch(size):
        raise InvalidArgumentError(
            f"{platform}: expected the size of {gpu} as SLICESxHOSTSxGPUS, HOSTSxGPUS or GPUS, such as 1x1x4 or 4, "
            f"found {size!r}"
        )
    counts = size.split("x") if size else ["1"]
    shape = "x".join(["1"] * (3 - len(counts)) + counts)
    return {"target_config": _target_config(platform, table["limits"], facts), "topology": shape}


_SIZE = re.compile(r"[1-9]\d{0,5}(x[1-9]\d{0,5}){0,2}")


@functools.cache
def _gpus(platform: str) -> Any:
    file = VENDORS / "gpus" / f"{platform}.json"
    return json.loads(file.read_text(encoding="utf-8"))


# The fields of stream_executor.GpuDeviceInfoProto, by our names of the facts.
_FIELDS = {
    "cores": "core_count",
    "fpus_per_core": "fpus_per_core",
    "threads_per_core": "threads_per_core_limit",
    "shared_memory_bytes_per_core": "shared_memory_per_core",
    "shared_memory_bytes_per_block": "shared_memory_per_block_optin",
    "l2_cache_bytes": "l2_cache_size",
    "memory_bytes": "device_memory_size",
    "memory_bytes_per_second": "memory_bandwidth",
    "clock_ghz": "clock_rate_ghz",
}


def _target_config(platform: str, limits: Mapping[str, int], facts: Mapping[str, Any]) -> str:
    info = {**limits, **{field: facts[fact] for fact, field in _FIELDS.items()}}
    info.setdefault("shared_memory_per_block", facts["shared_memory_bytes_per_block"])
    lines = [f"  {field}: {value}" for field, value in info.items()]
    if platform == "rocm":
        lines.append(f'  rocm_compute_capability {{ gcn_arch_name: "{facts["architecture"]}" }}')
    else:
        major, minor = facts["architecture"].split(".")
        lines.append(f"  cuda_compute_capability {{ major: {major} minor: {minor} }}")
    return "\n".join(
        [
            "gpu_device_info {",
            *lines,
            "}",
            f'platform_name: "{platform.upper()}"',
            f'device_description_str: "{facts["name"]}"',
            "",
        ]
    )


# The arrangement of the chips of one machine, by their number.
_CHIP_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}

_FIRST_PORT = 8476


def process_environment(chips: Sequence[int], local_rank: int, local_world_size: int) -> Mapping[str, str]:
    """Return the variables for a process: each process has one chip, or one process has all of them.

    In a job of several machines ``TPU_PROCESS_BOUNDS`` and ``TPU_PROCESS_ADDRESSES`` have to be set already: they
    contain the arrangement of all processes, which one machine does not know.

    Raises:
        FailedPreconditionError: the arrangement of the processes or chips is unknown.
    """
    if local_world_size == 1:
        return {"TPU_CHIPS_PER_PROCESS_BOUNDS": _chip_bounds(len(chips)), "TPU_PROCESS_BOUNDS": "1,1,1"}
    hosts = [name for name in os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",") if name]
    if len(hosts) > 1 and not {"TPU_PROCESS_BOUNDS", "TPU_PROCESS_ADDRESSES"} <= set(os.environ):
        raise FailedPreconditionError(
            f"the TPU has {len(hosts)} machines: set TPU_PROCESS_BOUNDS and TPU_PROCESS_ADDRESSES for the processes "
            "of all of them"
        )
    ports = range(_FIRST_PORT, _FIRST_PORT + local_world_size)
    worker = int(os.environ.get("TPU_WORKER_ID", "0") or 0)
    return {
        "TPU_CHIPS_PER_PROCESS_BOUNDS": _chip_bounds(len(chips)),
        "TPU_PROCESS_BOUNDS": os.environ.get("TPU_PROCESS_BOUNDS") or _chip_bounds(local_world_size),
        "TPU_PROCESS_ADDRESSES": ",".join(f"localhost:{port}" for port in ports),
        "TPU_PROCESS_PORT": str(ports[local_rank]),
        "CLOUD_TPU_TASK_ID": str(worker * local_world_size + local_rank),
    }


def _chip_bounds(number: int) -> str:
    if number not in _CHIP_BOUNDS:
        raise FailedPreconditionError(
            f"the arrangement of {number} chips or processes of a TPU is unknown: set TPU_PROCESS_BOUNDS and "
            f"TPU_CHIPS_PER_PROCESS_BOUNDS, or use one of {', '.join(map(str, _CHIP_BOUNDS))}"
        )
    return _CHIP_BOUNDS[number]
