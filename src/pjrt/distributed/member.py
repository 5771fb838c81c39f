"""Members: the processes of a job, as the others know them."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Member:
    """One process of a job.

    Attributes:
        process_index: its number in the job.
        host: the name of its host.
        pid: its process identifier on its host.
        rejoins: how often a process with this number had joined before it.
    """

    process_index: int
    host: str
    pid: int
    rejoins: int = 0

    def __str__(self) -> str:
        leads = ", which leads the job" if self.process_index == 0 else ""
        return f"process {self.process_index} (pid {self.pid} on {self.host}{leads})"

    @classmethod
    def here(cls, process_index: int) -> Member:
        """Return this process as a member."""
        return cls(process_index, socket.gethostname(), os.getpid())

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Member:
        """Return the member that ``fields`` describes."""
        return cls(int(fields["process_index"]), str(fields["host"]), int(fields["pid"]), int(fields["rejoins"]))

    def fields(self) -> dict[str, Any]:
        """Return the member as values that JSON has."""
        return asdict(self)
