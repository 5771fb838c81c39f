"""The devices of a machine that each of several processes uses, and the place of a process in a job.

A job's launcher (``torchrun``, ``torch_xla.launch``, ``multiprocessing``) numbers the processes of a machine from 0;
``assign_devices`` gives each process its devices before any client is made. A plugin declares how it learns them: from
options of its clients (``processes``), or from environment variables (``partition``).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pjrt import system
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError
from pjrt.plugins.loader import import_place

if TYPE_CHECKING:
    from pjrt.api.device import NamedValue
    from pjrt.plugins.declaration import Declaration


class VisibleDevices(NamedTuple):
    """The devices of a plugin that one process of a machine uses.

    Attributes:
        local_rank: the number of the process among those of this machine.
        local_world_size: how many processes of this machine there are.
        devices: the numbers of its devices among those of this machine that the plugin may use.
        options: the client options that select them.
        environment: the environment variables that select them.
    """

    local_rank: int
    local_world_size: int
    devices: tuple[int, ...]
    options: Mapping[str, NamedValue]
    environment: Mapping[str, str]


_lock = threading.Lock()
_assigned: dict[str, VisibleDevices] = {}
_started: set[str] = set()


def count_devices(declaration: Declaration, options: Mapping[str, Any]) -> int:
    """Return how many devices of this machine a plugin may use, without loading the plugin.

    The devices that the environment leaves to this process count, then the option for the number of devices, then the
    files of the hardware's driver; otherwise it is 1.
    """
    visible = listed_devices(declaration)
    if visible is not None:
        return max(1, len(visible))
    count = options.get(declaration.processes.count) if declaration.processes else None
    if isinstance(count, int) and count > 0:
        return count
    return max(1, system.count_files(declaration.hardware))


def host_index(declaration: Declaration) -> int:
    """Return the number of this machine in the job, from the variables that launchers set; 0 without them."""
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
) -> VisibleDevices:
    """Assign devices of a plugin to this process, like ``pjrt.plugins.assign_devices``.

    ``options`` are those of the plugin's clients, which may contain the number of devices. Environment variables that
    select the devices are set; one that is set already, and lists no devices, stays.
    """
    if local_world_size < 1 or not 0 <= local_rank < local_world_size:
        raise InvalidArgumentError(
            f"expected a local rank from 0 on, below the number of processes; found {local_rank} of {local_world_size}"
        )
    key = _key(declaration)
    with _lock:
        before = _assigned.get(key)
        if before is not None and (before.local_rank, before.local_world_size) == (local_rank, local_world_size):
            return before
        if key in _started:
            raise FailedPreconditionError(
                f"{declaration.name!r} has made a client in this process already, with other devices; assign devices "
                "before the first client is made"
            )
        if before is not None:
            raise FailedPreconditionError(
                f"this process is number {before.local_rank} of {before.local_world_size} to {declaration.name!r} "
                f"already; it cannot be number {local_rank} of {local_world_size} as well"
            )
        count = count_devices(declaration, options)
        own = _equal_part(declaration, count, local_rank, local_world_size) if devices is None else tuple(devices)
        visible = _visible_devices(declaration, count, own, local_rank, local_world_size)
        os.environ.update(visible.environment)
        _assigned[key] = visible
        return visible


def share(
    declaration: Declaration, options: Mapping[str, Any], local_rank: int, local_world_size: int
) -> VisibleDevices:
    """Return the equal part of a plugin's devices for another process, like ``pjrt.plugins.share_of_devices``."""
    count = count_devices(declaration, options)
    own = _equal_part(declaration, count, local_rank, local_world_size)
    return _visible_devices(declaration, count, own, local_rank, local_world_size)


def assigned(declaration: Declaration) -> VisibleDevices | None:
    """Return the devices that were assigned to this process; ``None`` if none were."""
    return _assigned.get(_key(declaration))


def start(declaration: Declaration) -> Mapping[str, NamedValue]:
    """Return the options that select the devices of a client; from now on no others can be assigned."""
    with _lock:
        _started.add(_key(declaration))
        visible = _assigned.get(_key(declaration))
    return {} if visible is None else visible.options


