"""The lock on a device that is not shared: a second client gets an error that names the holder.

A plugin declares who may share its devices. Where not everyone may, a client locks the device before it is made, and
releases it when it is closed or dropped, or when its process ends in any way.

The lock is a file that its holder has locked, with the holder as JSON in it. A process that may use only some of the
devices locks a file for each of these parts, so that others can have the rest; one that may use all locks one file, and
checks that nobody has a part. A further file is locked for that moment, so that one process decides at a time.
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import getpass
import hashlib
import json
import os
import re
import socket
import stat
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import FrameType
from typing import Any

from filelock import FileLock, Timeout

from pjrt import system
from pjrt.api.client import Client
from pjrt.api.errors import FailedPreconditionError, UnavailableError
from pjrt.api.printable import printable
from pjrt.plugins.declaration import Declaration, Sharing
from pjrt.plugins.visible_devices import listed_devices

FOLDER_VARIABLE = "PJRT_LOCK_FOLDER"
"""The environment variable with the folder of the locks, for processes that share a device and not the usual folder."""

HOLDER_PAYLOAD = "pjrt.device_holder"
"""The payload of the error that describes the holder, as JSON: the fields of a ``Holder``."""

_PATIENCE_SECONDS = 5.0
_PAUSE_SECONDS = 0.002
_MAX_BYTES = 1 << 16


@dataclass(frozen=True)
class Holder:
    """The client that has a device, as its process described it.

    Attributes:
        pid: the number of its process.
        command: its command line.
        user: the user who runs it.
        host: the machine, or container, that the process is on.
        since: when it got the device, in the time of the machine.
        place: the line of the program that made the client.
        devices: the devices that it has, if not all.
        options: the options of the client; texts are left out, which may be secrets.
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
            return "an unknown process"
        parts = [
            f"process {self.pid}",
            f"({self.command})" if self.command else "",
            f"of user {self.user}" if self.user else "",
            f"on {self.host}" if self.host else "",
            f"since {self.since}" if self.since else "",
        ]
        at = f", made at {self.place}" if self.place else ""
        return " ".join(filter(None, parts)) + at + (f", with {self.options}" if self.options else "")


@dataclass(eq=False)
class Claim:
    """One client's claim of a device that this process has.

    Attributes:
        key: the device and its parts.
        holder: the client.
    """

    key: str
    holder: Holder
    client: weakref.ref[Client] | None = None

    def keep_for(self, client: Client) -> None:
        """Keep the device until the client is closed or dropped."""
        self.client = weakref.ref(client)
        client.add_close_callback(self.release)

    def release(self) -> None:
        """Give up the claim; the last claim releases the device. May be called again, and in a child of a fork."""
        with _lock:
            device = _devices.get(self.key)
            if device is None or self not in device.claims:
                return
            device.claims.remove(self)
            if not device.claims:
                del _devices[self.key]
                _release(device.files)


@dataclass
class _Device:
    """A device that this process has, with its locked files and the claims of its clients."""

    files: list[_LockedFile]
    claims: set[Claim] = field(default_factory=set)


# Reentrant: the garbage collector may drop a client, and so release a device, while this thread takes one.
_lock = threading.RLock()
_devices: dict[str, _Device] = {}


@contextlib.contextmanager
def held(declaration: Declaration, options: Mapping[str, Any]) -> Iterator[Claim]:
    """Hold a plugin's device while a client is made. ``Claim.keep_for`` holds it for longer.

    Nothing is locked where the device is shared by all, or its hardware is not here.

    Raises:
        FailedPreconditionError: another client has the device and does not share it; the message names the holder.
        UnavailableError: the files of the locks cannot be used.
    """
    parts = _parts(declaration)
    claim = Claim(f"{_lock_name(declaration)} {','.join(parts)}", _this_process(declaration, parts, options))
    if declaration.sharing is not Sharing.MANY and declaration.has_hardware:
        _take(declaration, parts, claim)
    try:
        yield claim
    finally:
        if claim.client is None:
            claim.release()


