"""Exceptions of other authors' code: device functions, compile functions, callbacks.

Between such code and the caller that gets the error lie threads, the C API and frameworks, which carry a code and a
message and no traceback. So the message has the place where the exception was raised.
"""

from __future__ import annotations

import os
import sys
import traceback
from types import FrameType, TracebackType

from pjrt.api.errors import PjrtError

TRACEBACK_VARIABLE = "PJRT_TRACEBACK"
"""The environment variable that prints whole tracebacks; any value other than the empty one and 0 switches it on."""

_OURS = __name__.partition(".")[0]
_OUR_DEVICES = f"{_OURS}.devices."


def from_author(error: BaseException) -> PjrtError:
    """Return an exception of an author's code as a ``PjrtError`` whose message has the place where it was raised.

    Only text is kept: a traceback holds the frames, and those hold the arrays they worked on.
    """
    if isinstance(error, PjrtError):
        if _theirs(error.__traceback__):  # Otherwise it is this package's own error, whose message needs no place.
            _print(error, error)
        return error
    # That the memory is not enough is no fault of the code of this package that asked for it.
    is_fault = not isinstance(error, MemoryError) or bool(_theirs(error.__traceback__))
    wrapped = PjrtError.wrap(error, raised_at(error.__traceback__) if is_fault else "")
    _print(error, wrapped)
    return wrapped


def _print(error: BaseException, wrapped: PjrtError) -> None:
    if os.environ.get(TRACEBACK_VARIABLE, "0") not in ("", "0") and not getattr(wrapped, "_printed", False):
        traceback.print_exception(error, file=sys.stderr)
        wrapped._printed = True  # type: ignore[attr-defined]  # It may pass here again on its way.


def raised_at(trace: TracebackType | None) -> str:
    """Return the innermost place of a traceback that is the author's, such as ``device.py:12 in run``.

    The author's code begins with the first function outside of this package. The functions of other packages that it
    calls, such as numpy's, are not the author's. In this package, the built-in devices count as an author's.

    Returns:
        The place; empty if no Python code of the author's was running.
    """
    frames = _theirs(trace)
    if frames:
        package, folder = _package(frames[0][0]), _folder(frames[0][0])
        frames = [(frame, line) for frame, line in frames if _package(frame) == package or _folder(frame) == folder]
    else:
        frames = [(frame, line) for frame, line in traceback.walk_tb(trace) if _module(frame).startswith(_OUR_DEVICES)]
    return "".join(
        f"{os.path.basename(frame.f_code.co_filename)}:{line} in {frame.f_code.co_name}" for frame, line in frames[-1:]
    )


def _theirs(trace: TracebackType | None) -> list[tuple[FrameType, int]]:
    """Return the frames of a traceback that are not of this package, with their lines, the outermost first."""
    return [(frame, line) for frame, line in traceback.walk_tb(trace) if _package(frame) != _OURS]


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _package(frame: FrameType) -> str:
    return _module(frame).partition(".")[0]


def _folder(frame: FrameType) -> str:
    return os.path.dirname(frame.f_code.co_filename)
