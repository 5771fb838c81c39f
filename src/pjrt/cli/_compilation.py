"""One program, compiled for one topology: the facts that ``pjrt compile`` reports, and their tables."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pjrt
from pjrt import stablehlo
from pjrt.api.capability import check_memory
from pjrt.api.compile_options import DeviceAssignment
from pjrt.api.errors import naming
from pjrt.api.printable import readable_bytes
from pjrt.artifacts.compilation_cache import CompilationCache
from pjrt.cli._console import console, echo, error_as_dict, one_line, print_facts, print_table, progress, readable
from pjrt.cli._options import cache_as_dict, cache_outcome, split_place
from pjrt.stablehlo import Cost, PeakMemory


@dataclass
class Compilation:
    """One program, compiled for one topology.

    Attributes:
        place: the topology as the user names it.
        facts: what the topology and the compiler report; without the executable's where it could not be compiled.
        topology: the topology; None if there is none of that name.
        executable: the executable; None if it could not be compiled.
        code: the program as it was compiled.
        error: why it cannot run there; None if it can.
    """

    place: str
    facts: dict[str, Any] = field(default_factory=dict)
    topology: pjrt.TopologyDescription | None = None
    executable: pjrt.Executable | None = None
    code: pjrt.Program | None = None
    error: pjrt.PjrtError | None = None

    @property
    def fits(self) -> bool | None:
        """Whether the program fits into the memory of each device; None if that is unknown."""
        if isinstance(self.error, pjrt.ResourceExhaustedError):
            return False
        needed, limit = self.facts.get("memory_needed_in_bytes"), self.facts.get("memory_limit_in_bytes")
        return None if self.error is not None or needed is None or limit is None else True

    def as_dict(self) -> dict[str, Any]:
        """Return the facts as ``--json`` prints them."""
        return {**self.facts, **(error_as_dict(self.error) if self.error is not None else {})}


def compile_for(
    place: str,
    options: dict[str, Any],
    how: pjrt.CompileOptions,
    path: str,
    code_for: Callable[[str], pjrt.Program],
    cache: CompilationCache | None = None,
) -> Compilation:
    """Compile a program for a topology.

    Args:
        place: the plugin and the name of the topology, such as ``tpu:v5e:2x2``.
        options: the topology's options.
        how: the compile options.
        path: the program's file, for messages.
        code_for: returns the program for a platform.
        cache: a compilation cache; None compiles in any case.

    Returns:
        The facts. An error is in them, whatever failed.
    """
    compilation = Compilation(place)
    try:
        _compile(compilation, options, how, path, code_for, cache)
    except pjrt.PjrtError as error:
        compilation.error = error
        _read_numbers(compilation)
    return compilation


def _compile(
    compilation: Compilation,
    options: dict[str, Any],
    how: pjrt.CompileOptions,
    path: str,
    code_for: Callable[[str], pjrt.Program],
    cache: CompilationCache | None,
) -> None:
    plugin, name = split_place(compilation.place)
    with progress(f"asking {plugin} for the topology"):
        topology = compilation.topology = pjrt.topology(plugin, name, **options)
    device = topology.device_descriptions[0]
    compilation.facts |= {
        "topology": compilation.place,
        "platform": topology.platform_name,
        "platform_version": topology.platform_version,
        "device_kind": device.kind,
        "num_devices": len(topology.device_descriptions),
        "memory_limit_in_bytes": device.memory_limit_in_bytes,
    }
    how = _placed(topology, how)
    with progress("reading the program"), naming(path):
        compilation.code = code_for(topology.platform_name)
    begin = time.perf_counter()
    with progress(f"compiling for {device.kind}"), naming(path):
        code = compilation.code
        if cache is None:
            executable = topology.compile(code, how)
        else:
            hits = cache.hits
            executable = cache.compile(topology, code, how)
            compilation.facts["cache"] = cache_as_dict(cache, hits)
        compilation.executable = executable
    stats = _if_offered(executable.memory_stats)
    compilation.facts |= {
        "executable": executable.name,
        "num_replicas": executable.num_replicas,
        "num_partitions": executable.num_partitions,
        "compile_seconds": time.perf_counter() - begin,
        "memory_needed_in_bytes": None if stats is None else stats.needed_in_bytes,
        "memory": None if stats is None else stats._asdict(),
        "cost": _if_offered(lambda: dict(executable.cost_analysis())),
    }
    check_memory(executable, device.memory_limit_in_bytes)


def _placed(topology: pjrt.TopologyDescription, how: pjrt.CompileOptions) -> pjrt.CompileOptions:
    """Return the options with the devices of the lowest ids, if the program is for several and not for all of them.

    The compiler for TPUs chooses others by default, and then refuses its own choice.

    Raises:
        InvalidArgumentError: the topology has too few devices.
    """
    replicas, partitions = how.partitioning.num_replicas, how.partitioning.num_partitions
    needed, available = replicas * partitions, len(topology.device_descriptions)
    if needed > available:
        raise pjrt.InvalidArgumentError(
            f"{how.partitioning} need {needed} devices, the topology has {available}; choose a larger one"
        )
    if needed in (1, available) or how.device_assignment is not None:
        return how
    ids = sorted(device.id for device in topology.device_descriptions)[:needed]
    rows = tuple(tuple(ids[row * partitions : (row + 1) * partitions]) for row in range(replicas))
    return dataclasses.replace(how, device_assignment=DeviceAssignment(rows))


def _if_offered(question: Callable[[], Any]) -> Any:
    """Return the answer to a question, or ``None`` if the compiler does not answer it."""
    try:
        return question()
    except pjrt.UnimplementedError:
        return None


# XLA's compiler for TPUs refuses a program that does not fit, and has its numbers in the message.
_USED_OF = re.compile(
    r"\((?P<used>[\d.]+[KMGT]?)\) exceeds available \w+ \((?P<of>[\d.]+[KMGT]?)\)"
    r"|Used (?P<used_before>[\d.]+[KMGT]?) of (?P<of_before>[\d.]+[KMGT]?)"
)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def _read_numbers(compilation: Compilation) -> None:
    match = _USED_OF.search(compilation.error.message) if compilation.error is not None else None
    if match is None or "memory_needed_in_bytes" in compilation.facts:
        return
    used, available = (match[name] or match[f"{name}_before"] for name in ("used", "of"))
    compilation.facts["memory_needed_in_bytes"] = _bytes(used)
    compilation.facts["memory_limit_in_bytes"] = _bytes(available)


def _bytes(text: str) -> int:
    unit = text[-1] if text[-1] in _UNITS else ""
    return round(float(text.removesuffix(unit)) * _UNITS[unit])


@dataclass(frozen=True)
class Count:
    """The work and the memory of one device, counted from the program.

    Attributes:
        cost: the work.
        peak: the memory.
        problem: why it cannot be counted; then both are None.
    """

    cost: Cost | None
    peak: PeakMemory | None
    problem: str = ""

    @staticmethod
    def of(code: pjrt.Program, how: pjrt.CompileOptions, topology: pjrt.TopologyDescription | None = None) -> Count:
        """Count a program; arrays take as many bytes as the devices of a topology say."""
        try:
            with progress("counting the work and the memory"):
                parsed = stablehlo.parse_for_one_device(code, how)
                size_of = None if topology is None else topology.size_of
                return Count(stablehlo.cost(parsed), stablehlo.peak_memory(parsed, size_of=size_of))
        except pjrt.PjrtError as error:
            return Count(None, None, error.message)

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers as ``--json`` prints them."""
        if self.cost is None or self.peak is None:
            return {"problem": self.problem}
        return {
            "cost": self.cost.as_dict(),
            "notes": [
                {"operation": each.name, "note": each.note, "at": str(each.location)} for each in self.cost.notes
            ],
            "collectives": [
                {
                    "kind": each.kind,
                    "group_size": each.group_size,
                    "times": each.times,
                    "operand_bytes": each.operand_bytes,
                    "sent_bytes": each.sent_bytes,
                }
                for each in self.cost.collective_totals
            ],
            "peak_memory_in_bytes": self.peak.nbytes,
            "arrays": [
                {
                    "name": each.name,
                    "role": each.role,
                    "type": str(each.type),
                    "shape": each.shape,
                    "bytes": each.nbytes,
                    "donated": each.is_donated,
                    "at": str(each.location) if each.location.is_known else "",
                }
                for each in self.peak.arrays
            ],
        }


