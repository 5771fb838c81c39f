"""Findings of a replay: the places where a plugin did something else than the recorded one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

KINDS = ("crash", "hang", "missing", "error", "no error", "code", "value", "data", "unusable")
"""The kinds of findings: the process ended, or made no progress; the plugin lacks a function; it failed where the
recorded one did not, or did not fail, or with another code; a result differs, or host data; the call cannot be made."""


@dataclass(frozen=True, slots=True)
class ReplayFinding:
    """A difference between the recording and the plugin.

    Attributes:
        kind: one of ``KINDS``.
        call: the number of the call; 0 where none was made yet.
        function: its function.
        place: the field of the result that differs; empty where the whole call does.
        text: what the recording has, and what was found.
    """

    kind: str
    call: int
    function: str
    place: str
    text: str

    @property
    def signature(self) -> tuple[str, str, str]:
        """The kind, the function and the field: two replays with the same one fail in the same way."""
        return self.kind, self.function, self.place

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as values of JSON."""
        return asdict(self)

    @staticmethod
    def of(values: Mapping[str, Any]) -> ReplayFinding:
        """Return the finding of such values."""
        return ReplayFinding(**values)

    def __str__(self) -> str:
        where = f"call {self.call} {self.function}" if self.call else self.function or "before the first call"
        return f"{where}{'.' + self.place if self.place else ''}: {self.text}"


_SPECIFIC = frozenset(
    {
        "PJRT_Client_PlatformName", "PJRT_Client_PlatformVersion", "PJRT_DeviceDescription_Kind",
        "PJRT_DeviceDescription_Id", "PJRT_DeviceDescription_DebugString", "PJRT_DeviceDescription_ToString",
        "PJRT_DeviceDescription_Attributes", "PJRT_Device_GetAttributes", "PJRT_Device_LocalHardwareId",
        "PJRT_Device_MemoryStats", "PJRT_Memory_Id", "PJRT_Memory_Kind", "PJRT_Memory_Kind_Id",
        "PJRT_Memory_DebugString", "PJRT_Memory_ToString", "PJRT_Plugin_Attributes",
        "PJRT_Client_DefaultDeviceAssignment", "PJRT_LoadedExecutable_GetDeviceAssignment", "PJRT_Executable_Name",
        "PJRT_Executable_SizeOfGeneratedCodeInBytes", "PJRT_Executable_GetCostAnalysis",
        "PJRT_Executable_GetCompiledMemoryStats", "PJRT_Executable_Fingerprint", "PJRT_LoadedExecutable_Fingerprint",
        "PJRT_Executable_Serialize", "PJRT_Executable_GetCompileOptions", "PJRT_Executable_OptimizedProgram",
        "PJRT_Executable_ParameterMemoryKinds", "PJRT_Executable_OutputMemoryKinds", "PJRT_Buffer_GetMemoryLayout",
        "PJRT_Buffer_OnDeviceSizeInBytes", "PJRT_Buffer_UnsafePointer", "PJRT_Buffer_OpaqueDeviceMemoryDataPointer",
        "PJRT_Buffer_IsOnCpu", "PJRT_Event_IsReady",
    }
)  # fmt: skip

_SPECIFIC_FAMILIES = ("PJRT_TopologyDescription_", "PJRT_Layouts_", "PJRT_AbiVersion_", "PJRT_Tpu")


def is_specific(function: str) -> bool:
    """Whether the results of a function may differ from plugin to plugin: names, layouts, costs, times."""
    return function in _SPECIFIC or function.startswith(_SPECIFIC_FAMILIES)
