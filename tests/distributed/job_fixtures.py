"""The fixture with which tests of all packages start jobs of real processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from running_job import RunningJob

StartJob = Callable[..., RunningJob]


@pytest.fixture
def start_job() -> Iterator[StartJob]:
    """Start jobs: ``start_job(2, source)``, or ``start_job([source of rank 0, source of rank 1])``.

    ``address`` and ``place`` are those of ``RunningJob``.

    With ``wait=True`` nothing is started yet: ``job.start(rank)`` does. All processes are ended after the test.
    """
    jobs: list[RunningJob] = []

    def start(
        sources: int | Sequence[str],
        source: str = "",
        *,
        environment: Mapping[str, str] | None = None,
        wait: bool = False,
        **where: Any,
    ) -> RunningJob:
        job = RunningJob([source] * sources if isinstance(sources, int) else sources, environment, **where)
        jobs.append(job)
        return job if wait else job.start_all()

    yield start
    for job in jobs:
        job.end()
