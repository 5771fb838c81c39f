"""The tables that ``pjrt compile`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pjrt.api.printable import readable_bytes
from pjrt.cli._cache import outcome
from pjrt.cli._compilation import Compilation, Count
from pjrt.cli._console import console, echo, print_facts, print_table
from pjrt.cli._failures import one_line
from pjrt.cli._timing import readable

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
        lines.append(("cache", outcome(facts["cache"])))
    if "output" in facts:
        lines.append(("saved as", f"{facts['output']} ({readable_bytes(facts['output_size_in_bytes'])})"))
    print_facts(lines)
    _print_memory(facts["memory"], facts["memory_needed_in_bytes"], facts["memory_limit_in_bytes"], count)
    _print_cost(facts["cost"], count)


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


def _print_cost(cost: dict[str, float] | None, count: Count | None) -> None:
    shown = [
        ("FLOPs", "flops", _readable_count),
        ("transcendentals", "transcendentals", _readable_count),
        ("bytes moved", "bytes accessed", readable_bytes),
        ("time at best", "optimal_seconds", readable),
    ]
    counted = count.cost if count is not None else None
    numbers = cost or (counted.as_dict() if counted is not None else {})
    rows = [(label, convert(numbers[key])) for label, key, convert in shown if key in numbers]
    if counted is not None:
        for total in counted.collective_totals:
            among = "" if total.group_size is None else f" among {total.group_size} devices"
            rows.append((f"sent by {total.times} × {total.kind}{among}", readable_bytes(total.sent_bytes)))
    if rows:
        print_table(["work of each device", "a run"], rows, right=["a run"])
    if not cost:
        echo("This compiler does not report the work of the program.")
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
