"""The launcher ``ssh``: workers on other machines, which ``ssh`` starts."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pjrt.api.errors import InvalidArgumentError
from pjrt.clusters.launchers.launcher import Launcher, WorkerHandle, WorkerStart
from pjrt.clusters.launchers.worker_subprocess import WorkerSubprocess

_MODULE = "pjrt.clusters.workers"
_QUIET = ("-T", "-o", "BatchMode=yes")  # no terminal, and no questions, which nobody could answer
_PYTHON = "python3"


class SshLauncher(Launcher):
    """Workers on the hosts that ``ssh`` reaches; its own configuration has users, ports, keys and jump hosts.

    The standard input of ``ssh`` carries the bootstrap, and its end ends the worker, also one that stands still.

    Args:
        hosts: the host of each worker, as ``ssh`` takes it, such as ``node1`` or ``user@node1``.
        options: ``ssh_command``, the command that starts programs on other machines, ``ssh`` by default, with
            arguments of its own, such as ``ssh -p 2222 -i key``; ``python``, the Python program on the other machines,
            ``python3`` by default, in whose environment this package is installed.

    Raises:
        InvalidArgumentError: an option is wrong, or the hosts have no names.
    """

    name = "ssh"
    option_names = ("python", "ssh_command")

    def __init__(self, hosts: int | Sequence[str], options: Mapping[str, Any]) -> None:
        if isinstance(hosts, int):
            raise InvalidArgumentError(
                f"the launcher 'ssh' needs the names of the hosts, such as hosts=['node1', 'node2:4']; found {hosts}"
            )
        super().__init__(hosts, options)
        self._command = _words(options.get("ssh_command", "ssh"), "ssh_command")
        self._python = _words(options.get("python", _PYTHON), "python")

    def start(self, starts: Sequence[WorkerStart]) -> Sequence[WorkerHandle]:
        handles: list[WorkerHandle] = []
        try:
            for start in starts:
                handles.append(WorkerSubprocess(start, self._command_of(start.host), os.environ))  # noqa: PERF401
        except BaseException:
            for handle in handles:
                handle.kill()
            raise
        return handles

    def _command_of(self, host: str) -> list[str]:
        quiet = _QUIET if Path(self._command[0]).name == "ssh" else ()
        # One argument: ssh joins several with blanks, and the shell of the other machine splits them again.
        remote = shlex.join([*self._python, "-u", "-P", "-m", _MODULE, "--guard"])
        return [*self._command, *quiet, host, f"exec {remote}"]


def _words(command: Any, option: str) -> list[str]:
    """Return the words of a command, which is a string or a list of strings."""
    try:
        words = shlex.split(command) if isinstance(command, str) else list(command)
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError(f"expected a command as {option}, found {command!r}: {error}") from None
    if not words or not all(isinstance(word, str) for word in words):
        raise InvalidArgumentError(f"expected a command as {option}, found {command!r}")
    return words
