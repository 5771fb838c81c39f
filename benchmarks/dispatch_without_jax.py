"""Run `dispatch` where jax cannot be imported: some of jaxlib's calls behave differently there."""

from __future__ import annotations

import sys

from benchmarks import dispatch
from benchmarks.side_by_side import Report, main


def measure(quick: bool) -> Report:
    """Compare one execution of a tiny program on a resident buffer, without jax: ours and raw jaxlib's."""
    sys.modules["jax"] = None  # type: ignore[assignment]
    return dispatch.measure(quick, with_jax=False)


if __name__ == "__main__":
    main(measure)
