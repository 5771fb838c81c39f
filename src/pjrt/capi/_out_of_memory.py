"""Errors of devices whose memory is full, with who has it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pjrt.api.device import Device
from pjrt.api.errors import PjrtError, ResourceExhaustedError


def explained(error: PjrtError, devices: Iterable[Device], options: Mapping[str, Any]) -> ResourceExhaustedError:
    """An out-of-memory error with the state of the allocators and the client's options: as payloads for programs, as a
    note for people.
    """
    stats = _allocator_stats(devices)
    payloads = dict(error.payloads)
    payloads["pjrt.client_options"] = json.dumps(options, default=str).encode()
    payloads["pjrt.allocator_stats"] = json.dumps(stats).encode()
    made = ResourceExhaustedError(error.message, payloads=payloads)
    lines = [f"{device}: {_in_use(values)}" for device, values in stats.items()]
    made.add_note("\n".join([*lines, f"options of the client: {options or 'none given'}"]))
    return made


def _allocator_stats(devices: Iterable[Device]) -> dict[str, dict[str, int]]:
    found = {}
    for device in devices:
        try:
            stats = device.memory_stats()
        except PjrtError:
            continue
        values = {name: getattr(stats, name) for name in stats.__slots__}
        found[str(device)] = {name: value for name, value in values.items() if value is not None}
    return found


def _in_use(stats: Mapping[str, int]) -> str:
    """The figures of an allocator in a line, as far as the plugin gives them."""
    limit = stats.get("bytes_limit")
    of = "" if limit is None else f" of {limit:,}"
    said = f"{stats['bytes_in_use']:,}{of} bytes in use"
    for name in ("peak_bytes_in_use", "largest_free_block_bytes", "num_allocs"):
        if stats.get(name) is not None:
            said += f", {name} {stats[name]:,}"
    return said
