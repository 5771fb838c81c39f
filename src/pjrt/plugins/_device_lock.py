"""The lock on a device among the processes of a machine: a file that its holder has locked, with who that is.

The system gives the lock back when the holder's process ends in any way. A process that may use some of the devices
only locks a file for each of them, so that others can have the rest; one that may use all locks one file, and sees to
it that nobody has any of the others. While it is decided, a further file is locked: by one process at a time, and for a
moment.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from pjrt import system
from pjrt.api.errors import UnavailableError

FOLDER_VARIABLE = "PJRT_LOCK_FOLDER"
"""The environment variable with the folder of the locks, for processes that share a device and not the usual folder."""

_ALL, _PART = "all", "part-"
_PREFIX, _SUFFIX = "pjrt-", ".lock"
_PATIENCE_SECONDS = 5.0
_PAUSE_SECONDS = 0.002
_LARGEST = 1 << 16


@dataclass(frozen=True)
class Holder:
    """Who has a device, as it was written down by itself.

    Attributes:
        pid: the number of its process.
        command: its command line.
        user: who runs it.
        host: the machine, or container, that the process is on.
        since: when it got the device, in the time of the machine.
        place: where in its program it made the client.
        devices: which devices it has.
        options: the options of its client.
    """

    pid: int = 0
    command: str = ""
    user: str = ""
    host: str = ""
    since: str = ""
    place: str = ""
    devices: str = ""
    options: str = ""

    def __str__(self) -> str:
        if not self.pid:
            return "a process that has not said who it is"
        parts = [
            f"process {self.pid}",
            f"({self.command})" if self.command else "",
            f"of user {self.user}" if self.user else "",
            f"on {self.host}" if self.host else "",
            f"since {self.since}" if self.since else "",
        ]
        at = f", made at {self.place}" if self.place else ""
        return " ".join(filter(None, parts)) + at + (f", with {self.options}" if self.options else "")


class TakenError(Exception):
    """Another process has the device."""

    def __init__(self, holder: Holder) -> None:
        super().__init__(str(holder))
        self.holder = holder


class DeviceLock:
    """A device that this process has."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        self._descriptors = list(descriptors)

    def release(self) -> None:
        """Lets others have the device."""
        for descriptor in self._descriptors:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
            os.close(descriptor)
        self._descriptors.clear()

    def abandon(self) -> None:
        """Leaves the device to the process that this one was forked from."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()


def take(key: str, devices: Sequence[str], holder: Holder) -> DeviceLock:
    """Takes a device for this process.

    Args:
        key: what the device is called among the processes of the machine.
        devices: the parts of it that this process may use; empty for all.
        holder: who we are.

    Raises:
        TakenError: another process has it, or a part of it.
        UnavailableError: the files of locks cannot be used, or somebody is stopped while taking it.
    """
    try:
        folder = _folder()
        with _deciding(_path(folder, key)):
            return _take(folder, key, devices, holder)
    except OSError as error:
        raise UnavailableError(
            f"the lock of the device {key!r} cannot be used: {error}; set {FOLDER_VARIABLE} to a folder that all "
            "processes that share the device may write to"
        ) from error


def holder_of(key: str, devices: Sequence[str]) -> Holder | None:
    """Who keeps a device, or a part of it, from being taken; ``None`` if nobody does. Nothing is taken for longer than
    it takes to look, while which nobody else is refused it.

    Args:
        key: as of ``take``.
        devices: as of ``take``.

    Raises:
        OSError: the files of locks cannot be used, or somebody is stopped while taking it.
    """
    folder = _folder()
    own = [_path(folder, key, _PART + device) for device in devices] or _parts(folder, key)
    with _deciding(_path(folder, key)):
        for path in (_path(folder, key, _ALL), *own):
            try:
                os.close(_locked(path))
            except TakenError as taken:
                return taken.holder
    return None


def _take(folder: Path, key: str, devices: Sequence[str], holder: Holder) -> DeviceLock:
    wanted = [_path(folder, key, _PART + device) for device in devices] or [_path(folder, key, _ALL)]
    others = [_path(folder, key, _ALL)] if devices else _parts(folder, key)
    for path in others:
        os.close(_locked(path))
    lock = DeviceLock([])
    try:
        for path in wanted:
            descriptor = _locked(path)
            lock._descriptors.append(descriptor)
            _write(descriptor, holder)
    except BaseException:
        lock.release()
        raise
    return lock


def _locked(path: Path) -> int:
    """A descriptor of a file that is locked through it."""
    descriptor = system.open_shared_file(path)
    try:
        if not system.try_lock(descriptor):
            raise TakenError(_read(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextlib.contextmanager
def _deciding(path: Path) -> Iterator[None]:
    """While it lasts no other process takes the device."""
    descriptor = system.open_shared_file(path)
    try:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not system.try_lock(descriptor):
            if time.monotonic() >= deadline:
                raise OSError(f"another process has had {path} locked for {_PATIENCE_SECONDS:g} s")
            time.sleep(_PAUSE_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _folder() -> Path:
    named = os.environ.get(FOLDER_VARIABLE, "")
    return Path(named) if named else system.shared_folder()


def _path(folder: Path, key: str, part: str = "") -> Path:
    return folder / (_PREFIX + ".".join(filter(None, (_plain(key), _plain(part)))) + _SUFFIX)


def _parts(folder: Path, key: str) -> list[Path]:
    """The files of all parts of a device that anybody has ever had alone."""
    start = f"{_PREFIX}{_plain(key)}.{_PART}"
    names = [name for name in os.listdir(folder) if name.startswith(start) and name.endswith(_SUFFIX)]
    return [folder / name for name in sorted(names)]


def _plain(text: str) -> str:
    """A part of a file name: letters, digits and what has no meaning; no dots, which stand between the parts."""
    return re.sub(r"[^A-Za-z0-9_-]", lambda found: f"%{ord(found.group()):x}", text)


def _write(descriptor: int, holder: Holder) -> None:
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, json.dumps(asdict(holder)).encode()[:_LARGEST])


def _read(descriptor: int) -> Holder:
    """What a holder has written; anybody may write there, so it is only for people, and shown as plain text."""
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        said = json.loads(os.read(descriptor, _LARGEST))
        known = {field.name: said[field.name] for field in fields(Holder) if field.name in said}
        pid = int(known.pop("pid", 0))
        return Holder(pid, **{name: _printable(str(value)) for name, value in known.items()})
    except (OSError, ValueError, TypeError):
        return Holder()


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)[:500]