def listed_devices(declaration: Declaration) -> list[str] | None:
    """Return the devices that the environment leaves to this process; ``None`` if it lists none."""
    values = (os.environ.get(name, "").strip() for name in declaration.partition)
    text = next(filter(None, values), None)
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def _key(declaration: Declaration) -> str:
    return str(declaration.library or declaration.name)


def _equal_part(declaration: Declaration, count: int, local_rank: int, local_world_size: int) -> tuple[int, ...]:
    each, rest = divmod(count, local_world_size)
    if rest or not each:
        raise InvalidArgumentError(
            f"{declaration.name!r} has {count} devices here, which {local_world_size} processes cannot share equally; "
            f"start a number of processes that divides {count}"
        )
    return tuple(range(local_rank * each, (local_rank + 1) * each))


def _visible_devices(
    declaration: Declaration, count: int, own: tuple[int, ...], local_rank: int, local_world_size: int
) -> VisibleDevices:
    if own == tuple(range(count)) and local_world_size == 1:
        return VisibleDevices(local_rank, local_world_size, own, {}, {})
    names = declaration.processes
    if names is None and not declaration.partition:
        raise FailedPreconditionError(
            f"it is unknown how to select the devices of a process for {declaration.name!r} ({declaration.origin}): "
            "declare 'processes' (the names of its options) or 'partition' (environment variables) in its manifest or "
            "in the configuration"
        )
    options: dict[str, NamedValue] = {}
    environment: dict[str, str] = {}
    if names is not None:
        rank = _number("RANK", host_index(declaration) * local_world_size + local_rank)
        values: dict[str, NamedValue] = {
            names.devices: own,
            names.count: len(own),
            names.index: rank if local_world_size > 1 else 0,
            names.total: max(_number("WORLD_SIZE", local_world_size), rank + 1) if local_world_size > 1 else 1,
        }
        options = {name: value for name, value in values.items() if name}
    if declaration.partition and not (names and names.devices):
        listed = listed_devices(declaration) or [str(number) for number in range(count)]
        environment[declaration.partition[0]] = ",".join(listed[number] for number in own if number < len(listed))
    if declaration.process_environment:
        further = import_place(declaration.process_environment)(own, local_rank, local_world_size)
        environment |= {name: value for name, value in further.items() if name not in os.environ}
    return VisibleDevices(local_rank, local_world_size, own, options, environment)


def _number(variable: str, otherwise: int) -> int:
    value = os.environ.get(variable, "")
    return int(value) if value.isdecimal() else otherwise


def _forget() -> None:
    """Forget the parent's clients in the child of a fork, which may have other devices."""
    global _lock
    _lock = threading.Lock()
    _assigned.clear()
    _started.clear()


system.after_fork_in_child(_forget)

_clients_made: dict[str, int] = {}
_clients_lock = threading.Lock()


def job_options(plugin: Declaration, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options for a new client of a plugin in C: the place of this process, and the job's key-value store.

    Each client has keys of its own in the store. The processes make their clients of a plugin in the same order, so
    that the keys of each client are the same in all of them.

    Args:
        plugin: the plugin.
        options: the other options. If the caller gives a ``key_value_store``, or None for it, that decides.
    """
    # There is no job if nobody has imported its package, which is not small.
    package = sys.modules.get("pjrt.distributed")
    job = None if package is None else package.current()
    if job is None or plugin.library is None or "key_value_store" in options:
        return {}
    from pjrt.api.key_value_store import PrefixedStore  # here: few processes are in a job

    with _clients_lock:
        number = _clients_made[plugin.name] = _clients_made.get(plugin.name, -1) + 1
    place: dict[str, Any] = {"key_value_store": PrefixedStore(job.store, f"pjrt/plugins/{plugin.name}/{number}")}
    if plugin.processes is not None:
        numbers = {plugin.processes.index: job.process_index, plugin.processes.total: job.process_count}
        place |= {name: number for name, number in numbers.items() if name}
    return place
