"""Arrays spread over many devices, and programs on them (IFRT): what PJRT is to one device, for several.

Names are imported at their first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pjrt.api.lazy_names import lazy_names

if TYPE_CHECKING:
    from pjrt.ifrt.array import Array, ArrayCopySemantics, ArraySpec, Shard, Tuple, Value
    from pjrt.ifrt.client import Client
    from pjrt.ifrt.hlo_sharding import HloSharding, Mesh, ShardingParam, ShardingParamSharding
    from pjrt.ifrt.loaded_executable import ExecuteResult, LoadedExecutable
    from pjrt.ifrt.remap_plan import Interval, Mapping, RemapPlan
    from pjrt.ifrt.serialization import deserialize, serialize
    from pjrt.ifrt.sharding import (
        ConcreteEvenSharding,
        ConcreteSharding,
        DeviceList,
        IndexDomain,
        OpaqueSharding,
        Sharding,
        SingleDeviceSharding,
        SingleDeviceShardSemantics,
    )

__all__ = [
    "Array",
    "ArrayCopySemantics",
    "ArraySpec",
    "Client",
    "ConcreteEvenSharding",
    "ConcreteSharding",
    "DeviceList",
    "ExecuteResult",
    "HloSharding",
    "IndexDomain",
    "Interval",
    "LoadedExecutable",
    "Mapping",
    "Mesh",
    "OpaqueSharding",
    "RemapPlan",
    "Shard",
    "Sharding",
    "ShardingParam",
    "ShardingParamSharding",
    "SingleDeviceShardSemantics",
    "SingleDeviceSharding",
    "Tuple",
    "Value",
    "deserialize",
    "serialize",
]

_HOMES = {
    ".array": "Array ArrayCopySemantics ArraySpec Shard Tuple Value",
    ".client": "Client",
    ".hlo_sharding": "HloSharding Mesh ShardingParam ShardingParamSharding",
    ".loaded_executable": "ExecuteResult LoadedExecutable",
    ".remap_plan": "Interval Mapping RemapPlan",
    ".serialization": "deserialize serialize",
    ".sharding": (
        "ConcreteEvenSharding ConcreteSharding DeviceList IndexDomain OpaqueSharding Sharding SingleDeviceSharding "
        "SingleDeviceShardSemantics"
    ),
}


if not TYPE_CHECKING:  # a type checker has the names from above; with these functions it would accept any other
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
