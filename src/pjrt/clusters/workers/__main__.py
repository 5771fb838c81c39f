"""The program of a worker: ``python -m pjrt.clusters.workers``, with the bootstrap as its standard input.

With the argument ``--guard``, the end of the standard input ends the worker, even if it stands still.
"""

from __future__ import annotations

import sys

from pjrt.clusters.workers.guard import guard


def _main() -> int:
    bootstrap = sys.stdin.buffer.readline()
    if "--guard" in sys.argv:
        guard()
    from pjrt.clusters.workers.worker import run  # here: it imports numpy, which has threads, and forks have none

    return run(bootstrap)


if __name__ == "__main__":
    sys.exit(_main())
