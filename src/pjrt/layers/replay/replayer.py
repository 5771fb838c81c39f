"""A replay in its subprocess: the calls of a recording made to a plugin, and their results compared."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import pickle
import struct
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pjrt.abi.schema import CALLBACKS, FUNCTIONS, STRUCTS
from pjrt.api.buffer import HostBufferSemantics
from pjrt.api.element_type import ElementType
from pjrt.api.errors import PjrtError, StatusCode
from pjrt.capi.raw.struct import Memory, Struct
from pjrt.capi.raw.table import Error, Table, code_name
from pjrt.host_memory.difference import Difference
from pjrt.host_memory.tolerance import Tolerance
from pjrt.layers.recording import (
    Blob,
    Call,
    Callback,
    Function,
    Handle,
    Pointer,
    RecordedError,
    Recording,
    functions_in,
    handles_in,
)
from pjrt.layers.replay.replay_arguments import (
    FROM_HOST,
    Counterparts,
    LostError,
    Raw,
    RecordedStructReader,
    ReplayArguments,
    ReplayCallbacks,
    Settings,
    StructBuilder,
    UnusableError,
)

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


class ReplayComparison:
    """The findings of a replay; what it compares it also learns from.

    Attributes:
        findings: the differences so far.
        notes: facts that differ lawfully, by the function that returns them.
    """

    def __init__(
        self,
        recording: Recording,
        counterparts: Counterparts,
        tolerance: Tolerance,
        report: Callable[[ReplayFinding], None],
    ) -> None:
        self.findings: list[ReplayFinding] = []
        self.notes: dict[str, str] = {}
        self._recording, self._counterparts = recording, counterparts
        self._tolerance, self._report = tolerance, report

    def find(self, kind: str, call: Call, place: str, text: str) -> None:
        """Add a finding."""
        finding = ReplayFinding(kind, call.number, call.function, place, text)
        self.findings.append(finding)
        self._report(finding)

    def errors(self, call: Call, found: Error | None) -> None:
        """Compare the error that a call returned with the recorded one."""
        if call.duration is not None:  # a call that never returned has no outcome to compare with
            self._errors(call, call.error, found, "")

    def event_errors(self, call: Call, recorded: RecordedError | None, found: Error | None) -> None:
        """Compare the error that an event ended with, as a callback was given it."""
        self._errors(call, recorded, found, "callback")

    def results(self, call: Call, found: Struct) -> None:
        """Compare the results of a call, and learn the handles, functions and addresses in them."""
        if call.results is not None:
            if call.function == "PJRT_DeviceDescription_Id":
                self._counterparts.device_ids[call.results.fields["id"]] = found.fields["id"]
            elif call.function == "PJRT_Executable_OptimizedProgram":
                executable = call.arguments.fields["executable"].number
                self._counterparts.program_sizes[executable] = found.fields["program"].fields["code_size"]
            self._structs(call, call.results, found, "", is_specific(call.function))

    def data(self, call: Call, found: np.ndarray[Any, Any], element_type: int, place: str) -> None:
        """Compare host memory that a call filled, as bytes, with the recorded one.

        Args:
            call: the call.
            found: the bytes.
            element_type: the type of the elements as a number of the C API; 0 if it is unknown.
            place: what was filled.
        """
        recorded = self._recording.data(call.read)
        if recorded is None:
            return
        expected = np.frombuffer(recorded, np.uint8)
        if expected.size != found.size:
            self.find("data", call, place, f"{expected.size} bytes in the recording, {found.size} here")
            return
        if np.array_equal(expected, found):
            return
        try:
            dtype = ElementType(element_type).dtype
            difference = Difference.of(found.view(dtype), expected.view(dtype), self._tolerance)
        except (ValueError, PjrtError):
            self.find("data", call, place, f"{int((expected != found).sum())} of {expected.size} bytes differ")
            return
        if not difference.agrees:
            self.find("data", call, place, str(difference))

    def _errors(self, call: Call, recorded: RecordedError | None, found: Error | None, place: str) -> None:
        if recorded is None and found is not None:
            self.find("error", call, place, f"succeeded in the recording, failed here with {spelled_error(found)}")
        elif recorded is not None and found is None:
            self.find("no error", call, place, f"failed in the recording with {spelled_error(recorded)}, not here")
        elif recorded is not None and found is not None and recorded.code != found.code:
            text = f"failed in the recording with {spelled_error(recorded)}, here with {spelled_error(found)}"
            self.find("code", call, place, text)

    def _structs(self, call: Call, recorded: Struct, found: Struct, place: str, specific: bool) -> None:
        spec = STRUCTS[recorded.kind].fields.values()
        counts = {each.count for each in spec if each.name in recorded.fields}  # compared with what they count
        for name, value in recorded.fields.items():
            if name not in ("struct_size", "extension_start") and name not in counts:
                inner = f"{place}.{name}" if place else name
                self._values(call, value, found.fields.get(name), inner, specific)

    def _values(self, call: Call, recorded: Any, found: Any, place: str, specific: bool) -> None:
        if recorded in ([], None) and found in ([], None):
            return
        if isinstance(recorded, Handle):
            if isinstance(found, Raw):
                # A memory that the recording has for a known device may be of another one here.
                if not (call.function == "PJRT_Memory_AddressableByDevices" and self._counterparts.has(recorded)):
                    self._counterparts.learn(recorded, found.address)
            else:
                self._counterparts.lose(recorded, call)
                self.find("value", call, place, f"{recorded} in the recording, a null pointer here")
        elif isinstance(recorded, Function):
            if isinstance(found, Pointer):
                self._counterparts.received[recorded.number] = found.address
        elif isinstance(recorded, Pointer):
            if isinstance(found, Pointer):
                self._counterparts.learn_memory(recorded, found.address)
        elif isinstance(recorded, Struct) and isinstance(found, Struct):
            self._structs(call, recorded, found, place, specific)
        elif isinstance(recorded, list) and isinstance(found, list):
            self._lists(call, recorded, found, place, specific)
        else:
            self._plain(call, recorded, found, place, specific)

    def _lists(self, call: Call, recorded: list[Any], found: list[Any], place: str, specific: bool) -> None:
        # Another plugin has other devices. A call that needs one which is missing is a finding of its own.
        specific = specific or any(isinstance(each, Handle) for each in recorded)
        if len(recorded) != len(found):
            self._differ(call, place, f"{len(recorded)} elements in the recording, {len(found)} here", specific)
        for i, (old, new) in enumerate(zip(recorded, found, strict=False)):
            self._values(call, old, new, f"{place}[{i}]", specific)

    def _plain(self, call: Call, recorded: Any, found: Any, place: str, specific: bool) -> None:
        if isinstance(recorded, (bytes, Blob)):
            recorded = bytes(self._recording.data(recorded) or b"")
            if specific and isinstance(found, bytes):
                self._counterparts.learn_serialized(recorded, found)
        if recorded != found and not isinstance(found, Raw):
            self._differ(call, place, f"{_spelled(recorded)} in the recording, {_spelled(found)} here", specific)

    def _differ(self, call: Call, place: str, text: str, lawful: bool) -> None:
        if lawful:
            self.notes.setdefault(call.function, f"{place}: {text}")
        else:
            self.find("value", call, place, text)


def spelled_error(error: RecordedError | Error | None) -> str:
    """Return an error as text: the name of its code, and its message."""
    return "no error" if error is None else f"{code_name(error.code)}: {error.message.strip()[:300]}"


def _spelled(value: Any) -> str:
    text = repr(value.decode("utf-8", "replace")) if isinstance(value, bytes) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


_ADDRESS = "PJRT_Buffer_OpaqueDeviceMemoryDataPointer"
_EXECUTE = "PJRT_LoadedExecutable_Execute"
_INITIALIZE = "PJRT_Plugin_Initialize"
_Function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_NOT_CALLED = (
    "PJRT_Error_", "PLUGIN_Profiler_", "PJRT_FFI_", "PJRT_ExecutableMetadata_DestroySerializedMetadata",
    "PJRT_Get_Stream_", "PJRT_Wait_Until_")  # fmt: skip
"""Functions that are not called: errors are read as they come, functions of the recorded process are gone, and so is
the memory that the last one frees."""

_OF_READY_EVENTS = ("PJRT_Event_Await", "PJRT_Event_Error")
_BETWEEN_PROCESSES = "PJRT_Transfers_"


@dataclass(slots=True)
class _Read:
    """Host memory that a call fills until its event is ready."""

    call: Call
    address: int
    size: int
    memory: Memory
    element_type: int


class Replayer:
    """A replay of a recording on a plugin.

    Attributes:
        comparison: its findings.
        calls: how many calls were made.
        made: how many of them were to each function.
        skipped: how many were not made, since a call before them failed.
    """

    def __init__(
        self,
        recording: Recording,
        table: Table,
        settings: Settings,
        progress: Callable[[int, str], None] = lambda *_: None,
        report: Callable[[ReplayFinding], None] = lambda _: None,
    ) -> None:
        """Prepare a replay.

        Args:
            recording: the recording.
            table: the plugin.
            settings: what to compare, and how far to go.
            progress: is called with the number and the name of each call before it is made.
            report: is called with each finding.
        """
        self._callbacks = ReplayCallbacks(table)
        self._counterparts = Counterparts(recording, self._callbacks)
        self._arguments = ReplayArguments(recording, self._counterparts, settings)
        self.comparison = ReplayComparison(recording, self._counterparts, settings.tolerance, report)
        self.calls = self.skipped = 0
        self.made: Counter[str] = Counter()
        self._recording, self._table, self._settings, self._progress = recording, table, settings, progress
        self._reads: dict[int, _Read] = {}  # by the event's number
        self._kept: dict[int, Memory] = {}  # the memory of calls, by the event that ends its use; or minus the call
        self._releases = _releases(recording)
        self._unreleased: dict[int, int] = {}  # such events by the functions that are called when they are ready
        self._threads: dict[int, threading.Thread] = {}
        self._settled: dict[int, threading.Event] = {}  # of calls on threads: whether the plugin has its arguments
        self._failures: list[BaseException] = []
        self._places: dict[int, int] = {}  # how many invocations of each function the recording had so far
        self._givers = {
            function.number: call for call in recording.calls for function in functions_in(call.arguments)
        }  # which call gave the plugin each function
        self._makers = {
            function.number: call for call in recording.calls for function in functions_in(call.results)
        }  # which call returned each function of the plugin

    def run(self) -> None:
        """Make all calls, in the order and with the overlaps of the recording."""
        self._learn_key_values()
        is_recorded = any(call.function == _INITIALIZE for call in self._recording.calls)
        if not is_recorded and self._table.function(_INITIALIZE) is not None:
            self._progress(0, _INITIALIZE)
            self._table.call_with(_INITIALIZE)
        steps, last = self._recording.steps, self._settings.stop_at
        for i, step in enumerate(steps):
            if isinstance(step, Callback):
                self._meet(step)
            elif step.moment == "begin":
                if last and step.call.number > last:
                    return
                following = steps[i + 1] if i + 1 < len(steps) else None
                # A call that nothing overlaps needs no thread of its own. One that never returned is the last.
                self._begin(step.call, following is None or getattr(following, "call", None) is step.call)
            elif step.moment == "return":
                self._return(step.call)
            elif step.call.function == _ADDRESS:
                self._compare_contents(step.call)
            if self._failures:
                raise self._failures[0]

    def _begin(self, call: Call, alone: bool) -> None:
        self._progress(call.number, call.function)
        if alone:
            self._call(call)
            return

        settled = self._settled[call.number] = threading.Event()

        def run() -> None:
            try:
                self._call(call)
            except BaseException as error:
                self._failures.append(error)
            settled.set()

        self._threads[call.number] = threading.Thread(target=run, daemon=True)
        self._threads[call.number].start()

    def _return(self, call: Call) -> None:
        """Wait for the return of a call, and look at memory that is ready now."""
        thread = self._threads.pop(call.number, None)
        if thread is not None:
            self._progress(call.number, call.function)
            thread.join()
        event = call.arguments.fields.get("event")
        if not isinstance(event, Handle) or not self._counterparts.has(event) or call.error is not None:
            return
        if event.number in self._releases:
            return
        if call.function == "PJRT_Event_Await":
            self._ready(event.number)
        elif call.function == "PJRT_Event_IsReady" and call.results and call.results.fields.get("is_ready"):
            # The recorded plugin was done here. This one may take longer, and what comes next relies on it.
            self._table.call_with("PJRT_Event_Await", event=self._counterparts.address(event))
            self._ready(event.number)

    def _call(self, call: Call) -> None:
        if call.function.startswith(_NOT_CALLED):
            return
        if self._table.function(call.function) is None:
            if call.error is None or call.error.code != StatusCode.UNIMPLEMENTED:
                self.comparison.find("missing", call, "", f"the plugin has no {call.function}")
            self._counterparts.lose_results(call)
            return
        if call.function in _OF_READY_EVENTS and not self._releases.isdisjoint(_numbers(call)):
            return
        if call.function.startswith(_BETWEEN_PROCESSES):
            text = "the call cannot be made: a transfer between processes needs the other process"
            self.comparison.find("unusable", call, "", text)
            self._counterparts.lose_results(call)
            return
        try:
            outputs = self._num_outputs(call)
            kind = self._element_type(call)
            address, builder = self._arguments.build(call, outputs)
        except LostError:
            self.skipped += 1
            self._counterparts.lose_results(call)
            return
        except (UnusableError, PjrtError) as problem:
            self.comparison.find("unusable", call, "", f"the call cannot be made: {problem}")
            self._counterparts.lose_results(call)
            return
        self.calls += 1
        self.made[call.function] += 1
        if call.number in self._settled:
            self._settled[call.number].set()
        error = self._table.call(call.function, address)
        self.comparison.errors(call, error)
        if error is not None or call.results is None:
            self._counterparts.lose_results(call)
            self._kept[-call.number] = builder.memory
            return
        names = [name for name in call.results.fields if name != "struct_size"]
        self.comparison.results(call, RecordedStructReader(outputs).read(FUNCTIONS[call.function].args, address, names))
        self._keep(call, builder, kind)

    def _num_outputs(self, call: Call) -> int:
        """Return the number of results of the program that a call runs: the recorded one, or else by this plugin."""
        if call.function != _EXECUTE:
            return 0
        lists = call.results.fields.get("output_lists") if call.results else None
        if lists:
            return max(len(each or []) for each in lists)
        loaded = self._counterparts.address(call.arguments.fields["executable"])
        error, fields = self._table.call_with("PJRT_LoadedExecutable_GetExecutable", loaded_executable=loaded)
        if error is None:
            executable = fields["executable"]
            error, fields = self._table.call_with("PJRT_Executable_NumOutputs", executable=executable)
            self._table.call_with("PJRT_Executable_Destroy", executable=executable)
        if error is not None:
            raise UnusableError(f"the number of results is unknown, {spelled_error(error)}")
        return fields["num_outputs"]

    def _element_type(self, call: Call) -> int:
        """Return the element type of the buffer that a call reads, to compare its contents; 0 if it is unknown."""
        source = call.arguments.fields.get("src", call.arguments.fields.get("buffer"))
        if call.read is None or not isinstance(source, Handle) or source.kind != "PJRT_Buffer":
            return 0
        address = self._counterparts.address(source)
        error, fields = self._table.call_with("PJRT_Buffer_ElementType", buffer=address)
        return 0 if error is not None else fields["type"]

    def _keep(self, call: Call, builder: StructBuilder, kind: int) -> None:
        """Keep the memory of a call as long as the plugin may use it."""
        fields = STRUCTS[call.arguments.kind].fields.values()
        if not any("KEEPS" in each.marks or each.kind in ("CALLBACK", "STRUCT") for each in fields):
            return
        events = [each.number for each in handles_in(call.results) if each.kind == "PJRT_Event"]
        event = events[0] if len(events) == 1 else -call.number
        self._kept[event] = builder.memory
        if call.read is not None and builder.filled and event > 0:
            self._reads[event] = _Read(call, *next(iter(builder.filled.values())), builder.memory, kind)

    def _ready(self, event: int) -> None:
        self._kept.pop(event, None)
        read = self._reads.pop(event, None)
        if read is not None:
            self.comparison.data(read.call, _bytes_at(read.address, read.size), read.element_type, "dst")

    def _meet(self, callback: Callback) -> None:
        """Wait for a call of the plugin where the recorded one made it; or make one of the framework's to it."""
        place = self._places.get(callback.function, 0)
        self._places[callback.function] = place + 1
        if callback.function in self._counterparts.received:
            self._call_plugin(callback)
            return
        giver = self._givers.get(callback.function)
        if giver is None:
            return
        if giver.number in self._settled:
            self._settled[giver.number].wait()
        if not self._callbacks.knows(callback.function):
            return  # the call that gives it was not made
        if not self._releases.isdisjoint(_numbers(giver)):
            self._unreleased[callback.function] = giver.arguments.fields["event"].number
            for function in [each for each in self._unreleased if self._callbacks.has_been_called(each)]:
                self._kept.pop(self._unreleased.pop(function), None)
            return
        self._progress(giver.number, f"{giver.function}, whose {callback.kind} is still to be called")
        invocation = self._callbacks.wait(callback.function, place)
        for handle in handles_in(callback.arguments):
            if invocation.handle is not None and handle.kind == invocation.handle.kind:
                self._counterparts.learn(handle, invocation.handle.address)
        event = giver.arguments.fields.get("event")
        if callback.kind == "PJRT_Event_OnReadyCallback":
            self.comparison.event_errors(giver, callback.error, invocation.error)
            if isinstance(event, Handle) and invocation.error is None:
                self._ready(event.number)
        elif invocation.data is not None:
            expected = self._recording.data(_bytes_in(callback.arguments))
            if expected is not None and bytes(expected) != invocation.data:
                text = f"the {len(invocation.data)} bytes of host data that it was given differ"
                self.comparison.find("data", giver, callback.kind, text)

    def _call_plugin(self, callback: Callback) -> None:
        """Call a function that the plugin gave, such as a deleter, with the counterparts of its arguments."""
        function = self._counterparts.received[callback.function]
        spec = STRUCTS[CALLBACKS[callback.kind].args]
        if "struct_size" in spec.fields:  # one struct instead of parameters
            builder = StructBuilder(self._counterparts)
            maker, arguments = self._makers[callback.function], dict(callback.arguments.fields)
            # The framework was given user data of the stack of layers, and the plugin has its own.
            arguments["callback_data"] = maker.results.fields.get("callback_data") if maker.results else None
            if isinstance(arguments.get("dst"), Pointer):
                size = maker.arguments.fields.get("transfer_size", 0)
                self._counterparts.learn_memory(arguments["dst"], builder.memory.allocate(size))
            address = builder.build_recorded(Struct(spec.name, arguments))
            self._kept[-len(self._kept) - 1 - (1 << 62)] = builder.memory
            _Function(function)(address)
            return
        recorded = [callback.arguments.fields.get(name) for name in spec.fields]
        try:
            values = [self._counterparts.address(each) if isinstance(each, Handle) else 0 for each in recorded]
        except (UnusableError, LostError):
            return
        ctypes.CFUNCTYPE(ctypes.c_void_p, *[ctypes.c_void_p] * len(values))(function)(*values)

    def _compare_contents(self, call: Call) -> None:
        """Compare a buffer that the framework read in place. This plugin's may be elsewhere, so it is copied."""
        buffer = call.arguments.fields["buffer"]
        expected = self._recording.data(call.read)
        if not self._counterparts.has(buffer) or expected is None:
            return
        memory = Memory()
        source, target, size = self._counterparts.address(buffer), memory.allocate(len(expected)), len(expected)
        error, fields = self._table.call_with("PJRT_Buffer_ToHostBuffer", src=source, dst=target, dst_size=size)
        if error is None:
            error, _ = self._table.call_with("PJRT_Event_Await", event=fields["event"])
            self._table.call_with("PJRT_Event_Destroy", event=fields["event"])
        if error is not None:
            self.comparison.find("error", call, "contents", f"the buffer cannot be read, {spelled_error(error)}")
            return
        self.comparison.data(call, _bytes_at(target, size), self._element_type(call), "contents")

    def _learn_key_values(self) -> None:
        for callback in self._recording.callbacks:
            key = self._recording.data(callback.arguments.fields.get("key"))
            value = callback.results.fields.get("value") if callback.results else None
            if key is not None and value is not None:
                self._callbacks.key_values.setdefault(bytes(key), bytes(self._recording.data(value) or b""))


