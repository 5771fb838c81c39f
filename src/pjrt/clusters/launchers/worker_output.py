"""The output of workers: lines with the host in front, on the error stream or in files, and the last lines of each."""

from __future__ import annotations

import collections
import re
import sys
import threading
from pathlib import Path
from typing import TextIO

from pjrt.api.printable import printable

_TAIL_LINES = 40
_TAIL_COLUMNS = 500

# Gloo reports each meeting of devices on the standard output, which is no news to a user.
_NOISE = re.compile(r"\[Gloo\] Rank \d+ is connected to \d+ peer ranks")


class WorkerOutput:
    """The output of one worker. Any thread may write to it.

    Args:
        label: the name in front of each line.
        path: the file of the lines; ``None`` for the error stream of this process.
        shown: whether lines are shown at all; the last ones are kept in any case.
    """

    def __init__(self, label: str, *, path: Path | None = None, shown: bool = True) -> None:
        self.label = label
        self._lock = threading.Lock()
        self._tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
        self._shown = shown
        self._file: TextIO | None = None if path is None else path.open("w", encoding="utf-8", buffering=1)

    def write_line(self, line: str) -> None:
        """Take a line of output, without the end of the line."""
        if _NOISE.match(line):
            return
        with self._lock:
            self._tail.append(line[:_TAIL_COLUMNS])
            if self._file is not None:
                self._file.write(f"{line}\n")
        if self._shown and self._file is None:
            try:
                sys.stderr.write(f"[{self.label}] {printable(line, colors=True)}\n")
            except (OSError, ValueError, AttributeError):  # closed, or a program without a console
                self._shown = False

    @property
    def tail(self) -> list[str]:
        """The last lines."""
        with self._lock:
            return list(self._tail)

    def close(self) -> None:
        """Close the file. May be called again; later lines are kept in the tail alone."""
        with self._lock:
            if self._file is not None:
                self._file.close()
            self._file, self._shown = None, False