def busy(declaration: Declaration) -> str:
    """Return the error message that a further process would get for a client of a device; empty if it could have one.

    It is empty, too, if the files of the locks cannot be used. Nothing is locked for longer than the check takes.
    """
    if declaration.sharing is Sharing.MANY or not declaration.has_hardware:
        return ""
    try:
        _lock_files(_lock_name(declaration), _parts(declaration), None)
    except _TakenError as taken:
        return _refusal(declaration, taken.holder).message
    except OSError:
        pass
    return ""


def _take(declaration: Declaration, parts: Sequence[str], claim: Claim) -> None:
    is_alone = declaration.sharing is Sharing.ONE_CLIENT
    with _lock:
        if is_alone and claim.key in _devices:
            gc.collect()  # the other client may be garbage that is not collected yet
        while (device := _devices.get(claim.key)) is not None:
            if is_alone:
                raise _refusal(declaration, next(iter(device.claims)).holder)
            device.claims.add(claim)
            if _devices.get(claim.key) is device:  # otherwise the garbage collector released it just now
                return
        name = _lock_name(declaration)
        try:
            files = _lock_files(name, parts, claim.holder)
        except _TakenError as taken:
            raise _refusal(declaration, taken.holder) from None
        except OSError as error:
            raise UnavailableError(
                f"the lock of the device {name!r} cannot be used: {error}; set {FOLDER_VARIABLE} to a folder that all "
                "processes that share the device may write to"
            ) from error
        _devices[claim.key] = _Device(files, {claim})


def _refusal(declaration: Declaration, holder: Holder) -> FailedPreconditionError:
    if holder.pid == os.getpid() and holder.host == socket.gethostname():
        message = (
            f"{declaration.name!r} allows one client at a time, and this process has one since {holder.since}, made at "
            f"{holder.place or 'an unknown place'} with {holder.options or 'no options'}; close it first"
        )
    else:
        allowed = "one client at a time" if declaration.sharing is Sharing.ONE_CLIENT else "clients in one process"
        message = (
            f"{declaration.name!r} allows {allowed}, and {holder} has {holder.devices or 'it'}; close the client "
            "there, or end that process"
        )
    return FailedPreconditionError(message, payloads={HOLDER_PAYLOAD: json.dumps(asdict(holder)).encode()})


def _lock_name(declaration: Declaration) -> str:
    """Return the device's name among the processes of the machine: two plugins for the same hardware have the same."""
    if declaration.hardware:
        return f"hardware-{hashlib.sha256(' '.join(declaration.hardware).encode()).hexdigest()[:12]}"
    return declaration.name if declaration.library is None else declaration.library.name


def _parts(declaration: Declaration) -> tuple[str, ...]:
    """Return the devices that the environment leaves to this process; empty for all."""
    return tuple(sorted(set(listed_devices(declaration) or ())))


def _this_process(declaration: Declaration, parts: Sequence[str], options: Mapping[str, Any]) -> Holder:
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):
        user = ""
    return Holder(
        pid=os.getpid(),
        command=system.process_command(os.getpid()) or " ".join(sys.argv),
        user=user,
        host=socket.gethostname(),
        since=datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds"),
        place=_caller(),
        devices=f"{declaration.name}'s devices {', '.join(parts)}" if parts else "",
        options=", ".join(map(_shown, options, options.values()))[:1000],
    )


def _shown(name: str, value: Any) -> str:
    """Return an option as all users of the machine may see it: its text may be a secret."""
    return f"{name}={value!r}" if isinstance(value, (bool, int, float)) else f"{name}=…"


