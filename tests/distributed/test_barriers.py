"""Barriers, recoverable jobs, and the agreement on a preemption step."""

from __future__ import annotations

import signal

import pytest
from job_fixtures import StartJob


@pytest.mark.full
def test_barriers_name_all_that_are_missing(start_job: StartJob) -> None:
    lines = start_job(
        4,
        """
job = initialize()
if rank < 1:
    attempt(job.barrier, "all", 0.5)
job.barrier("again", 120)
job.barrier("again", 120)
if rank in (1, 3):
    job.barrier("some", 120, processes=[3, 1])
    attempt(job.barrier, "others", 30, processes=[0, 2])
    attempt(job.barrier, "", 30)
distributed.shutdown()
""",
    ).succeed()
    (late,) = lines[0]
    assert all(f"process {rank} (pid" in late for rank in (1, 2, 3))
    assert "1 of 4 processes came" in late
    assert all(line.startswith("InvalidArgumentError") for rank in (1, 3) for line in lines[rank])


@pytest.mark.full
def test_a_recoverable_job_goes_on_without_a_process_which_joins_again(start_job: StartJob) -> None:
    source = """
job = initialize(recoverable=True)
say("live", dict(distributed.live_processes()))
if rank == 2:
    if job.store.increment("launches") == 1:
        say("doomed")
        job.store.get("never", 300)
else:
    attempt(job.barrier, "with all", 300)
    job.barrier("without it", 120, processes=[0, 1])
    say("live", dict(distributed.live_processes()))
    job.store.put(f"seen/{rank}", b"")
    hear()
job.barrier("with all", 120)
say("live", dict(distributed.live_processes()))
distributed.shutdown()
"""
    job = start_job(3, source)
    job[2].hear("doomed")
    job[2].kill()
    for rank in (0, 1):
        assert "process 2 (pid" in job[rank].hear("UnavailableError")
        assert job[rank].hear("live") == "live {0: 0, 1: 0}"
    again = job.start(2)
    assert again.hear("live") == "live {0: 0, 1: 0, 2: 1}"
    for rank in (0, 1):
        job[rank].say()
    for rank in range(3):
        assert job[rank].hear("live") == "live {0: 0, 1: 0, 2: 1}"
    job.succeed()


@pytest.mark.full
def test_all_processes_agree_on_one_preemption_step(start_job: StartJob) -> None:
    job = start_job(
        3,
        """
job = initialize()
job.barrier("begin")
for step in range(1, 1_000_000):
    if distributed.reached_preemption_step(step):
        break
    if step == 5:
        say("running")
say("stopped after", step)
distributed.shutdown()
say(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
""",
    )
    for process in job.processes:
        process.hear("running")
    job[1].kill(signal.SIGTERM)
    steps = {process.hear("stopped after") for process in job.processes}
    assert len(steps) == 1
    assert [lines[-1] for lines in job.succeed()] == ["True"] * 3


def test_a_job_that_fails_ends_the_agreement(start_job: StartJob) -> None:
    job = start_job(
        [
            "job = initialize(); say('there'); hear(); job.announce_preemption(); say('announced')\n"
            "step = 0\nwhile not job.reached_preemption_step(step := step + 1): pass",
            "job = initialize(); say('there'); hear()",
        ]
    )
    job[0].hear("there")
    job[1].hear("there")
    job[1].kill(signal.SIGSTOP)  # it reports no step, so that there is no agreement before its end
    job[0].say()
    job[0].hear("announced")
    job[1].kill()
    assert job[0].wait() == 1
    assert "process 1 (pid" in "\n".join(job[0].errors)  # XLA may print behind it
