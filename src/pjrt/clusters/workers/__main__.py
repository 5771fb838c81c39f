"""The program of a worker: ``python -m pjrt.clusters.workers``, with the bootstrap as its standard input.

With the argument ``--guard``, the end of the standard input ends the worker, even if it stands still.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

_END_SECONDS = 2.0


def guard() -> None:
    """Continue in a new process, the worker, and guard it in this one, which ends with its exit code.

    It must be called before the process has further threads.
    """
    read, write = os.pipe()
    worker = os.fork()
    if not worker:
        os.close(read)  # the other end stays open as long as the worker
        os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
        return
    os.close(write)
    os._exit(_watch(worker, read))


def _watch(worker: int, alive: int) -> int:
    """Wait for the end of the worker, or of the standard input; return the exit code."""
    standard_input = sys.stdin.fileno()
    deadline = None
    while True:
        watched = [alive] if deadline is not None else [alive, standard_input]
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select(watched, [], [], left)
        if alive in ready:
            break
        if not ready:
            os.kill(worker, signal.SIGKILL)
            break
        if not os.read(standard_input, 1 << 16):
            deadline = time.monotonic() + _END_SECONDS
    _, status = os.waitpid(worker, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _main() -> int:
    bootstrap = sys.stdin.buffer.readline()
    if "--guard" in sys.argv:
        guard()
    from pjrt.clusters.workers.worker import run  # here: it imports numpy, which has threads, and forks have none

    return run(bootstrap)


if __name__ == "__main__":
    sys.exit(_main())
