"""Process infos: the processes of a distributed job and their states."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from pjrt.api.errors import PjrtError


class ProcessState(enum.IntEnum):
    """The state of a process of a job (``PJRT_ProcessState``)."""

    UNSPECIFIED = 0
    UNINITIALIZED = 1
    DISCONNECTED = 2
    CONNECTED = 3
    ERROR = 4


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One process of a job (``PJRT_ProcessInfo``).

    Attributes:
        task_id: its number.
        incarnation_id: a number that is new each time the process is started.
        state: its state.
        error: why it failed, if ``state`` is ``ERROR``.
    """

    task_id: int
    incarnation_id: int
    state: ProcessState
    error: PjrtError | None = None
