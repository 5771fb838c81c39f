"""``pjrt run --watch``: run again when a file is saved."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import click

from pjrt.api.errors import PjrtError
from pjrt.cli._failures import one_line
from pjrt.plugins import registry, swapping
from pjrt.plugins.python_source import Signature, signature

_POLL_SECONDS = 0.2
_SETTLING_SECONDS = 0.05
_PATIENCE_SECONDS = 2.0


def run_on_change(once: Callable[[], object], device: str | None, files: Callable[[], Iterable[Path]]) -> None:
    """Runs, and again each time one of the files or of the device's has changed, until Ctrl-C. Errors are told, and end
    nothing.

    Args:
        once: what to run.
        device: the device whose library or source is watched, and taken in when it has changed.
        files: the other files; asked for anew each time, because they may name others then.

    Raises:
        NotFoundError: there is no such device.
    """
    watched = _Watched(registry.default() if device is None else device, files)
    try:
        ready = True
        while True:
            if ready:
                _told(once)
            watched.look()
            _tell(f"watching {len(watched.seen)} files; Ctrl-C ends it")
            changed = watched.wait()
            _tell(f"changed: {', '.join(map(str, changed))}")
            ready = watched.of_device.isdisjoint(changed) or _told(lambda: swapping.reload(watched.device))
    except KeyboardInterrupt:
        _tell("")


class _Watched:
    """The files that are watched, as they were when they were last looked at."""

    def __init__(self, device: str, files: Callable[[], Iterable[Path]]) -> None:
        self.device = device
        self.of_device = frozenset(swapping.files(device))
        self._others = files
        self.seen: dict[Path, Signature] = {}
        self.look()

    def look(self) -> dict[Path, Signature]:
        """The files as they are now; one that is watched from now on was imported as it was noted then."""
        with contextlib.suppress(PjrtError):  # the device's file is being replaced: it is among those that are known
            self.of_device = self.of_device | frozenset(swapping.files(self.device))
            for path, noted in swapping.noted(self.device).items():
                self.seen.setdefault(path, noted)
        now = {path: signature(path) for path in {*self.of_device, *self._others(), *self.seen}}
        self.seen = {**now, **self.seen}
        return now

    def wait(self) -> list[Path]:
        """Waits until files have changed, and whoever writes them has come to an end with it; returns which have."""
        while (now := self.look()) == self.seen:
            time.sleep(_POLL_SECONDS)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            time.sleep(_SETTLING_SECONDS)
            before, now = now, self.look()
            # An editor may take the old file away before the new one is there.
            is_whole = all(now[path] for path, found in self.seen.items() if found)
            if now == before and (is_whole or time.monotonic() >= deadline):
                break
        changed = sorted(path for path in now if now[path] != self.seen[path])
        self.seen = now
        return changed or self.wait()  # saved, and then as before


def _told(step: Callable[[], object]) -> bool:
    """Does something, and tells its error; returns whether there was none."""
    try:
        step()
    except PjrtError as error:
        _tell(f"pjrt: error: {one_line(error)}")
    except click.ClickException as error:
        _tell(f"pjrt: error: {error.format_message()}")
    except (Exception, SystemExit) as error:  # whatever a device's code that is being written may raise
        _tell(f"pjrt: error: {type(error).__name__}: {error}")
    else:
        return True
    return False


def _tell(text: str) -> None:
    click.echo(text, err=True)
