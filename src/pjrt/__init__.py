"""Use any PJRT device from Python, and write PJRT devices in Python.

``client = pjrt.client("cpu")`` connects to a device, ``executable = client.compile(program)`` compiles a program for
it, and ``executable(x)`` runs it. ``pjrt.StableHloClient`` and ``pjrt.host`` turn a Python function into a device, and
``pjrt.export`` turns a device into a plugin for frameworks. The classes have PJRT's names; ``pjrt.api`` documents them.
"""

from typing import TYPE_CHECKING

from pjrt.api.lazy_names import lazy_names

if TYPE_CHECKING:
    from pjrt import conformance, distributed, frameworks, host, ifrt, layers, models, plugins, remote, stablehlo
    from pjrt.api.buffer import (
        AliasFulfillment,
        AsyncHostToDeviceTransferManager,
        Buffer,
        CopyToDeviceStream,
        ExternalReference,
        HostBufferSemantics,
        RawBuffer,
    )
    from pjrt.api.capability import Capabilities, Effort, Feature, Reason, ReasonKind, Support, Verdict
    from pjrt.api.client import Client
    from pjrt.api.compile_options import CompileOptions, DeviceAssignment
    from pjrt.api.device import (
        AllocatorStats,
        AsyncTrackingEvent,
        Attributes,
        Device,
        DeviceDescription,
        MemorySpace,
        MemorySpaceDescription,
        NamedValue,
    )
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
    from pjrt.api.executable import CompiledMemoryStats, Executable, TpuExecutable
    from pjrt.api.future import Future, Promise
    from pjrt.api.key_value_store import InMemoryKeyValueStore, KeyValueStore, ProcessInfo, ProcessState
    from pjrt.api.loaded_executable import (
        ExecuteContext,
        ExecuteOptions,
        HloOutputCallback,
        LoadedExecutable,
        RecvCallback,
        SendCallback,
    )
    from pjrt.api.plugin import Plugin
    from pjrt.api.program import Program, ProgramFormat, SourceLocation
    from pjrt.api.shape_spec import Layout, ShapeSpec, StridedLayout, TiledLayout
    from pjrt.api.topology import MultiSliceConfig, PartialProgram, PhaseCompiler, TopologyDescription, TpuTopology
    from pjrt.artifacts.compilation_cache import CompilationCache
    from pjrt.artifacts.saved_executable import SavedExecutable, load_executable, save_executable
    from pjrt.clusters.cluster import cluster
    from pjrt.devices.author.code import DeclinedError
    from pjrt.devices.collectives import xla_collectives
    from pjrt.devices.stablehlo_client import StableHloClient
    from pjrt.models.benchmark import bench
    from pjrt.models.comparison.comparison import Comparison, compare
    from pjrt.models.model import Model, load_model
    from pjrt.models.offloading.offloaded_model import offload
    from pjrt.models.saving import save_model
    from pjrt.native.exported import ExportedPlugin, export
    from pjrt.plugins.registry import client, load_plugin, topology

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
    "DeclinedError",
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
    "cluster",
    "compare",
    "conformance",
    "distributed",
    "export",
    "frameworks",
    "host",
    "ifrt",
    "layers",
    "load_executable",
    "load_model",
    "load_plugin",
    "models",
    "offload",
    "plugins",
    "remote",
    "save_executable",
    "save_model",
    "stablehlo",
    "topology",
    "xla_collectives",
]

# The modules of names that are imported at their first use, so that programs without them start faster.
_HOMES = {
    "pjrt.api.buffer": (
        "AliasFulfillment AsyncHostToDeviceTransferManager Buffer CopyToDeviceStream ExternalReference "
        "HostBufferSemantics RawBuffer"
    ),
    "pjrt.api.capability": "Capabilities Effort Feature Reason ReasonKind Support Verdict",
    "pjrt.api.client": "Client",
    "pjrt.api.compile_options": "CompileOptions DeviceAssignment",
    "pjrt.api.device": (
        "AllocatorStats AsyncTrackingEvent Attributes Device DeviceDescription MemorySpace MemorySpaceDescription "
        "NamedValue"
    ),
    "pjrt.api.element_type": "ElementType",
    "pjrt.api.errors": (
        "AbortedError AlreadyExistsError CancelledError DataLossError DeadlineExceededError FailedPreconditionError "
        "InternalError InvalidArgumentError NotFoundError OutOfRangeError PermissionDeniedError PjrtError "
        "ResourceExhaustedError StatusCode UnauthenticatedError UnavailableError UnimplementedError UnknownError"
    ),
    "pjrt.api.executable": "CompiledMemoryStats Executable TpuExecutable",
    "pjrt.api.future": "Future Promise",
    "pjrt.api.key_value_store": "InMemoryKeyValueStore KeyValueStore ProcessInfo ProcessState",
    "pjrt.api.loaded_executable": (
        "ExecuteContext ExecuteOptions HloOutputCallback LoadedExecutable RecvCallback SendCallback"
    ),
    "pjrt.api.plugin": "Plugin",
    "pjrt.api.program": "Program ProgramFormat SourceLocation",
    "pjrt.api.shape_spec": "Layout ShapeSpec StridedLayout TiledLayout",
    "pjrt.api.topology": "MultiSliceConfig PartialProgram PhaseCompiler TopologyDescription TpuTopology",
    "pjrt.artifacts.compilation_cache": "CompilationCache",
    "pjrt.artifacts.saved_executable": "SavedExecutable load_executable save_executable",
    "pjrt.native.exported": "ExportedPlugin export",
    "pjrt.clusters.cluster": "cluster",
    "pjrt.devices.author.code": "DeclinedError",
    "pjrt.devices.collectives": "xla_collectives",
    "pjrt.devices.stablehlo_client": "StableHloClient",
    "pjrt.models.benchmark": "bench",
    "pjrt.models.comparison.comparison": "Comparison compare",
    "pjrt.models.model": "Model load_model",
    "pjrt.models.offloading.offloaded_model": "offload",
    "pjrt.models.saving": "save_model",
    "pjrt.plugins.registry": "client load_plugin topology",
}
_PARTS = (
    "conformance",
    "distributed",
    "frameworks",
    "host",
    "ifrt",
    "layers",
    "models",
    "plugins",
    "remote",
    "stablehlo",
)


if not TYPE_CHECKING:  # a type checker has the names from above; with these functions it would accept any other
    __getattr__, __dir__ = lazy_names(__name__, _HOMES, _PARTS)