def _caller() -> str:
    """Return the file and line outside of this package that makes the client."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("pjrt", "contextlib"):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


class _TakenError(Exception):
    """Another process has the device."""

    def __init__(self, holder: Holder) -> None:
        super().__init__(str(holder))
        self.holder = holder


class _LockedFile:
    """A file that this process has locked, with the holder in it.

    Raises:
        _TakenError: another process has it locked.
        OSError: the file cannot be used.
    """

    def __init__(self, path: Path, holder: Holder | None, patience: float = 0.0) -> None:
        self._path = path
        self._holder = holder
        self._descriptor = -1
        self._lock = FileLock(
            path,
            timeout=patience,
            poll_interval=_PAUSE_SECONDS,
            mode=0o666,  # whatever the umask: every user of the machine has to be able to lock the file
            thread_local=False,
            preserve_lock_file=True,
            on_acquired=self._write,
        )
        try:
            self._lock.acquire()
        except Timeout:
            raise _TakenError(_read_holder(path)) from None

    def release(self) -> None:
        """Empty the file, and let others lock it."""
        if self._holder is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, 0)
        self._lock.release()

    def _write(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        # Everyone may write to the folder. A link or a pipe there could be a trap: nothing is written through it.
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise PermissionError(f"{self._path} must be a regular file without further names; remove it")
        if self._holder is not None:
            self._descriptor = descriptor
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
            os.write(descriptor, b"\n" + json.dumps(asdict(self._holder)).encode()[:_MAX_BYTES])


def _lock_files(name: str, parts: Sequence[str], holder: Holder | None) -> list[_LockedFile]:
    """Lock a device's files for a holder; without one only check that nobody has it.

    Raises:
        _TakenError: another process has the device, or a part of it.
        OSError: the files cannot be used, or another process is stuck while it takes the device.
    """
    variable = os.environ.get(FOLDER_VARIABLE, "")
    folder = Path(variable) if variable else system.shared_folder()
    entries = os.listdir(folder)  # raises for a folder that does not exist, which the library would make
    start = f"pjrt-{_escaped(name)}"
    whole = f"{start}.all.lock"
    own = [f"{start}.part-{_escaped(part)}.lock" for part in parts]
    others = sorted(entry for entry in entries if entry.startswith(f"{start}.part-") and entry.endswith(".lock"))
    try:
        deciding = _LockedFile(folder / f"{start}.lock", None, _PATIENCE_SECONDS)
    except _TakenError:
        raise OSError(f"another process has had {start}.lock locked for {_PATIENCE_SECONDS:g} s") from None
    files: list[_LockedFile] = []
    try:
        for file in (whole, *(own or others)):
            is_wanted = holder is not None and file in (own or [whole])
            locked = _LockedFile(folder / file, holder if is_wanted else None)
            if is_wanted:
                files.append(locked)
            else:
                locked.release()
    except BaseException:
        _release(files)
        raise
    finally:
        deciding.release()
    return files


def _release(files: Sequence[_LockedFile]) -> None:
    for file in files:
        file.release()


def _read_holder(path: Path) -> Holder:
    """Return the holder in a file. Everyone may write there, so it is only shown, and only what can be printed."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        with open(os.open(path, flags), "rb", buffering=0) as file:
            file.seek(1)  # on Windows others cannot read the first byte, which is locked
            values = json.loads(file.read(_MAX_BYTES))
        facts = {field.name: values[field.name] for field in fields(Holder) if field.name in values}
        pid = int(facts.pop("pid", 0))
        return Holder(pid, **{name: printable(str(value))[:500] for name, value in facts.items()})
    except (OSError, ValueError, TypeError):
        return Holder()


def _escaped(text: str) -> str:
    """Return a text as a part of a file name, without dots, which separate the parts."""
    return re.sub(r"[^A-Za-z0-9_-]", lambda match: f"%{ord(match.group()):x}", text)


def _forget() -> None:
    """Forget the parent's devices in the child of a fork, where the library has closed their files already."""
    global _lock
    _lock = threading.RLock()
    _devices.clear()


system.after_fork_in_child(_forget)
