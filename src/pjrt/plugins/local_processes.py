"""Several processes of one machine, each with its own devices of a plugin: who has which, said before any client is
made.

A job's launcher (``torchrun``, ``torch_xla.launch``, ``multiprocessing``) numbers the processes of a machine from 0 on;
``assign_devices`` gives each its share. How a plugin is told is in its declaration: by options of its clients
(``processes``), or by environment variables (``partition``).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pjrt import system
from pjrt.api.attributes import NamedValue
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError
from pjrt.plugins.declaration import Declaration


@dataclass(frozen=True, slots=True)
class Share:
    """What one process of a machine uses of a plugin's devices.

    Attributes:
        local_rank: the number of the process among those of this machine.
        local_world_size: how many processes of this machine there are.
        devices: the numbers of its devices among those of this machine that the plugin may use.
        options: the options of its clients that say so.
        environment: the environment variables that say so.
    """

    local_rank: int
    local_world_size: int
    devices: tuple[int, ...]
    options: Mapping[str, NamedValue]
    environment: Mapping[str, str]


_lock = threading.Lock()
_shares: dict[str, Share] = {}
_started: set[str] = set()


def count_devices(declaration: Declaration, options: Mapping[str, Any]) -> int:
    """How many devices of this machine a plugin may use, as far as it can be told without asking the plugin.

    What the environment leaves to this process counts, then the option for the number of devices, then the files of the
    hardware's driver; 1 where nothing says more.
    """
    visible = _visible(declaration)
    if visible is not None:
        return max(1, len(visible))
    said = options.get(declaration.processes.count) if declaration.processes else None
    if isinstance(said, int) and said > 0:
        return said
    return max(1, system.count_files(declaration.hardware))


def host_index(declaration: Declaration) -> int:
    """The number of this machine among those of the job, from the variables that launchers set; 0 if none does."""
    for name in (declaration.host_variable, "GROUP_RANK"):
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    rank, size = os.environ.get("RANK", ""), os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(rank) // int(size) if rank.isdecimal() and size.isdecimal() and int(size) else 0


def assign(
    declaration: Declaration,
    options: Mapping[str, Any],
    local_rank: int,
    local_world_size: int,
    *,
    devices: Sequence[int] | None = None,
) -> Share:
    """Says which devices of a plugin this process uses: all its clients, whichever way they are asked for.

    Environment variables that say so are set; those of them that are set already, and do not list devices, stay.

    Args:
        declaration: the plugin.
        options: the options of its clients, which may say how many devices there are.
        local_rank: the number of this process among those of the machine, from 0 on.
        local_world_size: how many processes of this machine there are.
        devices: the numbers of the devices; an equal share of them all if not said.

    Raises:
        InvalidArgumentError: there is no such process, or the devices cannot be shared equally.
        FailedPreconditionError: it is too late, for the plugin has a client in this process or another share of the
            devices; or the plugin cannot be told.
    """
    if local_world_size < 1 or not 0 <= local_rank < local_world_size:
        raise InvalidArgumentError(
            f"expected a local rank from 0 on, below the number of processes; found {local_rank} of {local_world_size}"
        )
    key = _key(declaration)
    with _lock:
        before = _shares.get(key)
        if before is not None and (before.local_rank, before.local_world_size) == (local_rank, local_world_size):
            return before
        if key in _started:
            raise FailedPreconditionError(
                f"{declaration.name!r} has made a client in this process already, with other devices; say which "
                "devices a process uses before its first client is made"
            )
        if before is not None:
            raise FailedPreconditionError(
                f"this process is number {before.local_rank} of {before.local_world_size} to {declaration.name!r} "
                f"already; it cannot be number {local_rank} of {local_world_size} as well"
            )
        count = count_devices(declaration, options)
        own = _equal_part(declaration, count, local_rank, local_world_size) if devices is None else tuple(devices)
        share = _share(declaration, count, own, local_rank, local_world_size)
        os.environ.update(share.environment)
        _shares[key] = share
        return share


def assigned(declaration: Declaration) -> Share | None:
    """The share that this process has of a plugin's devices; ``None`` if nobody has said."""
    return _shares.get(_key(declaration))


def start(declaration: Declaration) -> Mapping[str, NamedValue]:
    """The options of a client that is about to be made; from now on the share is settled."""
    with _lock:
        _started.add(_key(declaration))
        share = _shares.get(_key(declaration))
    return {} if share is None else share.options


def _key(declaration: Declaration) -> str:
    return str(declaration.library or declaration.name)


def _visible(declaration: Declaration) -> list[str] | None:
    """The devices that the environment leaves to this process; ``None`` where it says nothing."""
    said = next((os.environ[name] for name in declaration.partition if os.environ.get(name, "").strip()), None)
    return None if said is None else [part.strip() for part in said.split(",") if part.strip()]


def _equal_part(declaration: Declaration, count: int, local_rank: int, local_world_size: int) -> tuple[int, ...]:
    each, rest = divmod(count, local_world_size)
    if rest or not each:
        raise InvalidArgumentError(
            f"{declaration.name!r} has {count} devices here, which {local_world_size} processes cannot share equally; "
            f"start as many processes as divide {count}"
        )
    return tuple(range(local_rank * each, (local_rank + 1) * each))


def _share(declaration: Declaration, count: int, own: tuple[int, ...], local_rank: int, local_world_size: int) -> Share:
    if own == tuple(range(count)) and local_world_size == 1:
        return Share(local_rank, local_world_size, own, {}, {})
    names = declaration.processes
    if names is None and not declaration.partition:
        raise FailedPreconditionError(
            f"it is not known how {declaration.name!r} ({declaration.origin}) is told which devices a process uses: "
            "declare 'processes' (the names of its options) or 'partition' (environment variables) in its manifest or "
            "in the configuration"
        )
    options: dict[str, NamedValue] = {}
    environment: dict[str, str] = {}
    if names is not None:
        rank = _number("RANK", host_index(declaration) * local_world_size + local_rank)
        facts: dict[str, NamedValue] = {
            names.devices: own,
            names.count: len(own),
            names.index: rank if local_world_size > 1 else 0,
            names.total: max(_number("WORLD_SIZE", local_world_size), rank + 1) if local_world_size > 1 else 1,
        }
        options = {name: value for name, value in facts.items() if name}
    if declaration.partition and not (names and names.devices):
        visible = _visible(declaration) or [str(number) for number in range(count)]
        environment[declaration.partition[0]] = ",".join(visible[number] for number in own if number < len(visible))
    if declaration.process_environment:
        from pjrt.plugins._loading import named

        said = named(declaration.process_environment)(own, local_rank, local_world_size)
        environment |= {name: value for name, value in said.items() if name not in os.environ}
    return Share(local_rank, local_world_size, own, options, environment)


def _number(variable: str, otherwise: int) -> int:
    said = os.environ.get(variable, "")
    return int(said) if said.isdecimal() else otherwise


def _begin_anew() -> None:
    """In the child of a fork: it has no clients, and may have other devices."""
    global _lock
    _lock = threading.Lock()
    _shares.clear()
    _started.clear()


system.after_fork_in_child(_begin_anew)
