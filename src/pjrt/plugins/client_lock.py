"""One client or many: keeps a second client off a device that cannot be shared, and says who has it.

A plugin declares how its devices are shared. Where that is not by all, a client takes the device before it is made, and
gives it back when it is closed, when nobody has it any more, or when its process ends in any way.
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import getpass
import hashlib
import json
import os
import socket
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from types import FrameType
from typing import Any

from pjrt import system
from pjrt.api.client import Client
from pjrt.api.errors import FailedPreconditionError
from pjrt.plugins import _device_lock
from pjrt.plugins._device_lock import DeviceLock, Holder
from pjrt.plugins.declaration import Declaration, Sharing

HOLDER_PAYLOAD = "pjrt.device_holder"
"""The payload of the error with who has the device, as JSON: the fields of a ``Holder``."""


@dataclass(eq=False)
class _Claim:
    """One client's share of a device that this process has."""

    key: str
    holder: Holder
    client: weakref.ref[Client] | None = None

    def release(self) -> None:
        """Gives the share back; the last one gives the device back. May be called again, and in a child of a fork."""
        with _lock:
            held = _held.get(self.key)
            if held is None or self not in held.claims:
                return
            held.claims.remove(self)
            if not held.claims:
                del _held[self.key]
                held.device.release()


@dataclass
class _Held:
    """A device that this process has, with the claims of its clients."""

    device: DeviceLock
    claims: set[_Claim] = field(default_factory=set)


# It may be taken again by its holder: the garbage collector may end a client while a device is taken.
_lock = threading.RLock()
_held: dict[str, _Held] = {}


@contextlib.contextmanager
def claimed(declaration: Declaration, options: Mapping[str, Any]) -> Iterator[_Claim | None]:
    """Has the device while a client is made; ``keep`` makes it the client's. Without that it is given back at the end.

    Raises:
        FailedPreconditionError: somebody has it who does not share it; the message says who.
        UnavailableError: it cannot be found out whether somebody has it.
    """
    if declaration.sharing is Sharing.MANY or not _is_here(declaration):
        yield None
        return
    claim = _claim(declaration, _devices(declaration), _ourselves(declaration, options))
    try:
        yield claim
    finally:
        if claim.client is None:
            claim.release()


def busy(declaration: Declaration) -> str:
    """What a process that has no client of a device would be told that made one: who has it. Empty where nobody does,
    where it is shared by all, and where it cannot be found out.
    """
    if declaration.sharing is Sharing.MANY or not _is_here(declaration):
        return ""
    try:
        holder = _device_lock.holder_of(_key(declaration), _devices(declaration))
    except OSError:
        return ""
    return "" if holder is None else _refusal(declaration, holder).message


def keep(claim: _Claim | None, client: Client) -> None:
    """Makes the device a client's, for as long as that has it."""
    if claim is not None:
        claim.client = weakref.ref(client)
        client.add_close_callback(claim.release)


def _claim(declaration: Declaration, devices: tuple[str, ...], holder: Holder) -> _Claim:
    claim = _Claim(f"{_key(declaration)} {','.join(devices)}", holder)
    alone = declaration.sharing is Sharing.ONE_CLIENT
    with _lock:
        if alone and claim.key in _held:
            gc.collect()  # the client may be garbage that nobody has found yet
        while (held := _held.get(claim.key)) is not None:
            if alone:
                raise _refusal(declaration, next(iter(held.claims)).holder)
            held.claims.add(claim)
            if _held.get(claim.key) is held:  # the garbage collector has not ended the others in between
                return claim
        try:
            device = _device_lock.take(_key(declaration), devices, holder)
        except _device_lock.TakenError as taken:
            raise _refusal(declaration, taken.holder) from None
        _held[claim.key] = _Held(device, {claim})
        return claim


def _refusal(declaration: Declaration, holder: Holder) -> FailedPreconditionError:
    payloads = {HOLDER_PAYLOAD: json.dumps(asdict(holder)).encode()}
    if holder.pid == os.getpid() and holder.host == socket.gethostname():
        said = (
            f"{declaration.name!r} allows one client at a time, and this process has one since {holder.since}, made at "
            f"{holder.place or 'an unknown place'} with {holder.options or 'no options'}; close it first"
        )
    else:
        allowed = "one client at a time" if declaration.sharing is Sharing.ONE_CLIENT else "clients in one process"
        said = (
            f"{declaration.name!r} allows {allowed}, and {holder} has {holder.devices or 'it'}; close the client "
            "there, or end that process"
        )
    return FailedPreconditionError(said, payloads=payloads)


def _is_here(declaration: Declaration) -> bool:
    return not declaration.hardware or system.any_file(declaration.hardware)


def _key(declaration: Declaration) -> str:
    """What the device is called on this machine: two plugins for the same hardware contend for it."""
    if declaration.hardware:
        return f"hardware-{hashlib.sha256(' '.join(declaration.hardware).encode()).hexdigest()[:12]}"
    return declaration.name if declaration.library is None else declaration.library.name


def _devices(declaration: Declaration) -> tuple[str, ...]:
    """The devices that the environment leaves to this process; empty for all."""
    said = next(filter(None, (os.environ.get(name, "").strip() for name in declaration.partition)), "")
    return tuple(sorted({part.strip() for part in said.split(",") if part.strip()}))


def _ourselves(declaration: Declaration, options: Mapping[str, Any]) -> Holder:
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
        devices=f"{declaration.name}'s devices {', '.join(parts)}" if (parts := _devices(declaration)) else "",
        options=", ".join(f"{name}={value!r}" for name, value in options.items())[:1000],
    )


def _caller() -> str:
    """The place outside of this package from which a client is made."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("pjrt", "contextlib"):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _leave_to_parent() -> None:
    """In the child of a fork: what the parent has is not ours, and is not to be held by our copies of its files."""
    global _lock
    _lock = threading.RLock()
    for held in _held.values():
        held.device.abandon()
    _held.clear()


system.after_fork_in_child(_leave_to_parent)
