"""The launcher ``external``: it waits for workers that others start, such as Slurm or Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pjrt.api.errors import InvalidArgumentError
from pjrt.clusters.launchers.launcher import Launcher, WorkerHandle, WorkerStart
from pjrt.remote.security.credentials import read_token


class ExternalLauncher(Launcher):
    """Workers that others start with ``pjrt worker``, and that know the controller's address and a token.

    Args:
        hosts: the number of workers; or the host of each, if the workers give their numbers.
        options: ``token_file``, a file with a secret that all workers have, too.

    Raises:
        InvalidArgumentError: there is no token file, or it has not one token.
        NotFoundError: the file cannot be read.
        PermissionDeniedError: every user of this machine may read the file.
    """

    name = "external"
    option_names = ("token_file",)
    starts_workers = False

    def __init__(self, hosts: int | Sequence[str], options: Mapping[str, Any]) -> None:
        super().__init__(hosts, options)
        if not options.get("token_file"):
            raise InvalidArgumentError(
                "the launcher 'external' needs token_file, a file with a secret that the workers have, too; make one "
                "with: (umask 077; openssl rand -hex 32 > token)"
            )
        self.token = read_token(Path(options["token_file"]))

    def start(self, starts: Sequence[WorkerStart]) -> Sequence[WorkerHandle]:
        return [_ExternalHandle() for _ in starts]


class _ExternalHandle(WorkerHandle):
    """A worker that only its connection ends."""

    def poll(self) -> str | None:
        return None

    def end(self) -> None:
        pass

    def kill(self) -> None:
        pass