def _numbers(call: Call) -> set[int]:
    return {handle.number for handle in handles_in(call.arguments)}


def _releases(recording: Recording) -> frozenset[int]:
    """Return the events that are ready when a plugin does not use host memory any more which it may use in place.

    One plugin copies, and is done at once. Another one is done when the buffer ends, which a replay must not wait for.
    """
    zero_copy = (HostBufferSemantics.IMMUTABLE_ZERO_COPY, HostBufferSemantics.MUTABLE_ZERO_COPY)
    return frozenset(
        call.results.fields["done_with_host_buffer"].number
        for call in recording.calls
        if call.function == FROM_HOST
        and call.results is not None
        and isinstance(call.results.fields.get("done_with_host_buffer"), Handle)
        and call.arguments.fields.get("host_buffer_semantics") in zero_copy
    )


def _bytes_at(address: int, size: int) -> np.ndarray[Any, Any]:
    memory: Any = (ctypes.c_uint8 * size).from_address(address) if size else b""
    return np.frombuffer(memory, np.uint8)


def _bytes_in(value: Any) -> Any:
    """Return the first bytes in a struct."""
    if isinstance(value, (bytes, Blob)):
        return value
    if isinstance(value, Struct):
        return next((each for each in map(_bytes_in, value.fields.values()) if each is not None), None)
    return None


