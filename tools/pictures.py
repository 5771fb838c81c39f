"""The pictures of the docs: boxes and arrows, described here and written as SVG.

A picture takes its colors from the reader's system, light or dark, as the pages do. ``tools/generate.py`` writes them
to ``docs/pictures``. Charts have the numbers of ``benchmarks/RESULTS.md``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"

STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f; text-anchor: middle; }
  .title { font-weight: 600; } .small { font-size: 11.5px; fill: #57606a; }
  rect { fill: #ffffff; stroke: #8c959f; stroke-width: 1.2; }
  .frame { fill: #f6f8fa; stroke-dasharray: 5 4; } .ours { fill: #ddf4ff; stroke: #0969da; }
  .warm { fill: #fff1e5; stroke: #bc4c00; } .green { fill: #dafbe1; stroke: #1a7f37; }
  .violet { fill: #fbefff; stroke: #8250df; }
  path { stroke: #57606a; stroke-width: 1.4; fill: none; marker-end: url(#tip); } .both { marker-start: url(#tip); }
  #tip path { fill: #57606a; stroke: none; marker-end: none; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .small { fill: #9ea7b3; }
    rect { fill: #161b22; stroke: #6e7681; } .frame { fill: #1c2128; }
    .ours { fill: #0c2d6b; stroke: #388bfd; } .warm { fill: #4d2100; stroke: #db6d28; }
    .green { fill: #04371a; stroke: #2ea043; } .violet { fill: #3c1e70; stroke: #a371f7; }
    path { stroke: #9ea7b3; } #tip path { fill: #9ea7b3; }
  }
  rect.none { fill: none; stroke: none; }
"""
TIP = (
    '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse">'
    '<path d="M0 0 L8 4 L0 8 z"/></marker>'
)


@dataclasses.dataclass(frozen=True)
class Box:
    """A rectangle with a title, and smaller lines below it; a frame has its title at the top, for boxes within it."""

    x: int
    y: int
    width: int
    height: int
    title: str = ""
    lines: tuple[str, ...] = ()
    kind: str = ""

    def svg(self) -> str:
        middle = self.x + self.width // 2
        first = self.y + 18 if self.kind == "frame" else self.y + (self.height - 16 * len(self.lines)) // 2 + 5
        texts = [(self.title, "title"), *((line, "small") for line in self.lines)]
        place = f'x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}"'
        return f'<rect {place} rx="7" class="{self.kind}"/>' + "".join(
            f'<text x="{middle}" y="{first + 16 * number}" class="{kind}">{escape(text)}</text>'
            for number, (text, kind) in enumerate(texts)
            if text
        )


@dataclasses.dataclass(frozen=True)
class Arrow:
    """A line through points, with a tip at its end, or at both; a label stands above its middle."""

    points: tuple[tuple[int, int], ...]
    label: str = ""
    both: bool = False

    def svg(self) -> str:
        path = "M" + " L".join(f"{x} {y}" for x, y in self.points)
        (x1, y1), (x2, y2) = self.points[0], self.points[-1]
        label = f'<text x="{(x1 + x2) // 2}" y="{(y1 + y2) // 2 - 6}" class="small">{escape(self.label)}</text>'
        kind = ' class="both"' if self.both else ""
        return f'<path d="{path}"{kind}/>' + (label if self.label else "")


