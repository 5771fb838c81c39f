"""Wait for what other threads or processes bring about, however slow the machine is."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from typing import Any

PATIENCE = 120.0
"""The seconds after which something counts as hanging. No test may depend on how much less it takes."""


def wait_until(condition: Callable[[], object], what: object = "the condition") -> None:
    """Return once a condition holds; fail if it does not come about."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"{what} did not come about within {PATIENCE:g} s"
        time.sleep(0.005)


def wait_until_freed(*references: weakref.ref[Any]) -> None:
    """Return once the objects of weak references are gone.

    A thread that has just told its result may hold the last reference for a moment longer. A collection does nothing
    while another thread is in the middle of one, so each look makes a new one.
    """

    def are_gone() -> bool:
        gc.collect()
        return all(reference() is None for reference in references)

    wait_until(are_gone, "the end of the objects")
