"""The connections of a job's collectives, with the processes of the programs that made them.

XLA makes the connections of a group of devices when a program first exchanges data in the group, and keeps them. All
groups of a process share one listening address, so a connection does not show to which group it belongs. But programs
are started from here: a connection that appears during the first run of a program is one of its groups. So when a
process is lost, the connections of programs that include it are shut down, also those between other processes, which
would wait for one another for ever; and the connections of all other programs stay. When a process has failed its part
of a program, the same is done for the program's processes.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Collection

from pjrt.devices.xla import collective_sockets
from pjrt.devices.xla.collective_sockets import Address

_Processes = frozenset[int] | None
"""The processes of a connection's programs; ``None`` if it appeared while no program had its first run."""

_READ_SECONDS = 0.5
"""The time in which the other end of a connection has read all messages."""


class CollectiveConnections:
    """The connections of the collectives of one client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._addresses: Collection[Address] = ()
        self._processes: dict[tuple[Address, Address], _Processes] = {}
        self._first_runs: dict[object, frozenset[int]] = {}

    def begin(self, addresses: Collection[Address]) -> None:
        """Note the addresses on which the collectives of all processes listen."""
        self._addresses = addresses

    def begin_first_run(self, processes: Collection[int]) -> Callable[[], None]:
        """Note that a program is about to run for the first time; return the function that notes the end of this run.

        Args:
            processes: the processes of its devices.
        """
        run = object()
        with self._lock:
            self._attribute()
            self._first_runs[run] = frozenset(processes)

        def end() -> None:
            with self._lock:
                self._attribute()
                self._first_runs.pop(run, None)

        return end

    def shut_down(self, process_index: int | None = None) -> None:
        """Shut down the connections of programs that include a process, or all connections."""
        self._shut_down(lambda processes: process_index is None or process_index in processes)

    def shut_down_between(self, group: Collection[int]) -> None:
        """Shut down the connections of programs that include two or more processes of a group."""
        self._shut_down(lambda processes: len(processes & frozenset(group)) > 1)

    def _shut_down(self, concerns: Callable[[frozenset[int]], bool]) -> None:
        """Shut down the connections of some programs.

        A connection of unknown programs is shut down, too: a collective that fails is better than one that waits.

        gloo loses an operation, and its caller waits for half an hour, if gloo's own thread cannot write the answer to
        a message that it has just read. So this end is shut down for reading only, which ends gloo's work with it; what
        gloo still writes is taken; and the other end sees the connection break when it has read all messages.
        """
        shut: list[socket.socket] = []
        with self._lock:
            self._attribute()
            for opened, own, peer in collective_sockets.connections(self._addresses):
                processes = self._processes.get((own, peer))
                if processes is None or concerns(processes):
                    with contextlib.suppress(OSError):  # it broke just now
                        shut.append(opened.dup())
                        shut[-1].shutdown(socket.SHUT_RD)
        if shut:
            timer = threading.Timer(_READ_SECONDS, _close, [shut])
            timer.daemon = True
            timer.start()

    def _attribute(self) -> None:
        """Note to which programs new connections belong; those of several first runs at a time belong to all."""
        ends = [(own, peer) for _, own, peer in collective_sockets.connections(self._addresses)]
        running = frozenset().union(*self._first_runs.values()) if self._first_runs else None
        self._processes = {each: self._processes.get(each, running) for each in ends}


def _close(sockets: Collection[socket.socket]) -> None:
    for each in sockets:
        each.close()
