"""The settings of a job, and its members."""

from __future__ import annotations

import logging
import os
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pjrt.api.errors import InvalidArgumentError

_log = logging.getLogger("pjrt")

_REMINDER_SECONDS = 60.0

APART = -1
"""The number of a leader that leads a job without being one of its processes."""


LONGEST_START_SECONDS = 1800.0
"""The time that the processes of a job wait for one another: a host may need minutes to start, and to compile."""


class Reminder:
    """Tells the log of a wait that goes on: after a minute, and each time after as long again."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._next = _REMINDER_SECONDS

    def remind(self, text: Callable[[], str]) -> None:
        """Tell the log, if it is time to."""
        seconds = time.monotonic() - self._begin
        if seconds > self._next:
            self._next = 2 * seconds
            _log.warning("%s, for %.0f s", text(), seconds)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a job in one process.

    Attributes:
        addresses: the leader's addresses; its port may be 0 in the leader, for any free one.
        token: the name of the job, if it has one.
        process_count: the number of processes.
        process_index: the number of this process; that of the leader, ``APART``, in a leader apart.
        bind_host: the host or address on which the leader listens; ``None`` for all of its addresses.
        initialization_timeout: the seconds to wait for the other processes.
        heartbeat_timeout: the seconds of silence after which a process is lost.
        leader_timeout: the seconds of silence after which the leader is lost; ``None`` for the heartbeat timeout.
        shutdown_timeout: the seconds to wait for the other processes at the end.
        recoverable: whether the job goes on when a process is lost.
        leader_index: the number of the process that leads the job: 0, or ``APART``.
        authority: the certificate, in PEM, of the authority of the leader's certificate; empty without TLS.
        certified_name: the name in the leader's certificate.
    """

    addresses: Sequence[tuple[str, int]]
    process_count: int
    process_index: int
    token: str = ""
    bind_host: str | None = None
    initialization_timeout: float = LONGEST_START_SECONDS
    heartbeat_timeout: float = 100
    shutdown_timeout: float = 300
    recoverable: bool = False
    leader_index: int = 0
    leader_timeout: float | None = None
    authority: str = ""
    certified_name: str = ""

    def __post_init__(self) -> None:
        leads_apart = self.process_index == self.leader_index == APART
        if self.process_count < 1 or not (leads_apart or 0 <= self.process_index < self.process_count):
            raise InvalidArgumentError(
                "expected a number of processes from 1 on, and a process number from 0 on and below it; found process "
                f"{self.process_index} of {self.process_count}"
            )
        for name in ("initialization_timeout", "heartbeat_timeout", "shutdown_timeout"):
            if getattr(self, name) <= 0:
                raise InvalidArgumentError(f"expected a {name} above 0 s, found {getattr(self, name)}")

    def client_context(self) -> ssl.SSLContext | None:
        """Return the context of TLS with which the leader is reached; ``None`` without."""
        if not self.authority:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(cadata=self.authority)
        return context

    @property
    def can_rejoin(self) -> bool:
        """Whether a process that was lost may join again."""
        return self.recoverable and self.leader_index != APART


@dataclass(frozen=True, slots=True)
class Protection:
    """The protection of the connections to a leader by TLS.

    Attributes:
        context: the leader's context, with its certificate.
        authority: as in ``Settings``.
        certified_name: as in ``Settings``.
    """

    context: ssl.SSLContext
    authority: str
    certified_name: str


def leader_name(leader_index: int) -> str:
    """Return the name of a leader whose process is not known yet."""
    return "the leader of the job" if leader_index == APART else f"process {leader_index}, which leads the job,"


def split_address(address: str) -> tuple[str, int]:
    """Return the host and the port of an address such as ``10.0.0.1:1234`` or ``[::1]:1234``."""
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdecimal() or int(port) > 65535 or not host:
        raise InvalidArgumentError(f"expected an address HOST:PORT, such as 10.0.0.1:1234, found {address!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


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
