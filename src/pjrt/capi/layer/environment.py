"""The layers that ``PJRT_LAYERS`` asks for: before whatever this package loads and exports."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar

_suspended: ContextVar[bool] = ContextVar("suspended", default=False)


def are_suspended() -> bool:
    """Whether this is inside of ``no_layers``."""
    return _suspended.get()


def with_layers(table: int, name: str) -> int:
    """Return the address of a table with the layers of ``PJRT_LAYERS`` before it; that of the table if there are none.

    Raises:
        InvalidArgumentError: a layer or an option is unknown, or the table is none.
    """
    if not table or not os.environ.get("PJRT_LAYERS"):
        return table
    from pjrt.capi.layer.stack import wrap_by_environment  # here: it opens a library that most processes do not need

    return wrap_by_environment(table, name)


@contextlib.contextmanager
def no_layers() -> Iterator[None]:
    """Make clients without the layers of ``PJRT_LAYERS``: a device behind an exported plugin needs none of its own."""
    token = _suspended.set(True)
    try:
        yield
    finally:
        _suspended.reset(token)
