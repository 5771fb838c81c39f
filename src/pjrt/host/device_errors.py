"""Errors of device code: exceptions in the form in which the callers of a device get them."""

from __future__ import annotations

import traceback

from pjrt.api.errors import PjrtError, from_author


def without_traceback(error: BaseException) -> PjrtError:
    """Return an exception of a device's code as a ``PjrtError`` that keeps no frames alive.

    A traceback holds the frames, and those hold the arrays they worked on: memory of the device, for as long as
    the error is kept. So the traceback is kept as text, in a note that Python prints with the error; the message
    has the place where the exception was raised.
    """
    wrapped = from_author(error)
    trace = error.__traceback__
    if trace is not None:
        # Without the frame that called the device's code, unless there is no other.
        text = "".join(traceback.format_exception(type(error), error, trace.tb_next or trace))
        del trace
        if not getattr(wrapped, "__notes__", None):
            wrapped.add_note("in the device:\n" + text)
        _drop_frames(error)
        wrapped.__traceback__ = None
    return wrapped


def _drop_frames(error: BaseException | None) -> None:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = None
        _drop_frames_of_context(error.__context__, seen)
        error = error.__cause__


def _drop_frames_of_context(error: BaseException | None, seen: set[int]) -> None:
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