# The subprocess, which the plugin may crash or hang. The task comes on the standard input. Findings go line by line
# into the file ``answers`` of a folder, the call at work into the file ``progress`` there, which the parent reads when
# the process is gone.

PROGRESS = struct.Struct("<QQ200s")
"""The contents of the file ``progress``: a count of moments, the number of a call, and what it is."""


@dataclass(frozen=True, slots=True)
class Task:
    """The task of the subprocess.

    Attributes:
        recording: the path of the recording.
        open_plugin: a function at the top of a module that opens the plugin: it returns the address of its table, and
            what keeps it open.
        settings: the settings of the replay.
    """

    recording: str
    open_plugin: Callable[[], tuple[int, Any]]
    settings: Settings


def main() -> None:
    """Run the task."""
    folder = Path(sys.argv[1])
    progress = (folder / "progress").open("r+b")
    moments = mmap.mmap(progress.fileno(), PROGRESS.size)
    answers = (folder / "answers").open("w", encoding="utf-8")
    count = 0

    def say(**event: Any) -> None:
        answers.write(json.dumps(event) + "\n")
        answers.flush()

    def move(call: int, text: str) -> None:
        nonlocal count
        count += 1
        PROGRESS.pack_into(moments, 0, count, call, text.encode()[:200])

    def report(finding: ReplayFinding) -> None:
        say(event="finding", **finding.as_dict())

    task: Task = pickle.load(sys.stdin.buffer)
    recording = Recording.open(task.recording)
    move(0, "loading the plugin")
    try:
        address, _keep = task.open_plugin()
    except Exception as error:
        say(event="failed", text=PjrtError.wrap(error).message)
        return
    replayer = Replayer(recording, Table(address), task.settings, move, report)
    replayer.run()
    say(event="end", calls=replayer.calls, skipped=replayer.skipped, notes=replayer.comparison.notes)


if __name__ == "__main__":
    main()
    # Nothing of the plugin is ended: what the recording leaves open, as one that was cut short does, stays open.
    sys.stdout.flush()
    os._exit(0)
