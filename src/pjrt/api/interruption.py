"""Ctrl-C: how often it has ended a wait for a device, or may have.

Work goes on when the wait for it is interrupted, because its results may still be wanted. If nobody holds them any
more, a device function that checks is asked to end (``RunContext.check``).
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
    """Note that Ctrl-C was pressed during a wait for a device, or possibly during one."""
    global _count
    _count += 1


def forget_variables() -> None:
    """Drop the local variables of the calls that Ctrl-C ended, in the frames of this package and of frameworks.

    They hold the awaited results as long as the exception exists: while it is handled, and at a prompt until the next
    exception, which may be for ever. The frames of the user's own functions are not touched.
    """
    shown = getattr(sys, "last_value", None)
    for handled in (shown, *sys._current_exceptions().values()):
        # Python 3.11 returns the type and the traceback, too.
        error = handled[1] if isinstance(handled, tuple) else handled
        if isinstance(error, KeyboardInterrupt):
            _forget(error)


def _forget(error: BaseException) -> None:
    seen: set[int] = set()
    context: BaseException | None = error
    # A framework may have turned Ctrl-C into an error of its own, which is then the context of the exception.
    while context is not None and id(context) not in seen:
        seen.add(id(context))
        trace = context.__traceback__
        while trace is not None:
            if str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] in _PACKAGES:
                with contextlib.suppress(RuntimeError):  # The frame that handles the exception is still running.
                    trace.tb_frame.clear()
            trace = trace.tb_next
        context = context.__context__
