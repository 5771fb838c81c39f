"""A function in many threads at the same time, for tests of what threads share."""

from __future__ import annotations

import threading
from collections.abc import Callable

THREADS = 8
TIMEOUT = 120.0
"""The seconds after which a thread counts as hanging."""


def at_once(work: Callable[[int], None], threads: int = THREADS) -> None:
    """Call a function with a number in each thread, all at the same time; raise the first error."""
    start, errors = threading.Barrier(threads), []

    def run(number: int) -> None:
        start.wait(TIMEOUT)
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(TIMEOUT)
        assert not worker.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]
