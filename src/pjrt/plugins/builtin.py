"""The built-in devices, as data: the plugin class of each is imported when the device is first asked for."""

from __future__ import annotations

from pjrt.plugins.declaration import Declaration, MemoryOptions, ProcessOptions

DEFAULT = "cpu"
"""The default device where no plugin with hardware of its own can be used: every machine has it."""

TORCH_XLA_DEFAULT = "reference"
"""The device that PyTorch/XLA gets from this package if none is named."""

ORIGIN = "built-in"
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
    "iree": Declaration(
        "iree",
        ORIGIN,
        factory="pjrt.devices.iree.plugin:IreePlugin",
        distribution=DISTRIBUTION,
        memory=_MEMORY,
        priority=-50,
    ),
    "remote": Declaration(
        "remote",
        ORIGIN,
        factory="pjrt.remote.client.plugin:RemotePlugin",
        distribution=DISTRIBUTION,
        required_options={"address": "PJRT_REMOTE_ADDRESS"},
        priority=-200,
    ),
    "cluster": Declaration(
        "cluster",
        ORIGIN,
        factory="pjrt.clusters.plugin:ClusterPlugin",
        distribution=DISTRIBUTION,
        required_options={"hosts": "PJRT_CLUSTER_HOSTS"},
        priority=-300,
    ),
}
