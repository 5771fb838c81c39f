"""Count the calls of this package's Python functions that a command makes, after one that warms up.

    python tools/count_calls.py run examples/digits/digits.stablehlo --input examples/digits/weights.npz ...

It prints how many there are, how often a program is recognized and parsed, and the functions that are called most.
Functions in Cython are not counted.
"""

from __future__ import annotations

import collections
import sys
import threading
from types import FrameType
from typing import Any

from pjrt.cli import main

READING = ("stablehlo.format._recognized", "stablehlo.conversion.parse_here")


def count(arguments: list[str]) -> collections.Counter[str]:
    """Return how often each function is called, by its module and name."""
    counts: collections.Counter[str] = collections.Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.startswith("pjrt."):
            counts[f"{module.removeprefix('pjrt.')}.{frame.f_code.co_qualname}"] += 1

    main(arguments, standalone_mode=False)
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        main(arguments, standalone_mode=False)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return counts


if __name__ == "__main__":
    counts = count(sys.argv[1:])
    print(f"{counts.total()} calls of {len(counts)} functions")
    for name in READING:
        print(f"{counts[name]:>6} {name}")
    for name, number in counts.most_common(20):
        print(f"{number:>6} {name}")
