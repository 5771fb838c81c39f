"""Types of the functions of ``_interrupt.pyx`` that Python calls."""

PATIENCE_SECONDS: float

def watch_for_interrupts() -> None: ...
