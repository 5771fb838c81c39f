"""The progress of the start of a cluster: which workers serve, and which ones are waited for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pjrt.api.printable import printable

_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class StartProgress:
    """The progress of the start of a cluster.

    Attributes:
        workers: the host of each worker, with its number if the host has several.
        states: the state of each worker, human-readable, such as ``starting the device cpu``; ``serving`` at last.
        seconds: the time since the beginning.
    """

    workers: Sequence[str]
    states: Sequence[str]
    seconds: float

    @property
    def ready(self) -> int:
        """The number of workers that serve."""
        return sum(state == "serving" for state in self.states)

    @property
    def awaited(self) -> Sequence[str]:
        """The names of the workers that do not serve yet."""
        return [worker for worker, state in zip(self.workers, self.states, strict=True) if state != "serving"]

    def __str__(self) -> str:
        awaited = [
            f"{worker} ({state})" for worker, state in zip(self.workers, self.states, strict=True) if state != "serving"
        ]
        further = f" and {len(awaited) - _MOST_NAMED} more" if len(awaited) > _MOST_NAMED else ""
        waiting = f"; waiting for {', '.join(awaited[:_MOST_NAMED])}{further}" if awaited else ""
        return f"starting a cluster: {self.ready} of {len(self.workers)} workers serve{waiting}"


OnProgress = Callable[[StartProgress], object]


class ProgressLine:
    """A line on the terminal with the progress; nothing where the error stream is no terminal."""

    def __init__(self) -> None:
        self._is_shown = False

    def __call__(self, progress: StartProgress) -> None:
        """Show the progress."""
        if not _is_terminal():
            return
        self._is_shown = True
        print(f"\r\x1b[2K{printable(str(progress))[: _columns() - 1]}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Remove the line."""
        if self._is_shown:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
            self._is_shown = False


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # a program without a console, or a closed stream
        return False


def _columns() -> int:
    import shutil

    return shutil.get_terminal_size().columns
