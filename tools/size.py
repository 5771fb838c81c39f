"""Print the files and lines of each room, and fail if the house is larger than its budget.

    python tools/size.py

Counted are the tracked files below ``src/pjrt`` in Python, Cython and C. Generated files (``abi/generated/`` and
``_gen_*``) are shown and not counted. CONTRIBUTING.md says when a number of the budget may be raised.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parents[1]
SUFFIXES = (".py", ".pyi", ".pyx", ".pxd", ".pxi", ".c", ".h")

BUDGET = {"files": 669, "lines": 175_800}
"""The most files and lines by hand."""


def main() -> int:
    listed = subprocess.run(["git", "ls-files", "src/pjrt"], cwd=HERE, capture_output=True, text=True, check=True)
    rooms: Counter[tuple[str, str]] = Counter()
    for name in listed.stdout.split():
        path = Path(name)
        if path.suffix in SUFFIXES:
            room = path.parts[2] if len(path.parts) > 3 else "(package)"
            lines = len((HERE / path).read_text().splitlines())
            kind = "generated" if path.name.startswith("_gen_") or "generated" in path.parts else "lines"
            for column, number in (("files", 1), (kind, lines)) if kind == "lines" else ((kind, lines),):
                rooms[room, column] += number
                rooms["total", column] += number
    print(f"{'room':16}{'files':>8}{'lines':>10}{'generated':>12}")
    for room in [*sorted({room for room, _ in rooms} - {"total"}), "total"]:
        print(f"{room:16}{rooms[room, 'files']:8,}{rooms[room, 'lines']:10,}{rooms[room, 'generated']:12,}")
    over = [
        f"expected at most {most:,} {what}, found {rooms['total', what]:,}"
        for what, most in BUDGET.items()
        if rooms["total", what] > most
    ]
    for message in over:
        print(f"{message}: make the house lighter, or raise the budget in tools/size.py and say why", file=sys.stderr)
    return bool(over)


if __name__ == "__main__":
    sys.exit(main())
