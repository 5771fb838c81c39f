"""Types of the functions of ``interrupts.pyx`` that Python calls."""

from collections.abc import Callable

AWAITED: int
PATIENCE_SECONDS: float

def watch_for_interrupts(give_up: Callable[[int], object]) -> None: ...
