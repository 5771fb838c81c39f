"""The settings of a cluster, checked: what its workers are, and how long to wait for them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pjrt.api.errors import InvalidArgumentError
from pjrt.distributed.settings import LONGEST_START_SECONDS
from pjrt.remote.transport.addresses import DEFAULT_KEEPALIVE, SHORTEST_KEEPALIVE

SHOWN, HIDDEN = "show", "hide"
"""Values of ``logs``: the workers' output is shown on the error stream, or not at all. Others are folders for files."""

_MOST_WORKERS = 65536


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The settings of a cluster.

    Attributes:
        device: the device of each worker, as ``pjrt.client`` takes it.
        options: the device's options.
        environment: further environment variables of the workers.
        working_directory: the working directory of the workers; ``None`` for the launcher's own.
        logs: ``show``, ``hide``, or the directory for a file of each worker's output.
        start_timeout: the seconds in which all workers must serve.
        heartbeat_timeout: the seconds of silence after which a worker is lost.
        controller_address: the host, or ``HOST:PORT``, at which workers reach the controller; empty for any.
    """

    device: str = "cpu"
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    working_directory: Path | None = None
    logs: str | Path = SHOWN
    start_timeout: float = LONGEST_START_SECONDS
    heartbeat_timeout: float = DEFAULT_KEEPALIVE
    controller_address: str = ""

    @staticmethod
    def of(
        *,
        device: Any,
        options: Any,
        environment: Any,
        working_directory: Any,
        logs: Any,
        start_timeout: Any,
        heartbeat_timeout: Any,
        controller_address: Any,
    ) -> ClusterSettings:
        """Return the settings that a user's options are.

        Raises:
            InvalidArgumentError: an option has a wrong value.
        """
        if not isinstance(device, (str, os.PathLike)) or not os.fspath(device):
            raise InvalidArgumentError(f"expected the name of a device of the workers, such as 'cpu', found {device!r}")
        if os.fspath(device) == "cluster":
            raise InvalidArgumentError("expected a device of the workers, found 'cluster', which has workers itself")
        if not all(isinstance(name, str) for name in options):
            raise InvalidArgumentError(f"expected the device's options as a dict with names, found {options!r}")
        for name, value in options.items():
            if not isinstance(value, (str, bool, int, float)) and not _is_integers(value):
                raise InvalidArgumentError(
                    f"the option {name} goes to the workers, which take strings, numbers and lists of integers; found "
                    f"{value!r}"
                )
        if not isinstance(environment, Mapping) or not all(
            isinstance(text, str) for item in environment.items() for text in item
        ):
            raise InvalidArgumentError(f"expected environment as a dict of strings, found {environment!r}")
        if not isinstance(controller_address, str):
            raise InvalidArgumentError(
                f"expected HOST or HOST:PORT as controller_address, found {controller_address!r}"
            )
        return ClusterSettings(
            os.fspath(device),
            dict(options),
            dict(environment),
            None if working_directory is None else _path(working_directory, "working_directory"),
            logs if logs in (SHOWN, HIDDEN) else _log_directory(logs),
            _seconds(start_timeout, "start_timeout"),
            _seconds(heartbeat_timeout, "heartbeat_timeout", SHORTEST_KEEPALIVE),
            controller_address,
        )


def host_names(hosts: Any) -> int | list[str]:
    """Return the number of hosts, or the host of each worker.

    ``node2:4`` stands for four workers on ``node2``; a string with commas, for several hosts.

    Raises:
        InvalidArgumentError: the hosts are neither.
    """
    expected = "expected hosts=4, or the names of hosts, such as hosts=['node1', 'node2:4'] with four workers on node2"
    if isinstance(hosts, str):
        hosts = [part.strip() for part in hosts.split(",")]
    if isinstance(hosts, int) and not isinstance(hosts, bool):
        if not 1 <= hosts <= _MOST_WORKERS:
            raise InvalidArgumentError(f"{expected}; found {hosts} hosts")
        return hosts
    if not isinstance(hosts, Sequence) or not hosts or not all(isinstance(host, str) and host for host in hosts):
        raise InvalidArgumentError(f"{expected}; found {hosts!r}")
    names: list[str] = []
    for host in hosts:
        name, separator, count = host.rpartition(":")
        if not separator or not count.isdecimal():
            name, count = host, "1"
        if not name or name.startswith("-") or not 1 <= int(count) <= _MOST_WORKERS:
            raise InvalidArgumentError(f"{expected}; found {host!r}")
        names += [name] * int(count)
    return names


def _is_integers(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(item, int) for item in value)


def _path(value: Any, name: str) -> Path:
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise InvalidArgumentError(f"expected a path as {name}, found {value!r}")
    return Path(value)


def _log_directory(logs: Any) -> Path:
    try:
        directory = _path(logs, "logs")
        directory.mkdir(parents=True, exist_ok=True)
    except (OSError, InvalidArgumentError) as error:
        raise InvalidArgumentError(
            f"expected logs='{SHOWN}', '{HIDDEN}' or a directory for a file of each worker, found {logs!r}: {error}"
        ) from None
    return directory


def _seconds(value: Any, name: str, least: float = 0) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e6 or value < least:
        bound = f"at least {least:g}" if least else "more than 0"
        raise InvalidArgumentError(f"expected {name} as seconds, {bound} and less than a million, found {value!r}")
    return float(value)
