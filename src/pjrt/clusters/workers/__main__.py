"""The program of a worker: ``python -m pjrt.clusters.workers``, with the bootstrap as its standard input.

With the argument ``--guard``, the end of the standard input ends the worker, even if it stands still.
"""

from __future__ import annotations

import sys

from pjrt.clusters.workers.worker import main

if __name__ == "__main__":
    sys.exit(main())
