"""Profiles of devices by operation: what a plugin's profiler recorded, as a table and for trace viewers."""

from __future__ import annotations

import functools
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pjrt.api.errors import DataLossError
from pjrt.models.output_path import writing
from pjrt.stablehlo.encodings import hlo_proto

if TYPE_CHECKING:
    from pjrt.api.protobuf import MessageTable

# As in ``tsl/profiler/protobuf/xplane.proto``. Names are bytes: of a string protobuf demands UTF-8.
_MESSAGES: MessageTable = {
    "XSpace": {"planes": (1, "[XPlane]")},
    "XPlane": {
        "name": (2, "bytes"),
        "lines": (3, "[XLine]"),
        "event_metadata": (4, "[EventEntry]"),
        "stat_metadata": (5, "[StatEntry]"),
    },
    "XLine": {
        "name": (2, "bytes"),
        "timestamp_ns": (3, "int64"),
        "events": (4, "[XEvent]"),
        "display_name": (11, "bytes"),
    },
    "XEvent": {
        "metadata_id": (1, "int64"),
        "offset_ps": (2, "int64"),
        "duration_ps": (3, "int64"),
        "stats": (4, "[XStat]"),
    },
    "XStat": {
        "metadata_id": (1, "int64"),
        "str_value": (5, "bytes", "value"),
        "bytes_value": (6, "bytes", "value"),
        "ref_value": (7, "uint64", "value"),
    },
    "EventEntry": {"key": (1, "int64"), "value": (2, "XEventMetadata")},
    "XEventMetadata": {"name": (2, "bytes"), "display_name": (4, "bytes"), "stats": (5, "[XStat]")},
    "StatEntry": {"key": (1, "int64"), "value": (2, "XStatMetadata")},
    "XStatMetadata": {"name": (2, "bytes")},
}

_OPERATION, _MODULE, _HLO_PROTO = "hlo_op", "hlo_module", "Hlo Proto"
"""The stats that name the operation and the module of an event, and the one that holds a module."""

_LINE_OF_OPERATIONS = "XLA Ops"
_DEVICE = "/device:"

_UNTOLD = frozenset(
    ("parameter", "constant", "broadcast", "bitcast", "tuple", "get-tuple-element", "copy", "reshape", "iota")
)
"""Opcodes that say little about what a merged operation computes."""

_TOLD_FIRST = frozenset(
    ("convolution", "dot", "reduce", "reduce-window", "select-and-scatter", "scatter", "gather", "sort", "custom-call")
)
_MOST_OPCODES = 4


class Event(NamedTuple):
    """Something that lasted, in picoseconds; ``operation`` is empty where it is no operation of a program."""

    name: str
    begin: int
    duration: int
    operation: str = ""
    module: str = ""


@dataclass(frozen=True)
class Track:
    """A line of a trace viewer with its events: a thread of the host, or a queue of a device."""

    process: str
    name: str
    events: Sequence[Event]


@dataclass
class OperationTime:
    """The runs of an operation, and the seconds that they took without the operations inside it.

    Attributes:
        merges: the opcodes of a fusion's operations, and the operation's name in the author's program if it has one.
    """

    calls: int = 0
    seconds: float = 0.0
    merges: str = ""


