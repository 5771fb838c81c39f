"""Compile the program of ``test_ahead_of_time.py`` without a GPU: ``python compile_ahead.py FOLDER [cuda:h200:1x1x1]``.

The plugin must have the version of the one that loads the executable.
"""

from __future__ import annotations

import sys
from pathlib import Path

from test_ahead_of_time import PROGRAM

import pjrt

if __name__ == "__main__":
    folder, device, *topology = (
        Path(sys.argv[1]),
        *(sys.argv[2] if len(sys.argv) > 2 else "cuda:h200:1x1x1").split(":", 1),
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "program.executable").write_bytes(pjrt.topology(device, *topology).compile(PROGRAM).serialize())
