"""The interface of launchers: one starts workers, and returns a handle of each."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pjrt.clusters.launchers.worker_output import WorkerOutput


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """The start of one worker.

    Attributes:
        index: the worker's number in the cluster.
        host: its host, as ``Launcher.hosts`` has it.
        bootstrap: one line of JSON, with a secret, that ``pjrt.clusters.workers.worker.run`` takes, or a program
            ``python -m pjrt.clusters.workers`` as its standard input. It must not be an argument of a command, nor in
            the environment: other users of the host could read it.
        environment: further environment variables. The worker sets them, too, but only after Python has started.
        working_directory: the worker's working directory; ``None`` for the launcher's own.
        output: takes the worker's output, line by line.
    """

    index: int
    host: str
    bootstrap: bytes = field(repr=False)
    environment: Mapping[str, str]
    working_directory: Path | None
    output: WorkerOutput


class WorkerHandle(abc.ABC):
    """A worker that was started, as its launcher knows it. Any thread may call it."""

    @abc.abstractmethod
    def poll(self) -> str | None:
        """Return how the worker ended, such as ``exit code 1``; ``None`` while it runs, or where this is unknown."""

    @abc.abstractmethod
    def end(self) -> None:
        """Ask the worker to end; do not wait. Nothing happens if it has ended."""

    @abc.abstractmethod
    def kill(self) -> None:
        """End the worker at once, also one that stands still. Nothing happens if it has ended."""


class Launcher(abc.ABC):
    """A way to start the workers of a cluster: ``pjrt.cluster(launcher=…)`` takes its name, or an object.

    Args:
        hosts: the number of workers, or the host of each.
        options: the launcher's options, whose names are ``option_names``.

    Attributes:
        name: its name for users.
        option_names: the names of the options that it takes.
        is_local: whether all workers are on this machine. They then use local sockets; the others use TLS.
        hosts: the host of each worker, for messages and logs; empty for one that the worker reports itself.
            ``start`` may change it.
        starts_workers: whether it starts the workers, and does not only wait for them.
        token: the secret of the workers, if others choose it; empty for a new one.
    """

    name: ClassVar[str]
    option_names: ClassVar[Sequence[str]] = ()
    is_local: ClassVar[bool] = False
    starts_workers: ClassVar[bool] = True
    hosts: Sequence[str]
    token: str = ""

    def __init__(self, hosts: int | Sequence[str], options: Mapping[str, Any]) -> None:
        self.hosts = [""] * hosts if isinstance(hosts, int) else list(hosts)
        self.options = options

    @abc.abstractmethod
    def start(self, starts: Sequence[WorkerStart]) -> Sequence[WorkerHandle]:
        """Start the workers, and return a handle of each; do not wait until they are ready.

        If one cannot be started, those that were started before it are ended.

        Raises:
            PjrtError: a worker cannot be started; the message names its host.
        """

    def close(self) -> None:  # noqa: B027  (most launchers hold nothing)
        """Release what the launcher holds besides the workers, which have ended. May be called again."""
