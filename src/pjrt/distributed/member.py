"""Members: the processes of a job, as the others know them."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pjrt.distributed.settings import APART


@dataclass(frozen=True, slots=True)
class Member:
    """One process of a job.

    Attributes:
        process_index: its number in the job.
        host: the name of its host.
        pid: its process identifier on its host.
        rejoins: how often a process with this number had joined before it.
        leads: whether it leads the job.
    """

    process_index: int
    host: str
    pid: int
    rejoins: int = 0
    leads: bool = False

    def __str__(self) -> str:
        if self.process_index == APART:
            return f"the leader of the job (pid {self.pid} on {self.host})"
        leads = ", which leads the job" if self.leads else ""
        return f"process {self.process_index} (pid {self.pid} on {self.host}{leads})"

    @classmethod
    def here(cls, process_index: int, *, leads: bool = False) -> Member:
        """Return this process as a member."""
        return cls(process_index, socket.gethostname(), os.getpid(), leads=leads)

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Member:
        """Return the member that ``fields`` describes."""
        return cls(
            int(fields["process_index"]),
            str(fields["host"]),
            int(fields["pid"]),
            int(fields["rejoins"]),
            bool(fields["leads"]),
        )

    def fields(self) -> dict[str, Any]:
        """Return the member as values that JSON has."""
        return asdict(self)
