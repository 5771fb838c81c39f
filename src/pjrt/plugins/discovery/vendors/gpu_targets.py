"""The options that describe GPUs to a plugin which compiles for them without one.

XLA's GPU compilers read the facts about a GPU from a ``stream_executor.GpuTargetConfigProto`` in text form. A client on
a machine with that GPU reports it as an attribute of its topology. Here the facts are in the folder ``gpus``. The text
has only the fields that older plugins know, too: they refuse a text with an unknown field.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pjrt.api.errors import InvalidArgumentError


def cuda_options(name: str) -> Mapping[str, str] | None:
    """Return the options of the CUDA plugin for a topology such as ``h100:1x1x4``.

    The size is slices x hosts x GPUs of a host. Slices and hosts may be left out if they are 1, and so may the size.

    Returns:
        The options; None if the GPU is unknown.

    Raises:
        InvalidArgumentError: the size is not one to three numbers.
    """
    return _options("cuda", name)


def rocm_options(name: str) -> Mapping[str, str] | None:
    """Return the options of the ROCm plugin for a topology such as ``mi300x:1x1x4``; see ``cuda_options``."""
    return _options("rocm", name)


def _options(platform: str, name: str) -> Mapping[str, str] | None:
    gpu, colon, size = name.partition(":")
    table = _table(platform)
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
    return {"target_config": _text(platform, table["limits"], facts), "topology": shape}


_SIZE = re.compile(r"[1-9]\d{0,5}(x[1-9]\d{0,5}){0,2}")


@functools.cache
def _table(platform: str) -> Any:
    file = Path(__file__).parent / "gpus" / f"{platform}.json"
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


def _text(platform: str, limits: Mapping[str, int], facts: Mapping[str, Any]) -> str:
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
