"""``--watch``: run a command in a subprocess, and again whenever a file is saved."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pjrt.cli._console import echo
from pjrt.system import FileStamp, file_stamp
from pjrt.system.python_process import module_command, module_environment

_POLL_SECONDS = 0.2
_SETTLING_SECONDS = 0.05
_PATIENCE_SECONDS = 2.0


def run_on_change(command: Sequence[str], files: Callable[[], Iterable[Path]]) -> None:
    """Run a ``pjrt`` command until Ctrl-C, again in a new subprocess whenever a file has changed.

    A run that is not done when a file changes is ended. A new process loads the new code of a device in any language,
    and a device that crashes ends only its own process.

    Args:
        command: the command's arguments, without ``pjrt``.
        files: called before each run; returns the files to watch.
    """
    child: subprocess.Popen[bytes] | None = None
    try:
        while True:
            watched = _Watched(files())
            child = subprocess.Popen(module_command("pjrt", *command), env=module_environment())
            changed = _until_change(child, watched)
            _end(child)
            _say(f"changed: {', '.join(map(str, changed))}")
    except KeyboardInterrupt:
        _say("")
    finally:
        if child is not None:
            _end(child)


def _until_change(child: subprocess.Popen[bytes], watched: _Watched) -> list[Path]:
    """Wait until files have changed, and return them; print when the run has ended meanwhile."""
    is_running = True
    while not (changed := watched.changed()):
        if is_running and child.poll() is not None:
            is_running = False
            if child.returncode < 0:
                _say(f"the run was ended by {signal.Signals(-child.returncode).name}")
            _say(f"watching {len(watched.seen)} files; Ctrl-C ends it")
        time.sleep(_POLL_SECONDS)
    return changed


class _Watched:
    """Files with their stamps at the start of a run."""

    def __init__(self, files: Iterable[Path]) -> None:
        self.seen: dict[Path, FileStamp | None] = {path: file_stamp(path) for path in files}

    def changed(self) -> list[Path]:
        """Return the files that have changed, once their writer has finished; empty if none have."""
        now = self._stamps()
        if now != self.seen:
            now = self._settled(now)
        return sorted(path for path in now if now[path] != self.seen[path])

    def _settled(self, now: dict[Path, FileStamp | None]) -> dict[Path, FileStamp | None]:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            time.sleep(_SETTLING_SECONDS)
            before, now = now, self._stamps()
            # An editor may remove the old file before it writes the new one.
            is_whole = all(now[path] for path, stamp in self.seen.items() if stamp)
            if now == before and (is_whole or time.monotonic() >= deadline):
                return now

    def _stamps(self) -> dict[Path, FileStamp | None]:
        return {path: file_stamp(path) for path in self.seen}


def _end(child: subprocess.Popen[bytes]) -> None:
    """Terminate a run, and kill it if it has not ended after some seconds."""
    child.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_PATIENCE_SECONDS)
    child.kill()
    child.wait()


def _say(text: str) -> None:
    echo(text, err=True)
