"""The comparison of a replay's results with those of the recording."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import PjrtError
from pjrt.capi.layer.schema import STRUCTS
from pjrt.capi.raw.struct import Struct
from pjrt.capi.raw.table import Error, code_name
from pjrt.host_memory.difference import Difference
from pjrt.host_memory.tolerance import Tolerance
from pjrt.layers.recording.recorded_value import Blob, Function, Handle, Pointer
from pjrt.layers.recording.recording import Call, RecordedError, Recording
from pjrt.layers.replay.counterparts import Counterparts
from pjrt.layers.replay.replay_finding import ReplayFinding, is_specific
from pjrt.layers.replay.struct_reader import Raw


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
