"""Ctrl-C: how often it ended a wait for a device, or may have.

Work goes on when the wait for it is interrupted, because its results may still be wanted. Where nobody holds them any
more either, a device's function that asks is told (``pjrt.host``).
"""

from __future__ import annotations

import contextlib
import sys

_count = 0

# Packages whose functions wait for devices. Users look in the frames of their own functions for values to rescue.
_PACKAGES = frozenset({"jax", "numpy", "pjrt", "torch", "torch_xla"})


def count() -> int:
    """Return how often Ctrl-C was noted in this process."""
    return _count


def note() -> None:
    """Note that Ctrl-C was pressed while somebody waited for a device, or may have waited."""
    global _count
    _count += 1


def forget_variables() -> None:
    """Drop the variables of the calls that Ctrl-C ended, in the frames of this package and of frameworks.

    They hold what was waited for as long as there is the exception: while it is handled, and at a prompt until the next
    one, which may be for good. The frames of the user's own functions are left as they are.
    """
    shown = getattr(sys, "last_value", None)
    for handled in (shown, *sys._current_exceptions().values()):
        # Python 3.11 gives the type and the traceback, too.
        error = handled[1] if isinstance(handled, tuple) else handled
        if isinstance(error, KeyboardInterrupt):
            _forget(error)


def _forget(error: BaseException) -> None:
    seen: set[int] = set()
    context: BaseException | None = error
    # A framework may have been told of Ctrl-C by an error of its own, during which the exception came.
    while context is not None and id(context) not in seen:
        seen.add(id(context))
        trace = context.__traceback__
        while trace is not None:
            if str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] in _PACKAGES:
                with contextlib.suppress(RuntimeError):  # it runs, because it is the one that handles the exception
                    trace.tb_frame.clear()
            trace = trace.tb_next
        context = context.__context__
