"""The lost processes of jobs: the cause of a failed collective.

XLA's error has the address of a connection that broke. The job learns at about the same time, and in another way, which
process was lost.
"""

from __future__ import annotations

import re
import threading

from pjrt.api.errors import PjrtError

_VERDICT_SECONDS = 2.0
"""The time that the news of a lost process may take longer than the error of a collective."""

_TAIL = r"(?s)\s*(Additional GRPC error information|RPC: /|\[type\.googleapis\.com/).*"
"""The part of a message that gRPC and absl append, in their own notation."""

_changed = threading.Condition()
_errors: list[PjrtError] = []


def forget() -> None:
    """Forget the errors of earlier jobs, because a new one begins."""
    with _changed:
        _errors.clear()


def report(error: PjrtError) -> None:
    """Note the error with which a job has ended; it names the process."""
    with _changed:
        _errors.append(error)
        _changed.notify_all()


def explained(failure: PjrtError) -> PjrtError:
    """Return the error of a collective or a transfer with the lost process that is its cause.

    The failure is returned as it is if no process is lost, also not in a moment.
    """
    with _changed:
        if not _changed.wait_for(lambda: _errors, _VERDICT_SECONDS):
            return failure
        cause = _errors[-1]
    symptom = re.sub(_TAIL, "", failure.message)
    return PjrtError.of(cause.code, f"{cause.message} (work with this process failed: {symptom})")