# The tables.

_BAR_WIDTH = 40
_BESIDE_BAR = 50
"""The width of the memory table without its bars."""

_PARTS = (
    ("arguments", "argument_size_in_bytes"),
    ("results", "output_size_in_bytes"),
    ("temporaries", "temp_size_in_bytes"),
    ("code", "generated_code_size_in_bytes"),
)


def print_one(facts: dict[str, Any], count: Count | None) -> None:
    """Print the facts about one topology; ``count`` is for what the compiler does not report."""
    replicas, partitions = facts["num_replicas"], facts["num_partitions"]
    lines: list[tuple[str, object]] = [
        ("program", facts["executable"]),
        ("topology", f"{facts['num_devices']} × {facts['device_kind']} ({facts['platform']})"),
        ("runs on", f"{replicas * partitions} of them: {replicas} replicas × {partitions} partitions"),
        ("compiled in", readable(facts["compile_seconds"])),
    ]
    if "cache" in facts:
        lines.append(("cache", cache_outcome(facts["cache"])))
    if "output" in facts:
        lines.append(("saved as", f"{facts['output']} ({readable_bytes(facts['output_size_in_bytes'])})"))
    print_facts(lines)
    _print_memory(facts["memory"], facts["memory_needed_in_bytes"], facts["memory_limit_in_bytes"], count)
    print_cost(facts["cost"], count)