@dataclass(frozen=True)
class DeviceProfile:
    """A recording of a plugin's profiler (an ``XSpace``), by operation.

    Attributes:
        tracks: the threads and queues.
        by_operation: the time of each operation, the most expensive first. These are the operations that the device's
            compiler made, which merges those of the program. Where the recording names none, they are what the devices
            did. Operations may run at the same time, so that they take more than the run together.
    """

    tracks: Sequence[Track]
    by_operation: Mapping[str, OperationTime]

    @staticmethod
    def of(recorded: bytes) -> DeviceProfile:
        """Return the profile in what ``Profiler.collect`` gave.

        Raises:
            DataLossError: the bytes are no ``XSpace``.
        """
        from google.protobuf.message import DecodeError

        try:
            space = _classes()["XSpace"].FromString(recorded)
        except DecodeError as error:
            raise DataLossError(f"expected a serialized XSpace, found {len(recorded)} other bytes: {error}") from error
        planes = [_Plane(plane) for plane in space.planes]
        merges: dict[str, str] = {}
        for plane in planes:
            for module in plane.modules():
                merges.update(_merged(module))
        tracks = [track for plane in planes for track in plane.tracks()]
        return DeviceProfile(tracks, _by_operation(tracks, merges))

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Return the time of each operation in machine-readable form."""
        return {
            name: {"calls": each.calls, "seconds": each.seconds, "merges": each.merges}
            for name, each in self.by_operation.items()
        }

    def table(self) -> str:
        """Return the time of each operation as human-readable text, the most expensive first."""
        total = sum(each.seconds for each in self.by_operation.values()) or 1.0
        rows = [f"{'ms':>10} {'%':>6} {'calls':>8} {'us/call':>10}  operation"]
        rows += [
            f"{e.seconds * 1e3:10.3f} {e.seconds / total * 100:6.1f} {e.calls:8d} {e.seconds / e.calls * 1e6:10.2f}  "
            f"{name}{f'  ({e.merges})' if e.merges else ''}"
            for name, e in self.by_operation.items()
        ]
        return "\n".join(rows)


def write_timeline(tracks: Iterable[Track], path: str | os.PathLike[str], *, option: str = "") -> None:
    """Write tracks to a file in the JSON format of Chrome, which Perfetto (ui.perfetto.dev) opens.

    Args:
        tracks: the tracks. Events that took no time are left out.
        path: the file.
        option: the option of the command that has the path, for messages.

    Raises:
        InvalidArgumentError: the file cannot be written.
    """
    with writing(path, option=option), open(path, "w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
        encode = json.JSONEncoder(separators=(",", ":")).encode
        for number, event in enumerate(_chrome_events(list(tracks))):
            file.write(",\n" if number else "")
            file.write(encode(event))
        file.write("\n]}\n")


def _chrome_events(tracks: Sequence[Track]) -> Iterator[dict[str, Any]]:
    shown = [(track, [each for each in track.events if each.duration > 0]) for track in tracks]
    origin = min((each.begin for _, events in shown for each in events), default=0)
    processes: dict[str, int] = {}
    for thread, (track, events) in enumerate((pair for pair in shown if pair[1]), 1):
        process = processes.setdefault(track.process, len(processes) + 1)
        if process == len(processes):
            yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": track.process}}
        yield {"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": {"name": track.name}}
        for each in events:
            place = {"pid": process, "tid": thread, "ts": (each.begin - origin) / 1e6, "dur": each.duration / 1e6}
            yield {"ph": "X", "name": each.name, **place, **({"args": {"in": each.module}} if each.module else {})}


@functools.cache
def _classes() -> dict[str, Any]:
    from pjrt.api.protobuf import message_classes  # here: protobuf takes long to import

    return message_classes("pjrt.xspace", _MESSAGES)


def _text(name: bytes) -> str:
    return name.decode(errors="replace")


class _Plane:
    """A plane of an ``XSpace``: a host or a device, with the names of its events and stats."""

    def __init__(self, plane: Any) -> None:
        self._plane = plane
        self._name = _text(plane.name)
        self._events = {each.key: each.value for each in plane.event_metadata}
        self._stats = {each.key: _text(each.value.name) for each in plane.stat_metadata}

    def modules(self) -> Iterator[bytes]:
        """Yield the modules that the plane tells of."""
        for event in self._events.values():
            for stat in event.stats:
                if self._stats.get(stat.metadata_id) == _HLO_PROTO and stat.bytes_value:
                    yield stat.bytes_value

    def tracks(self) -> Iterator[Track]:
        for line in self._plane.lines:
            name = _text(line.display_name or line.name)
            yield Track(self._name, name, [self._event(line.timestamp_ns, name, event) for event in line.events])

    def _event(self, since: int, line: str, event: Any) -> Event:
        metadata = self._events.get(event.metadata_id)
        stats = {
            self._stats.get(stat.metadata_id, ""): self._stats.get(stat.ref_value, "") or _text(stat.str_value)
            for stat in (*(metadata.stats if metadata else ()), *event.stats)
        }
        name = _text(metadata.display_name or metadata.name) if metadata else f"event {event.metadata_id}"
        operation = stats.get(_OPERATION, "") or (name if line == _LINE_OF_OPERATIONS else "")
        return Event(name, since * 1000 + event.offset_ps, event.duration_ps, operation, stats.get(_MODULE, ""))


def _by_operation(tracks: Sequence[Track], merges: Mapping[str, str]) -> Mapping[str, OperationTime]:
    if not any(each.operation for track in tracks for each in track.events):
        # What devices did, by their queues: a queue may tell of a launch, and another one of its parts.
        tracks = [
            Track(track.process, track.name, [each._replace(operation=f"{track.name}: {each.name}") for each in events])
            for track in tracks
            if track.process.startswith(_DEVICE) and (events := track.events)
        ]
    modules = {each.module for track in tracks for each in track.events if each.operation}
    found: defaultdict[str, OperationTime] = defaultdict(OperationTime)
    for track in tracks:
        for event, seconds in _own_seconds([each for each in track.events if each.operation]):
            name = f"{event.operation} of {event.module}" if len(modules) > 1 else event.operation
            entry = found[name]
            entry.calls += 1
            entry.seconds += seconds
            entry.merges = merges.get(event.operation, "")
    return dict(sorted(found.items(), key=lambda item: -item[1].seconds))


def _own_seconds(events: Iterable[Event]) -> Iterator[tuple[Event, float]]:
    """Yield the events of a track with the seconds of each without those inside it, such as the body of a loop."""
    around: list[tuple[Event, int]] = []  # those that have not ended, with the picoseconds of the ones inside
    for event in sorted(events, key=lambda each: (each.begin, -each.duration)):
        while around and around[-1][0].begin + around[-1][0].duration <= event.begin:
            yield _own(*around.pop())
        if around:
            around[-1] = (around[-1][0], around[-1][1] + event.duration)
        around.append((event, 0))
    yield from (_own(*each) for each in around)


def _own(event: Event, inside: int) -> tuple[Event, float]:
    return event, max(event.duration - inside, 0) / 1e12


def _merged(serialized: bytes) -> Iterator[tuple[str, str]]:
    """Yield the name of each operation of a module, with what it merges and its name in the author's program."""
    try:
        place = hlo_proto.screen(serialized)
        module = hlo_proto.parse_message("HloModuleProto", serialized[place.begin : place.end])
    except DataLossError:
        return  # a newer XLA's: the names of operations do without it
    computations = {each.id: each for each in module.computations}
    for computation in module.computations:
        for instruction in computation.instructions:
            inside = [
                _text(each.opcode)
                for called in instruction.called_computation_ids
                if instruction.opcode == b"fusion" and called in computations
                for each in computations[called].instructions
            ]
            told = list(dict.fromkeys(opcode for opcode in inside if opcode not in _UNTOLD))
            told.sort(key=lambda opcode: opcode not in _TOLD_FIRST)
            opcodes = [*told[:_MOST_OPCODES], *(["…"] if len(told) > _MOST_OPCODES else [])]
            origin = _text(instruction.metadata.op_name)
            yield _text(instruction.name), "; ".join(filter(None, (", ".join(opcodes), origin)))
