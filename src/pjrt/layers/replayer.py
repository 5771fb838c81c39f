"""The replay of a recording in this process: its calls, made to another plugin, and their results compared."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import PjrtError
from pjrt.capi.layer.schema import CALLBACKS, FUNCTIONS, STRUCTS
from pjrt.host_memory.difference import Difference
from pjrt.host_memory.tolerance import Tolerance
from pjrt.layers.plugin_table import PluginError, PluginTable
from pjrt.layers.recorded_value import Blob, Function, Handle, LeftOut, Pointer, Struct, handles_in
from pjrt.layers.recording import Call, Callback, Recording, Step, functions_in
from pjrt.layers.replay_callbacks import ReplayCallbacks
from pjrt.layers.replay_finding import ReplayFinding, is_specific
from pjrt.layers.struct_memory import Memory, Raw, StructBuilder, StructReader, element_size, host_array

_FROM_HOST = "PJRT_Client_BufferFromHostBuffer"
_LITERAL = "PJRT_AsyncHostToDeviceTransferManager_TransferLiteral"
_ADDRESS = "PJRT_Buffer_OpaqueDeviceMemoryDataPointer"
_EXECUTE = "PJRT_LoadedExecutable_Execute"
_ANSWERED_HERE = ("PJRT_Error_", "PLUGIN_Profiler_", "PJRT_FFI_")
"""Functions that are not called: errors are read as they come, and functions of the recorded process are gone."""


class UnusableError(Exception):
    """A call cannot be made: the plugin has not what it needs."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a replay.

    Attributes:
        tolerance: how far elements of results may be from those of the recording.
        stop_at: the number of the last call; 0 for all.
        seed: the seed of host data that the recording leaves out.
        options: options of the clients, by name; they come before the recorded ones.
        recorded_options: whether clients get the recorded options.
    """

    tolerance: Tolerance = field(default_factory=Tolerance)
    stop_at: int = 0
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    recorded_options: bool = True


@dataclass(slots=True)
class _Read:
    """Host memory that a call fills until its event is ready."""

    call: Call
    array: np.ndarray[Any, Any]
    memory: Memory
    element_type: int


class Replayer:
    """A replay of a recording on a plugin.

    Attributes:
        findings: the differences so far.
        notes: facts that differ lawfully: the function and the field, with the text of both values.
        calls: how many calls were made.
        skipped: how many were not made, since a call before them failed.
    """

    def __init__(
        self,
        recording: Recording,
        table: PluginTable,
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
        self.findings: list[ReplayFinding] = []
        self.notes: dict[str, str] = {}
        self.calls = self.skipped = 0
        self._recording, self._table, self._settings = recording, table, settings
        self._progress, self._report = progress, report
        self._callbacks = ReplayCallbacks(table)
        self._handles: dict[int, int] = {}
        self._lost: dict[int, int] = {}  # handles that are missing, and the call that should have made them
        self._addresses: dict[int, int] = {}
        self._received: dict[int, int] = {}  # functions of the plugin, by their recorded numbers
        self._texts: dict[bytes, bytes] = {}  # what this plugin serialized, by what the recorded one did
        self._reads: dict[int, _Read] = {}  # by the event's number
        self._kept: dict[int, Memory] = {}  # the memory of calls, by the event that ends its use; or minus the call
        self._threads: dict[int, threading.Thread] = {}
        self._failures: list[BaseException] = []
        self._places: dict[int, int] = {}  # how many invocations of each function there were

    def run(self) -> None:
        """Make all calls, in the order and with the overlaps of the recording."""
        self._learn_key_values()
        initialize = "PJRT_Plugin_Initialize"
        is_recorded = any(call.function == initialize for call in self._recording.calls)
        if not is_recorded and self._table.function(initialize) is not None:
            self._progress(0, initialize)
            self._table.call_with(initialize)
        steps = self._recording.steps
        for i, step in enumerate(steps):
            if isinstance(step, Callback):
                self._meet(step)
            elif step.moment == "data":
                if step.call.function == _ADDRESS:
                    self._compare_contents(step.call)
            elif step.moment == "return":
                thread = self._threads.pop(step.call.number, None)
                if thread is not None:
                    self._progress(step.call.number, step.call.function)
                    thread.join()
                self._after(step.call)
            else:
                following = steps[i + 1] if i + 1 < len(steps) else None
                inline = following is None or (isinstance(following, Step) and following.call is step.call)
                self._begin(step.call, inline)
            if self._failures:
                raise self._failures[0]
            last = self._settings.stop_at
            if last and isinstance(step, Step) and step.moment == "return" and step.call.number >= last:
                return

    # ---- what structs need (struct_memory.Context) -------------------------------------------------------------------

    def address(self, handle: Handle) -> int:
        """Return the address of a handle of this plugin.

        Raises:
            UnusableError: there is none.
        """
        if handle.number in self._handles:
            return self._handles[handle.number]
        maker = self._lost.get(handle.number)
        if maker is None:
            raise UnusableError(f"it needs {handle}, which this plugin does not have")
        raise _LostError(f"it needs {handle}, which call {maker} did not make")

    def memory(self, pointer: Pointer) -> int:
        """Return the address that stands for a recorded one.

        Raises:
            UnusableError: it is of memory that the recording does not describe.
        """
        if pointer.address not in self._addresses:
            raise UnusableError(f"it needs the memory at 0x{pointer.address:x} of the recorded process")
        return self._addresses[pointer.address]

    def function(self, function: Function) -> int:
        """Return the address of the function that stands for one of the framework's."""
        return self._callbacks.address(function)

    def data(self, value: Any) -> bytes | memoryview | None:
        """Return the bytes of a text or a blob; of what the recorded plugin serialized, those of this plugin."""
        data = self._recording.data(value)
        if data is not None and self._texts and len(data) > 64:
            return self._texts.get(bytes(data), data)
        return data

    # ---- calls ------------------------------------------------------------------------------------------------------

    def _begin(self, call: Call, inline: bool) -> None:
        self._progress(call.number, call.function)
        if inline:
            self._call(call)
            return

        def run() -> None:
            try:
                self._call(call)
            except BaseException as error:
                self._failures.append(error)

        thread = threading.Thread(target=run, daemon=True)
        self._threads[call.number] = thread
        thread.start()

    def _call(self, call: Call) -> None:
        if call.function.startswith(_ANSWERED_HERE):
            return
        if self._table.function(call.function) is None:
            if call.error is None or call.error.code != 12:  # UNIMPLEMENTED
                self._find("missing", call, "", f"the plugin has no {call.function}")
            self._lose(call)
            return
        try:
            builder = StructBuilder(self, self._num_outputs(call))
            address = self._build(call, builder)
        except _LostError:
            self.skipped += 1
            self._lose(call)
            return
        except (UnusableError, PjrtError) as error:
            self._find("unusable", call, "", f"the call cannot be made: {error}")
            self._lose(call)
            return
        kind = self._element_type(call)
        self.calls += 1
        error = self._table.call(call.function, address)
        self._compare_errors(call, error)
        if error is not None or call.results is None:
            self._lose(call)
            return
        names = [name for name in call.results.fields if name != "struct_size"]
        results = StructReader(builder.num_outputs).read(FUNCTIONS[call.function].args, address, names)
        self._pair_struct(call, call.results, results, "", is_specific(call.function))
        self._keep(call, builder, kind)

    def _build(self, call: Call, builder: StructBuilder) -> int:
        arguments = call.arguments
        if call.function == "PJRT_Client_Create":
            arguments = self._client_arguments(arguments)
        if call.function == "PJRT_Client_DmaMap" and isinstance(arguments.fields["data"], Pointer):
            self._addresses[arguments.fields["data"].address] = Memory().allocate(arguments.fields["size"])
        if call.function in (_FROM_HOST, _LITERAL):
            arguments = Struct(arguments.kind, {k: v for k, v in arguments.fields.items() if k != "data"})
        address = builder.build(arguments)
        if call.data is not None and call.function in (_FROM_HOST, _LITERAL):
            data = self._host_data(call)
            if call.function == _FROM_HOST:
                begin = host_array(data, arguments, builder.memory)
            else:
                begin = builder.memory.copy(data)
            at = address + STRUCTS[arguments.kind].fields["data"].offset
            ctypes.c_uint64.from_address(at).value = begin
        return address

    def _client_arguments(self, arguments: Struct) -> Struct:
        """Return the arguments of ``PJRT_Client_Create`` with the options that the user chose."""
        settings = self._settings
        recorded = arguments.fields.get("create_options") or [] if settings.recorded_options else []
        kept = [each for each in recorded if self._recording.text(each.fields["name"]) not in settings.options]
        options = [*kept, *(_named_value(name, value) for name, value in settings.options.items())]
        return Struct(arguments.kind, {**arguments.fields, "create_options": options, "num_options": len(options)})

    def _host_data(self, call: Call) -> bytes | memoryview:
        if not isinstance(call.data, LeftOut):
            return self._recording.data(call.data) or b""
        generator = np.random.default_rng((self._settings.seed, call.number))
        number = call.arguments.fields.get("type", call.arguments.fields.get("shape_element_type", 0))
        kind = ElementType(number)
        count = call.data.size // element_size(number)
        if kind.is_floating or kind.is_complex:
            return generator.uniform(-1, 1, count).astype(kind.dtype).tobytes()
        return generator.integers(0, 2, count).astype(kind.dtype).tobytes()

    def _num_outputs(self, call: Call) -> int:
        if call.function != _EXECUTE:
            return 0
        loaded = self.address(call.arguments.fields["executable"])
        error, fields = self._table.call_with("PJRT_LoadedExecutable_GetExecutable", loaded_executable=loaded)
        if error is not None:
            raise UnusableError(f"GetExecutable failed: {error.message}")
        executable = fields["executable"]
        error, fields = self._table.call_with("PJRT_Executable_NumOutputs", executable=executable)
        self._table.call_with("PJRT_Executable_Destroy", executable=executable)
        if error is not None:
            raise UnusableError(f"NumOutputs failed: {error.message}")
        return fields["num_outputs"]

    def _element_type(self, call: Call) -> int:
        """Return the element type of the buffer that a call reads, to compare its contents; 0 if it is unknown."""
        source = call.arguments.fields.get("src", call.arguments.fields.get("buffer"))
        if call.read is None or not isinstance(source, Handle) or source.kind != "PJRT_Buffer":
            return 0
        error, fields = self._table.call_with("PJRT_Buffer_ElementType", buffer=self.address(source))
        return 0 if error is not None else fields["type"]

    def _keep(self, call: Call, builder: StructBuilder, kind: int) -> None:
        """Keep the memory of a call as long as the plugin may use it."""
        events = [
            each for each in handles_in(call.results) if each.kind == "PJRT_Event" and each.number in self._handles
        ]
        fields = STRUCTS[call.arguments.kind].fields.values()
        if not any("KEEPS" in each.marks or each.kind in ("CALLBACK", "STRUCT") for each in fields):
            return
        event = events[0].number if len(events) == 1 else -call.number
        self._kept[event] = builder.memory
        if call.read is not None and builder.filled and event > 0:
            address, size = next(iter(builder.filled.values()))
            array = np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)
            self._reads[event] = _Read(call, array, builder.memory, kind)

    def _lose(self, call: Call) -> None:
        for handle in handles_in(call.results):
            if handle.number not in self._handles:
                self._lost.setdefault(handle.number, call.number)

    # ---- moments of the recording -----------------------------------------------------------------------------------

    def _after(self, call: Call) -> None:
        """Do what belongs to the return of a call: look at memory that is ready now."""
        event = call.arguments.fields.get("event")
        if not isinstance(event, Handle) or event.number not in self._handles:
            return
        if call.function == "PJRT_Event_Await" and call.error is None:
            self._ready(event.number)
        elif call.function == "PJRT_Event_IsReady" and call.results and call.results.fields.get("is_ready"):
            # The recorded plugin was done here. This one may take longer, and what comes next relies on it.
            self._table.call_with("PJRT_Event_Await", event=self._handles[event.number])
            self._ready(event.number)
        elif call.function == "PJRT_Event_Destroy":
            self._handles.pop(event.number, None)

    def _meet(self, callback: Callback) -> None:
        """Wait for a call of the plugin that the recorded one made here; or make one of the framework's to it."""
        place = self._places.get(callback.function, 0)
        self._places[callback.function] = place + 1
        if callback.function in self._received:
            self._call_plugin(callback)
            return
        if not self._callbacks.knows(callback.function):
            return
        call = next((each for each in self._recording.calls if _gives(each, callback.function)), None)
        number = call.number if call is not None else 0
        self._progress(number, f"{callback.kind} of {call.function if call else 'an unknown call'}")
        invocation = self._callbacks.wait(callback.function, place)
        for handle in handles_in(callback.arguments):
            if invocation.handle is not None and handle.kind == invocation.handle.kind:
                self._handles[handle.number] = invocation.handle.address
        if call is None:
            return
        if callback.kind == "PJRT_Event_OnReadyCallback":
            recorded = callback.error
            found = invocation.error
            if (recorded is None) != (found is None) or (recorded and found and recorded.code != found.code):
                self._find(
                    "error" if recorded is None else "no error" if found is None else "code",
                    call,
                    "callback",
                    f"the recorded event ended with {_spelled_error(recorded)}, this one with {_spelled_error(found)}",
                )
            event = call.arguments.fields.get("event")
            if isinstance(event, Handle) and found is None:
                self._ready(event.number)
        elif invocation.data is not None:
            expected = self._recording.data(_bytes_in(callback.arguments))
            if expected is not None and bytes(expected) != invocation.data:
                self._find("data", call, callback.kind, f"{len(invocation.data)} bytes of host data differ")

    def _call_plugin(self, callback: Callback) -> None:
        spec = STRUCTS[CALLBACKS[callback.kind].args]
        values = []
        for name in spec.fields:
            value = callback.arguments.fields.get(name)
            try:
                values.append(self.address(value) if isinstance(value, Handle) else 0)
            except (UnusableError, _LostError):
                return
        prototype = ctypes.CFUNCTYPE(ctypes.c_void_p, *[ctypes.c_void_p] * len(values))
        prototype(self._received[callback.function])(*values)

    def _ready(self, event: int) -> None:
        self._kept.pop(event, None)
        read = self._reads.pop(event, None)
        if read is not None:
            self._compare_data(read)

    # ---- comparison -------------------------------------------------------------------------------------------------

    def _find(self, kind: str, call: Call, place: str, text: str) -> None:
        finding = ReplayFinding(kind, call.number, call.function, place, text)
        self.findings.append(finding)
        self._report(finding)

    def _compare_errors(self, call: Call, found: PluginError | None) -> None:
        recorded = call.error
        if recorded is None and found is None:
            return
        if recorded is None:
            if call.duration is not None:
                self._find("error", call, "", f"succeeded in the recording, failed here: {_spelled_error(found)}")
        elif found is None:
            self._find("no error", call, "", f"failed in the recording with {_spelled_error(recorded)}, not here")
        elif recorded.code != found.code:
            self._find(
                "code", call, "", f"failed with {_spelled_error(recorded)}; failed here with {_spelled_error(found)}"
            )

    def _pair_struct(self, call: Call, recorded: Struct, found: Struct, place: str, specific: bool) -> None:
        spec = STRUCTS[recorded.kind].fields.values()
        counts = {each.count for each in spec if each.name in recorded.fields}  # compared with what they count
        for name, value in recorded.fields.items():
            if name in ("struct_size", "extension_start") or name in counts:
                continue
            self._pair(call, value, found.fields.get(name), f"{place}.{name}" if place else name, specific)

    def _pair(self, call: Call, recorded: Any, found: Any, place: str, specific: bool) -> None:
        """Compare a result with the recorded one; learn the handles, functions and addresses in it."""
        if recorded in ([], None) and found in ([], None):
            return
        if isinstance(recorded, Handle):
            if isinstance(found, Raw):
                self._handles[recorded.number] = found.address
            else:
                self._lost.setdefault(recorded.number, call.number)
                self._find("value", call, place, f"the recorded plugin returned {recorded}, this one a null pointer")
        elif isinstance(recorded, Function):
            if isinstance(found, Pointer):
                self._received[recorded.number] = found.address
        elif isinstance(recorded, Pointer):
            if isinstance(found, Pointer):
                self._addresses[recorded.address] = found.address
        elif isinstance(recorded, Struct) and isinstance(found, Struct):
            self._pair_struct(call, recorded, found, place, specific)
        elif isinstance(recorded, list) and isinstance(found, list):
            of_handles = any(isinstance(each, Handle) for each in recorded)
            if len(recorded) != len(found):
                text = f"{len(recorded)} elements in the recording, {len(found)} here"
                self._differ(call, place, text, specific or of_handles)
            for i, (old, new) in enumerate(zip(recorded, found, strict=False)):
                self._pair(call, old, new, f"{place}[{i}]", specific)
        else:
            self._pair_plain(call, recorded, found, place, specific)

    def _pair_plain(self, call: Call, recorded: Any, found: Any, place: str, specific: bool) -> None:
        if isinstance(recorded, (bytes, Blob)):
            data = self._recording.data(recorded)
            recorded = b"" if data is None else bytes(data)
            if specific and isinstance(found, bytes) and found != recorded:
                self._texts[recorded] = found
        if recorded != found and not isinstance(found, Raw):
            self._differ(call, place, f"{_spelled(recorded)} in the recording, {_spelled(found)} here", specific)

    def _differ(self, call: Call, place: str, text: str, lawful: bool) -> None:
        if lawful:
            self.notes.setdefault(call.function, f"{place}: {text}")
        else:
            self._find("value", call, place, text)

    def _compare_data(self, read: _Read, place: str = "dst") -> None:
        expected = self._recording.data(read.call.read)
        if expected is None:
            return
        old, new = np.frombuffer(expected, np.uint8), read.array
        if old.size != new.size:
            self._find("data", read.call, place, f"{old.size} bytes in the recording, {new.size} here")
            return
        if np.array_equal(old, new):
            return
        try:
            dtype = ElementType(read.element_type).dtype
            old, new = old.view(dtype), new.view(dtype)
        except (ValueError, PjrtError):
            self._find("data", read.call, place, f"{int((old != new).sum())} of {old.size} bytes differ")
            return
        difference = Difference.of(new, old, self._settings.tolerance)
        if not difference.agrees:
            self._find("data", read.call, place, str(difference))

    def _compare_contents(self, call: Call) -> None:
        """Compare a buffer that the framework read in place. This plugin's may be elsewhere, so it is copied."""
        buffer = call.arguments.fields["buffer"]
        if buffer.number not in self._handles or not isinstance(call.read, (bytes, Blob)):
            return
        expected = self._recording.data(call.read) or b""
        kind = self._element_type(call)
        memory = Memory()
        address = memory.allocate(len(expected))
        source = self._handles[buffer.number]
        to_host = "PJRT_Buffer_ToHostBuffer"
        error, fields = self._table.call_with(to_host, src=source, dst=address, dst_size=len(expected))
        if error is None:
            error, _ = self._table.call_with("PJRT_Event_Await", event=fields["event"])
            self._table.call_with("PJRT_Event_Destroy", event=fields["event"])
        if error is not None:
            self._find("error", call, "contents", f"the buffer cannot be read: {_spelled_error(error)}")
            return
        array = np.frombuffer((ctypes.c_uint8 * len(expected)).from_address(address), np.uint8)
        self._compare_data(_Read(call, array, memory, kind), "contents")

    def _learn_key_values(self) -> None:
        for callback in self._recording.callbacks:
            key = self._recording.data(callback.arguments.fields.get("key"))
            value = callback.results.fields.get("value") if callback.results else None
            if key is not None and value is not None:
                self._callbacks.key_values.setdefault(bytes(key), bytes(self._recording.data(value) or b""))


class _LostError(Exception):
    """A call needs what an earlier call of this replay failed to make."""


def _gives(call: Call, function: int) -> bool:
    return any(each.number == function for each in functions_in(call.arguments))


def _bytes_in(value: Any) -> Any:
    """Return the first bytes in a struct."""
    if isinstance(value, (bytes, Blob)):
        return value
    if isinstance(value, Struct):
        return next((each for each in map(_bytes_in, value.fields.values()) if each is not None), None)
    return None


def _named_value(name: str, value: Any) -> Struct:
    number = {str: 0, bool: 4, int: 1, float: 3}.get(type(value), 2)
    plain = value.encode() if isinstance(value, str) else list(value) if number == 2 else value
    return Struct("PJRT_NamedValue", {"name": name.encode(), "type": number, "value": plain})


def _spelled(value: Any) -> str:
    text = repr(value.decode("utf-8", "replace")) if isinstance(value, bytes) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _spelled_error(error: Any) -> str:
    if error is None:
        return "no error"
    from pjrt.api.errors import StatusCode

    try:
        name = StatusCode(error.code).name
    except ValueError:
        name = f"code {error.code}"
    return f"{name}: {error.message.strip()[:300]}"