def print_several(compilations: Sequence[Compilation]) -> None:
    """Print a table with a row for each topology."""
    rows = []
    for each in compilations:
        facts, memory = each.facts, each.facts.get("memory") or {}
        sizes = [_size(memory.get(name)) for _, name in _PARTS[:3]]
        seconds = facts.get("compile_seconds")
        rows.append(
            (
                each.place,
                facts.get("num_devices", ""),
                *sizes,
                _size(facts.get("memory_needed_in_bytes")),
                _size(facts.get("memory_limit_in_bytes")),
                "" if seconds is None else readable(seconds),
                _answer(each),
            )
        )
    columns = ["topology", "devices", *(name for name, _ in _PARTS[:3]), "peak", "of", "compiled in", "fits"]
    print_table(columns, rows, right=columns[1:8])
    for each in compilations:
        if each.error is not None:
            echo(f"{each.place}: {one_line(each.error)}")


def _size(count: int | None) -> str:
    return "" if count is None else readable_bytes(count)


def _answer(compilation: Compilation) -> str:
    if compilation.fits is None:
        return "error" if compilation.error is not None else "unknown"
    return "yes" if compilation.fits else "no"


def print_largest(count: Count, most: int) -> None:
    """Print the largest arrays at the peak of memory."""
    if count.peak is None:
        echo(f"\nThe largest arrays are unknown: {count.problem}")
        return
    peak = count.peak
    rows = [
        (
            readable_bytes(each.nbytes),
            f"{each.nbytes / peak.nbytes:.1%}" if peak.nbytes else "",
            f"{each.name} (donated)" if each.is_donated else each.name,
            each.role,
            each.type,
            each.location if each.location.is_known else "",
        )
        for each in peak.arrays[:most]
    ]
    print_table(["largest arrays", "share", "name", "role", "type", "from"], rows, right=["largest arrays", "share"])
    at = ""
    if peak.operation is not None:
        place = f" at {peak.operation.location}" if peak.operation.location.is_known else ""
        at = f", while {peak.operation.name} runs{place}"
    echo(
        f"Counted from the program: {readable_bytes(peak.nbytes)} on each device in {len(peak.arrays)} arrays{at}. "
        "A compiler may need more or less."
    )


def _print_memory(memory: dict[str, int] | None, needed: int | None, limit: int | None, count: Count | None) -> None:
    if memory is None or needed is None:
        echo("\nThis compiler does not report the memory that the program needs.")
        if count is not None and count.peak is not None:
            of = f" of {readable_bytes(limit)}" if limit else ""
            echo(f"Counted from the program: at most {readable_bytes(count.peak.nbytes)}{of} at one time.")
        return
    of = f"of {readable_bytes(limit)}" if limit else "of what it needs"
    whole, width = limit or needed, min(_BAR_WIDTH, console().width - _BESIDE_BAR)
    rows = [(label, readable_bytes(memory[field]), *_bar(memory[field], whole, width)) for label, field in _PARTS]
    if memory["alias_size_in_bytes"]:
        rows.insert(2, ("both at once", readable_bytes(memory["alias_size_in_bytes"]), "", ""))
    rows.append(("needed", readable_bytes(needed), *_bar(needed, whole, width)))
    print_table(["memory of each device", "size", of, "share"], rows, right=["size", "share"])
    if needed != sum(memory[field] for _, field in _PARTS) - memory["alias_size_in_bytes"]:
        echo("'needed' is the compiler's peak, the most memory in use at one time, not the sum of the rows.")


def print_cost(cost: dict[str, float] | None, count: Count | None) -> None:
    """Print the work of a run: the compiler's numbers, or else those that are counted from the program."""
    shown = [
        ("FLOPs", "flops", _readable_count),
        ("transcendentals", "transcendentals", _readable_count),
        ("bytes moved", "bytes accessed", readable_bytes),
        ("time at best", "optimal_seconds", readable),
    ]
    counted = count.cost if count is not None else None
    numbers = cost or (counted.as_dict() if counted is not None else {})
    rows = [(label, convert(numbers[key])) for label, key, convert in shown if numbers.get(key, -1) >= 0]
    if counted is not None:
        for total in counted.collective_totals:
            among = "" if total.group_size is None else f" among {total.group_size} devices"
            rows.append((f"sent by {total.times} × {total.kind}{among}", readable_bytes(total.sent_bytes)))
    if rows:
        print_table(["work of each device", "a run"], rows, right=["a run"])
    if not cost:
        echo("No compiler reports the work of the program.")
        if counted is not None:
            echo("The numbers are counted from the program before it is optimized.")
        elif count is not None:
            echo(f"It cannot be counted from the program: {count.problem}")
    if counted is not None and not cost:
        for note, times in _notes(count).items():
            echo(f"Note: {note}{f' ({times} times)' if times > 1 else ''}.")


def _notes(count: Count | None) -> dict[str, int]:
    notes: dict[str, int] = {}
    for each in count.cost.notes if count is not None and count.cost is not None else ():
        text = f"{each.name}: {each.note}"
        notes[text] = notes.get(text, 0) + 1
    return notes


def _bar(amount: int, whole: int, width: int) -> tuple[str, str]:
    """Return a part as a bar and as a percentage; a part above zero has at least one mark."""
    share = amount / whole if whole else 0.0
    filled = min(width, max(round(share * width), 1 if amount else 0))
    percent = "<0.1%" if 0 < share < 0.001 else f"{share:.1%}"
    return "█" * filled + "░" * (width - filled), percent


def _readable_count(count: float) -> str:
    for unit, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f}"
