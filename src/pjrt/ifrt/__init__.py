"""Arrays spread over many devices, and programs on them (IFRT): what PJRT is to one device, for several."""

from __future__ import annotations

from pjrt.ifrt.array import Array, ArrayCopySemantics, ArraySpec, Shard, Tuple, Value
from pjrt.ifrt.client import Client
from pjrt.ifrt.concrete_sharding import ConcreteEvenSharding, ConcreteSharding
from pjrt.ifrt.device_list import DeviceList
from pjrt.ifrt.hlo_sharding import HloSharding, Mesh
from pjrt.ifrt.index_domain import IndexDomain
from pjrt.ifrt.loaded_executable import ExecuteResult, LoadedExecutable
from pjrt.ifrt.remap_plan import Interval, Mapping, RemapPlan
from pjrt.ifrt.serialization import deserialize, serialize
from pjrt.ifrt.sharding import OpaqueSharding, Sharding, SingleDeviceSharding, SingleDeviceShardSemantics
from pjrt.ifrt.sharding_param import ShardingParam, ShardingParamSharding

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
