"""The log that XLA writes to the error stream of a process."""

from __future__ import annotations

import os


def limit_xla_log(least: int = 1) -> None:
    """Leave messages below a level out of XLA's log, unless the user has chosen a level.

    A library with XLA inside reads the level once, when it is loaded: this must come first.

    Args:
        least: the level of the least important messages that are written: 0 for information, 1 for warnings, 2 for
            errors. ``import jax`` chooses 1, too.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", str(least))
