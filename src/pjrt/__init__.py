"""Use any PJRT device from Python, and write PJRT devices in Python.

``client = pjrt.client("cpu")`` connects to a device, ``executable = client.compile(program)`` compiles a program for
it, and ``executable(x)`` runs it. ``pjrt.StableHloClient`` and ``pjrt.host`` turn a Python function into a device, and
``pjrt.export`` turns a device into a plugin for frameworks. The classes have PJRT's names; ``pjrt.api`` documents them.
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
    from pjrt import frameworks, host, ifrt, models, plugins, stablehlo
    from pjrt.artifacts.compilation_cache import CompilationCache
    from pjrt.artifacts.saved_executable import SavedExecutable, load_executable, save_executable
    from pjrt.capi.export import ExportedPlugin, export
    from pjrt.devices.stablehlo_client import StableHloClient
    from pjrt.models.benchmark.benchmark import bench
    from pjrt.models.comparison.comparison import Comparison, compare
    from pjrt.models.model import Model, load_model
    from pjrt.models.offloading.offloaded_model import offload

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
    "Comparison",
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
    "Model",
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
    "bench",
    "client",
    "compare",
    "export",
    "frameworks",
    "host",
    "ifrt",
    "load_executable",
    "load_model",
    "load_plugin",
    "models",
    "offload",
    "plugins",
    "save_executable",
    "stablehlo",
    "topology",
]

# The modules of names that are imported at their first use, so that programs without them start faster.
_LAZY = {
    "Comparison": "pjrt.models.comparison.comparison",
    "CompilationCache": "pjrt.artifacts.compilation_cache",
    "ExportedPlugin": "pjrt.capi.export",
    "Model": "pjrt.models.model",
    "SavedExecutable": "pjrt.artifacts.saved_executable",
    "StableHloClient": "pjrt.devices.stablehlo_client",
    "bench": "pjrt.models.benchmark.benchmark",
    "compare": "pjrt.models.comparison.comparison",
    "export": "pjrt.capi.export",
    "frameworks": "pjrt",
    "host": "pjrt",
    "ifrt": "pjrt",
    "load_executable": "pjrt.artifacts.saved_executable",
    "load_model": "pjrt.models.model",
    "models": "pjrt",
    "offload": "pjrt.models.offloading.offloaded_model",
    "plugins": "pjrt",
    "save_executable": "pjrt.artifacts.saved_executable",
    "stablehlo": "pjrt",
}


if not TYPE_CHECKING:  # a type checker has the names from above; with this function it would accept any other

    def __getattr__(name: str) -> Any:
        """Import a name at its first use."""
        module = _LAZY.get(name)
        if module is None:
            raise AttributeError(f"module 'pjrt' has no attribute {name!r}")
        if module == "pjrt":
            return importlib.import_module(f"pjrt.{name}")
        value = globals()[name] = getattr(importlib.import_module(module), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
