"""The cause of a failed collective: a process that is lost, or one that has failed its part of a program.

XLA's error has the address of a connection that broke. The job learns at about the same time, and in another way, which
process was lost. A process that has failed its part says so to the others before it breaks the connections.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

from pjrt.api.errors import PjrtError

_VERDICT_SECONDS = 2.0
"""The time that the news of a lost process may take longer than the error of a collective."""

_TAIL = r"(?s)\s*(Additional GRPC error information|RPC: /|\[type\.googleapis\.com/).*"
"""The part of a message that gRPC and absl append, in their own notation."""

_SYMPTOM = "Gloo|SocketServer|errno: |InjectFailure"
"""Words in the errors of collectives and transfers between processes."""

_changed = threading.Condition()
_errors: list[PjrtError] = []
_failed_part: Callable[[], PjrtError | None] | None = None


def begin(failed_part: Callable[[], PjrtError | None]) -> None:
    """Forget the errors of earlier jobs, because a new one begins.

    Args:
        failed_part: returns the error of a process that has failed its part of a program, if there is one.
    """
    global _failed_part
    with _changed:
        _errors.clear()
        _failed_part = failed_part


def is_symptom(failure: PjrtError) -> bool:
    """Return whether an error is that of a connection between processes, whose cause is elsewhere."""
    return re.search(_SYMPTOM, failure.message) is not None


def report(error: PjrtError) -> None:
    """Note the error with which a job has ended; it names the process."""
    with _changed:
        _errors.append(error)
        _changed.notify_all()


def explained(failure: PjrtError) -> PjrtError:
    """Return the error of a collective or a transfer with the process that is its cause.

    The failure is returned as it is if no process has failed its part or is lost, also not in a moment.
    """
    if not is_symptom(failure):
        return failure
    cause = None if _errors or _failed_part is None else _failed_part()
    if cause is None:
        with _changed:
            if not _changed.wait_for(lambda: _errors, _VERDICT_SECONDS):
                return failure
            cause = _errors[-1]
    symptom = re.sub(_TAIL, "", failure.message)
    return PjrtError.of(cause.code, f"{cause.message} (work with this process failed: {symptom})")
