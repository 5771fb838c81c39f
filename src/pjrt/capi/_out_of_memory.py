"""Out-of-memory errors, with what the allocators report."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pjrt.api.device import Device
from pjrt.api.errors import PjrtError, ResourceExhaustedError


def explained(error: PjrtError, devices: Iterable[Device], options: Mapping[str, Any]) -> ResourceExhaustedError:
    """Return an out-of-memory error with the state of the allocators and the client's options.

    Programs find both as payloads; people read them in a note of the exception.
    """
    stats = _allocator_stats(devices)
    payloads = dict(error.payloads)
    payloads["pjrt.client_options"] = json.dumps(options, default=str).encode()
    payloads["pjrt.allocator_stats"] = json.dumps(stats).encode()
    explanation = ResourceExhaustedError(error.message, payloads=payloads)
    lines = [f"{device}: {_in_use(values)}" for device, values in stats.items()]
    explanation.add_note("\n".join([*lines, f"options of the client: {options or 'none given'}"]))
    return explanation


def _allocator_stats(devices: Iterable[Device]) -> dict[str, dict[str, int]]:
    all_stats = {}
    for device in devices:
        try:
            stats = device.memory_stats()
        except PjrtError:
            continue
        all_stats[str(device)] = {name: value for name, value in stats._asdict().items() if value is not None}
    return all_stats


def _in_use(stats: Mapping[str, int]) -> str:
    """Return the figures of an allocator that the plugin reports, in one line."""
    limit = stats.get("bytes_limit")
    of = "" if limit is None else f" of {limit:,}"
    line = f"{stats['bytes_in_use']:,}{of} bytes in use"
    for name in ("peak_bytes_in_use", "largest_free_block_bytes", "num_allocs"):
        if stats.get(name) is not None:
            line += f", {name} {stats[name]:,}"
    return line
