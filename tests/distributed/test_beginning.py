"""The beginning of jobs: slow, missing, wrong and killed processes."""

from __future__ import annotations

import signal

import pytest
from job_fixtures import StartJob
from waiting import wait_until

MEET = "attempt(initialize); distributed.shutdown()"
TRY = "say('up'); attempt(initialize)"


@pytest.mark.full
def test_missing_processes_are_named(start_job: StartJob) -> None:
    job = start_job(["attempt(initialize, initialization_timeout=5)", TRY, "", ""], wait=True)
    job.start(1).hear("up")  # it tries to reach the leader again and again
    job.start(0)
    for rank in (0, 1):
        line = job[rank].hear("DeadlineExceededError")
        assert "missing: process 2; process 3" in line
        assert job[rank].wait() == 0


@pytest.mark.full
def test_a_missing_leader_is_an_error_with_its_address(start_job: StartJob) -> None:
    job = start_job(["", "attempt(initialize, initialization_timeout=3)"], wait=True)
    job.start(0).wait()
    line = job.start(1).hear("DeadlineExceededError")
    assert f"process 0, which leads the job, did not answer in time at {job.address} (Connection refused)" in line
    assert job[1].wait() == 0


@pytest.mark.full
def test_slow_starters_are_waited_for_and_one_that_was_killed_may_come_again(start_job: StartJob) -> None:
    job = start_job(["say('up');" + MEET] * 3, wait=True)
    for rank in (0, 1):
        job.start(rank).hear("up")
    job[1].kill(signal.SIGKILL)
    job[1].wait()
    job.start(1)
    job.start(2)
    assert all("result <Job process" in lines[1] for lines in job.succeed())


@pytest.mark.full
def test_the_log_tells_for_whom_the_job_waits(start_job: StartJob) -> None:
    impatient = "from pjrt.distributed import settings; settings._REMINDER_SECONDS = 0;" + MEET
    job = start_job([impatient, "", MEET], wait=True)
    job.start(0)
    job.start(2)
    wait_until(lambda: any("the job waits for process 1" in line for line in job[0].errors), "a warning")
    job.sources[1] = MEET
    job.start(1)
    job.succeed()


@pytest.mark.full
def test_two_processes_with_one_number_and_different_counts(start_job: StartJob) -> None:
    starts = ["", "", "rank = 1; hear()", "count = 5", "rank = 2; hear()", "rank = 3; hear()"]
    job = start_job([f"count = 4; {start}\n{TRY}" for start in starts])
    assert "process 3 was started for a job of 5 processes, but process 0" in job[3].hear("InvalidArgumentError")
    job[1].hear("up")
    twins = [job[1], job[2]]
    job[2].say()
    wait_until(lambda: any("in the job already" in twin.output for twin in twins), "a refusal")
    for rank in (4, 5):  # then the job is complete, with one of the two
        job[rank].say()
    wait_until(lambda: all(len(twin.lines) == 2 for twin in twins), "the outcome of both")
    assert sorted("result" in twin.lines[1] for twin in twins) == [False, True]
    assert sorted("in the job already" in twin.lines[1] for twin in twins) == [False, True]


def test_a_port_in_use_and_a_job_that_runs_already(start_job: StartJob) -> None:
    lines = start_job(
        1,
        """
import socket
taken = socket.create_server(("127.0.0.1", 0))
attempt(distributed.initialize, f"127.0.0.1:{taken.getsockname()[1]}", 1, 0)
initialize()
attempt(initialize)
distributed.shutdown()
initialize()
distributed.shutdown()
""",
    ).succeed()[0]
    assert "UnavailableError" in lines[0]
    assert "choose another port" in lines[0]
    assert "FailedPreconditionError" in lines[1]
    assert "call shutdown() first" in lines[1]


@pytest.mark.full
def test_two_jobs_at_once(start_job: StartJob) -> None:
    source = "job = initialize(); job.store.put('a', address.encode()); job.barrier('b'); say(job.store.get('a'))"
    jobs = [start_job(2, source) for _ in range(2)]
    for job in jobs:
        assert job.succeed() == [[str(job.address.encode())]] * 2


@pytest.mark.full
def test_a_process_that_is_killed_while_the_agents_connect(start_job: StartJob) -> None:
    # The leader's agent waits for that of process 1, which ends between the two meetings.
    dies = """
from pjrt.distributed import job
job.Agent = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
initialize()
"""
    job = start_job(["attempt(initialize)", dies])
    assert "process 1 (pid" in job[0].hear("UnavailableError")
    assert job[0].wait() == 0


def test_a_missing_jaxlib_is_an_error_that_names_the_extra(start_job: StartJob) -> None:
    (lines,) = start_job(
        1, "sys.modules['jaxlib'] = None; attempt(initialize); say(distributed.process_count())"
    ).succeed()
    assert lines[0].startswith("FailedPreconditionError")
    assert "jaxlib is needed to coordinate the processes of a job" in lines[0]
    assert "pip install 'pjrt[xla]'" in lines[0]
    assert lines[1] == "1"
