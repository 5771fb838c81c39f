"""PJRT, the uniform device API of machine learning, for Python.

Use any device: ``client = pjrt.client("cpu")``, ``client.compile(program)``, ``executable(x)``; and be one: write a
class on ``pjrt.host`` and export it. The nouns are those of PJRT; their documentation is in ``pjrt.api``.
"""

import importlib
from typing import TYPE_CHECKING, Any

from pjrt.api.alias_fulfillment import AliasFulfillment
from pjrt.api.attributes import Attributes, NamedValue
from pjrt.api.buffer import Buffer, ExternalReference
from pjrt.api.capability import Capabilities, Feature
from pjrt.api.client import Client
from pjrt.api.compatibility import Effort, Reason, ReasonKind, SourceLocation, Support, Verdict
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.device import AllocatorStats, AsyncTrackingEvent, Device, DeviceDescription
from pjrt.api.element_type import ElementType
from pjrt.api.errors import (
    AbortedError,
    AlreadyExistsError,
    CancelledError,
    DataLossError,
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
    PermissionDeniedError,
    PjrtError,
    ResourceExhaustedError,
    StatusCode,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
    UnknownError,
)
from pjrt.api.executable import CompiledMemoryStats, Executable
from pjrt.api.execute_options import ExecuteContext, ExecuteOptions, HloOutputCallback, RecvCallback, SendCallback
from pjrt.api.future import Future, Promise
from pjrt.api.host_buffer_semantics import HostBufferSemantics
from pjrt.api.key_value_store import InMemoryKeyValueStore, KeyValueStore
from pjrt.api.layout import Layout, StridedLayout, TiledLayout
from pjrt.api.loaded_executable import LoadedExecutable
from pjrt.api.memory_space import MemorySpace, MemorySpaceDescription
from pjrt.api.multi_slice import MultiSliceConfig
from pjrt.api.phase_compiler import PartialProgram, PhaseCompiler
from pjrt.api.plugin import Plugin
from pjrt.api.process_info import ProcessInfo, ProcessState
from pjrt.api.program import Program, ProgramFormat
from pjrt.api.raw_buffer import RawBuffer
from pjrt.api.shape_spec import ShapeSpec
from pjrt.api.topology import TopologyDescription
from pjrt.api.tpu_executable import TpuExecutable
from pjrt.api.tpu_topology import TpuTopology
from pjrt.api.transfer import AsyncHostToDeviceTransferManager, CopyToDeviceStream
from pjrt.plugins.registry import client, load_plugin, topology

if TYPE_CHECKING:
    from pjrt import frameworks, host, plugins, stablehlo
    from pjrt.artifacts.compilation_cache import CompilationCache
    from pjrt.artifacts.saved_executable import SavedExecutable, load_executable, save_executable
    from pjrt.capi.export import ExportedPlugin, export
    from pjrt.devices.stablehlo_client import StableHloClient

__version__ = "0.1.0"

__all__ = [
    "AbortedError",
    "AliasFulfillment",
    "AllocatorStats",
    "AlreadyExistsError",
    "AsyncHostToDeviceTransferManager",
    "AsyncTrackingEvent",
    "Attributes",
    "Buffer",
    "CancelledError",
    "Capabilities",
    "Client",
    "CompilationCache",
    "CompileOptions",
    "CompiledMemoryStats",
    "CopyToDeviceStream",
    "DataLossError",
    "DeadlineExceededError",
    "Device",
    "DeviceAssignment",
    "DeviceDescription",
    "Effort",
    "ElementType",
    "Executable",
    "ExecuteContext",
    "ExecuteOptions",
    "ExportedPlugin",
    "ExternalReference",
    "FailedPreconditionError",
    "Feature",
    "Future",
    "HloOutputCallback",
    "HostBufferSemantics",
    "InMemoryKeyValueStore",
    "InternalError",
    "InvalidArgumentError",
    "KeyValueStore",
    "Layout",
    "LoadedExecutable",
    "MemorySpace",
    "MemorySpaceDescription",
    "MultiSliceConfig",
    "NamedValue",
    "NotFoundError",
    "OutOfRangeError",
    "PartialProgram",
    "PermissionDeniedError",
    "PhaseCompiler",
    "PjrtError",
    "Plugin",
    "ProcessInfo",
    "ProcessState",
    "Program",
    "ProgramFormat",
    "Promise",
    "RawBuffer",
    "Reason",
    "ReasonKind",
    "RecvCallback",
    "ResourceExhaustedError",
    "SavedExecutable",
    "SendCallback",
    "ShapeSpec",
    "SourceLocation",
    "StableHloClient",
    "StatusCode",
    "StridedLayout",
    "Support",
    "TiledLayout",
    "TopologyDescription",
    "TpuExecutable",
    "TpuTopology",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "UnknownError",
    "Verdict",
    "__version__",
    "client",
    "export",
    "frameworks",
    "host",
    "load_executable",
    "load_plugin",
    "plugins",
    "save_executable",
    "stablehlo",
    "topology",
]

# Imported when they are first asked for, so that a program that does without them starts without them.
_LATER = {
    "CompilationCache": "pjrt.artifacts.compilation_cache",
    "ExportedPlugin": "pjrt.capi.export",
    "SavedExecutable": "pjrt.artifacts.saved_executable",
    "StableHloClient": "pjrt.devices.stablehlo_client",
    "export": "pjrt.capi.export",
    "frameworks": "pjrt",
    "host": "pjrt",
    "load_executable": "pjrt.artifacts.saved_executable",
    "plugins": "pjrt",
    "save_executable": "pjrt.artifacts.saved_executable",
    "stablehlo": "pjrt",
}


if not TYPE_CHECKING:  # a type checker knows the names from above, and would take any other for granted here

    def __getattr__(name: str) -> Any:
        """Import a name when it is first asked for."""
        place = _LATER.get(name)
        if place is None:
            raise AttributeError(f"module 'pjrt' has no attribute {name!r}")
        if place == "pjrt":
            return importlib.import_module(f"pjrt.{name}")
        found = globals()[name] = getattr(importlib.import_module(place), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