@dataclasses.dataclass(frozen=True)
class Picture:
    """A picture, and its description for those who cannot see it."""

    width: int
    height: int
    description: str
    parts: Sequence[Box | Arrow]

    def svg(self) -> str:
        """Return the picture as text."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-4 -2 {self.width + 8} {self.height + 4}" '
            f'width="{self.width}" role="img"><title>{escape(self.description)}</title><style>{STYLE}</style>{TIP}'
        )
        return "\n".join([head, *(part.svg() for part in self.parts), "</svg>\n"])


def generate() -> dict[Path, str]:
    """Return the files of all pictures."""
    return {PICTURES / f"{name}.svg": picture.svg() for name, picture in {**ALL, **charts()}.items()}


# The pictures.


def across(x1: int, x2: int, y: int, label: str = "", *, both: bool = False) -> Arrow:
    return Arrow(((x1, y), (x2, y)), label, both)


def directions() -> Picture:
    callers = ["your Python", "the command pjrt", "JAX", "PyTorch", "TensorFlow", "a program in C"]
    devices = [
        ("XLA on the CPU", "through jaxlib", ""),
        ("reference interpreter", "numpy", ""),
        ("IREE", "CPUs, Vulkan, CUDA, HIP", ""),
        ("CUDA, ROCm, TPU, …", "vendors' plugins", "warm"),
        ("your device", "Python, or a driver in C", "green"),
        ("devices elsewhere", "a server, a cluster", "violet"),
    ]
    parts: list[Box | Arrow] = [
        Box(265, 44, 200, 316, kind="ours"),
        *(
            Box(280, 64 + 48 * number, 170, 36, text)
            for number, text in enumerate(
                ("Client, Device", "Buffer, MemorySpace", "Program", "Executable", "Topology", "Future")
            )
        ),
        Box(0, 6, 170, 24, "who calls", kind="none"),
        Box(265, 6, 200, 24, "pjrt: one device API", kind="none"),
        Box(560, 6, 180, 24, "who computes", kind="none"),
    ]
    for number, caller in enumerate(callers):
        y = 48 + 53 * number
        parts += [Box(0, y, 170, 40, caller), across(174, 261, y + 20, "C API" if number > 1 else "")]
    for number, (device, text, kind) in enumerate(devices):
        y = 48 + 53 * number
        parts += [Box(560, y, 180, 42, device, (text,), kind), across(469, 556, y + 20, "C API" if number == 3 else "")]
    return Picture(740, 372, "Who calls, and who computes: any caller uses any device through one API", parts)


CORE = ("the runtime in C:", "buffers, queues,", "events, layouts;", "no Python")


def worker() -> Picture:
    return Picture(
        740,
        220,
        "A framework loads the library; the device's Python runs in a process of its own",
        [
            Box(0, 10, 330, 200, "the framework's process", kind="frame"),
            Box(14, 44, 110, 146, "JAX", ("PyTorch", "TensorFlow", "C programs")),
            Box(
                184,
                44,
                132,
                146,
                "libmychip.so",
                ("the runtime in C:", "buffers, queues,", "events, layouts;", "no Python"),
                "ours",
            ),
            across(128, 180, 117, "C API"),
            Box(490, 10, 250, 200, "a worker: a process of its own", kind="frame"),
            Box(504, 44, 222, 62, "your device in Python", ("compile, kernels, memory",), "green"),
            Box(504, 128, 222, 62, "Python's interpreter", ("its crash ends no framework",)),
            across(320, 500, 75, "rings in memory", both=True),
            across(320, 500, 160, "arrays: shared memory", both=True),
        ],
    )


def buffer() -> Picture:
    return Picture(
        740,
        230,
        "The life of a buffer, from an array of the host to the end of its memory",
        [
            Box(0, 70, 120, 56, "host array", ("numpy, DLPack",)),
            Box(190, 70, 120, 56, "defined later", ("the call returned",), "ours"),
            Box(400, 70, 120, 56, "ready", ("has its value",), "green"),
            Box(620, 70, 120, 56, "deleted", ("memory is free",)),
            Box(400, 170, 120, 52, "error", ("in place of a value",), "warm"),
            Box(190, 170, 120, 52, "execution", ("of other buffers",)),
            across(124, 186, 98),
            across(314, 396, 98, "work ends"),
            across(524, 616, 98, "delete, donate"),
            Arrow(((230, 166), (230, 130))),
            Arrow(((295, 130), (295, 150), (460, 150), (460, 166)), "work fails"),
            Arrow(((460, 66), (460, 30), (60, 30), (60, 66)), "np.asarray, to_host: waits until it is ready"),
        ],
    )


def mesh() -> Picture:
    kinds = ["ours", "green", "warm", "violet"]
    parts: list[Box | Arrow] = [
        Box(0, 4, 230, 24, "an array of 8 × 4", kind="none"),
        Box(400, 4, 330, 24, "a mesh of 2 × 4 devices: x, y", kind="none"),
        across(232, 392, 132, "P('x', 'y')"),
    ]
    for column, kind in enumerate(kinds):
        parts += [Box(10 + 52 * column, 36 + 24 * row + 6 * (row > 3), 50, 22, kind=kind) for row in range(8)]
        for row in range(2):
            lines = (f"rows {4 * row} to {4 * row + 3}", f"column {column}")
            parts.append(Box(400 + 84 * column, 40 + 98 * row, 78, 84, f"device {4 * row + column}", lines, kind))
    return Picture(740, 236, "An array, cut over a mesh of devices by a sharding", parts)


def cluster() -> Picture:
    parts: list[Box | Arrow] = [
        Box(0, 84, 190, 92, "your program", ("one process: pjrt.cluster,", "or JAX without a change"), "ours")
    ]
    for number in range(3):
        y = 10 + 84 * number
        parts += [
            Box(340, y, 400, 70, kind="frame"),
            Box(352, y + 12, 120, 46, f"worker {number}", (f"host {number}",), "violet"),
            Box(510, y + 12, 100, 46, f"device {2 * number}", kind="green"),
            Box(626, y + 12, 100, 46, f"device {2 * number + 1}", kind="green"),
            across(476, 506, y + 35),
            Arrow(((194, 130), (348, y + 35))),
        ]
    for number in range(2):
        parts.append(Arrow(((412, 74 + 84 * number), (412, 104 + 84 * number)), both=True))
    return Picture(740, 264, "One program controls the devices of many hosts; workers exchange arrays", parts)


# Charts of recorded numbers.

RESULTS = Path(__file__).parents[1] / "benchmarks" / "RESULTS.md"
UNITS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


def recorded(section: str, table: int, column: int = 1) -> dict[str, str]:
    """Return a column of a table in the recorded results, by the names in its first column."""
    rows = _table(section, table)[2:]
    return {row[0].replace("`", ""): row[column].split(" (")[0] for row in rows if row[column]}


def _table(section: str, table: int) -> list[list[str]]:
    text = RESULTS.read_text(encoding="utf-8")
    begin = text.index(f"\n## {section}\n")
    tables = re.findall(r"(?:^\|.*\n)+", text[begin + 1 : text.index("\n## ", begin + 1)], re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|\n").split("|")] for line in tables[table].splitlines()]


def recorded_row(section: str, table: int, row: str) -> dict[str, str]:
    """Return a row of a table in the recorded results, by the names of its columns."""
    header, _, *rows = _table(section, table)
    found = next(each for each in rows if each[0] == row)
    cells = zip(header[1:], found[1:], strict=True)
    return {name.replace("`", ""): cell.split(" (")[0] for name, cell in cells if cell}


def chart(description: str, values: dict[str, str], ours: Sequence[str]) -> Picture:
    """Return bars of times, the shortest first."""

    def seconds(text: str) -> float:
        number, unit = text.split()
        return float(number) * UNITS[unit]

    longest = max(map(seconds, values.values()))
    parts: list[Box | Arrow] = []
    for number, (name, value) in enumerate(sorted(values.items(), key=lambda item: seconds(item[1]))):
        y, width = 6 + 34 * number, max(4, round(330 * seconds(value) / longest))
        parts += [
            Box(0, y, 310, 26, name.partition(",")[0], kind="none"),
            Box(320, y, width, 26, kind="ours" if name in ours else ""),
            Box(320 + width + 4, y, 76, 26, value, kind="none"),
        ]
    return Picture(740, 12 + 34 * len(values), description, parts)


def charts() -> dict[str, Picture]:
    """Return the charts of ``docs/benchmarks.md``, by name."""
    crossing = recorded("Crossing the C API", 0)
    del crossing["an empty call"]
    emitted, chip = "emitted C code under the runtime", "the chip, whose launches are done when they return"
    inside = ("the reference interpreter in a worker", "cpu of this package in JAX's process")
    jit = recorded("Devices that run in C", 0)
    return {
        "crossing": chart("One execution of a plugin that does nothing: time of a call", crossing, ["pjrt"]),
        "jit": chart(
            "jax.jit of x + 1, waited for, on devices of this package and on JAX's own CPU",
            {name: time for name, time in jit.items() if name in (emitted, chip, "JAX's own CPU", *inside)},
            [emitted, chip, *inside],
        ),
        "dispatch": chart(
            "x + 1 on the CPU in one process: time of a call",
            recorded("Dispatch of a tiny program, in a process with jax", 0),
            ["pjrt exe(x)", "pjrt execute_sharded"],
        ),
        "fetch": chart(
            "A tiny program on a served device, until its result is a numpy array",
            {
                {"JAX, remote": "JAX, by the IFRT proxy", "gRPC": "a round trip of gRPC"}.get(name, name): time
                for name, time in recorded_row("Remote devices on one machine", 0, "tiny program, fetched").items()
            },
            ["pjrt, remote", "pjrt, --isolate no"],
        ),
        "join": chart(
            "Processes that become a job",
            {
                f"{name} with {count} processes": time
                for table, count in enumerate((2, 4, 8))
                for name, time in recorded("Join a job", table).items()
            },
            [f"pjrt with {count} processes" for count in (2, 4, 8)],
        ),
        "encoder": chart(
            "A sentence of 32 words through an encoder, fetched",
            recorded("A sentence encoder beside onnxruntime", 1),
            ["pjrt exe(x)", "pjrt load_model"],
        ),
    }


ALL = {"directions": directions(), "worker": worker(), "buffer": buffer(), "mesh": mesh(), "cluster": cluster()}
"""The pictures that have no numbers, by the names of their files."""
