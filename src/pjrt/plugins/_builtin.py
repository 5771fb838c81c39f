"""The devices in the box: for each name the place of its plugin class, which is imported when it is first asked for."""

from __future__ import annotations

from pjrt.plugins.declaration import Declaration, MemoryOptions, ProcessOptions

FALLBACK = "cpu"
"""The device that every machine has."""

ORIGIN = "in the box"
DISTRIBUTION = "pjrt"

_MEMORY = MemoryOptions(on_demand={}, preallocated=None)

DEVICES = {
    "cpu": Declaration(
        "cpu",
        ORIGIN,
        factory="pjrt.devices.xla:XlaPlugin",
        distribution=DISTRIBUTION,
        memory=_MEMORY,
    ),
    "reference": Declaration(
        "reference",
        ORIGIN,
        factory="pjrt.devices.reference.plugin:ReferencePlugin",
        distribution=DISTRIBUTION,
        memory=_MEMORY,
        priority=-100,
        processes=ProcessOptions(count="num_devices", index="process_index", total="process_count"),
    ),
}
