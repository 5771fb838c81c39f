"""The end of jobs: processes that leave, fail, are stopped or forget to leave."""

from __future__ import annotations

import signal

import pytest
from job_fixtures import StartJob


@pytest.mark.full
def test_a_leader_that_leaves_first_waits_and_names_who_is_missing(start_job: StartJob) -> None:
    job = start_job(
        [
            "initialize(shutdown_timeout_seconds=1); attempt(distributed.shutdown)",
            "job = initialize(); attempt(job.barrier, 'b', 60); attempt(job.store.get, 'never', 60); say('end')",
        ]
    )
    assert "missing: process 1 (pid" in job[0].hear("DeadlineExceededError")
    assert "process 0 (pid" in job[1].hear("UnavailableError")
    assert "process 0 (pid" in job[1].hear("UnavailableError")
    assert job.wait() == [0, 0]


@pytest.mark.full
@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_ends_the_job_with_its_reason(start_job: StartJob, failing: int) -> None:
    job = start_job(
        2,
        f"""
import threading
job = initialize()
threading.Thread(target=attempt, args=(job.store.get, "never", 300)).start()  # keeps the process alive
if rank == {failing}:
    job.store.get("the other has begun", 60)
    raise ValueError("spoilt")
attempt(job.store.put, "the other has begun", b"")
attempt(job.barrier, "b", 300)
""",
    )
    other = 1 - failing
    assert "ended with ValueError: spoilt" in job[other].hear("UnavailableError")
    assert job[failing].wait() == 1
    assert job[other].wait() == 0


def test_processes_that_end_without_shutdown_wait_for_one_another(start_job: StartJob) -> None:
    job = start_job(["initialize()", "job = initialize(); hear(); job.store.put('a', b'1'); say(job.store.get('a'))"])
    job[1].say()
    assert job.succeed()[1] == ["b'1'"]


@pytest.mark.full
@pytest.mark.parametrize("stopped", [0, 1])
def test_a_process_that_stands_still_is_lost(start_job: StartJob, stopped: int) -> None:
    job = start_job(
        2, "job = initialize(heartbeat_timeout_seconds=5); say('there'); attempt(job.store.get, 'never', 300)"
    )
    for process in job.processes:
        process.hear("there")
    job[stopped].kill(signal.SIGSTOP)
    line = job[1 - stopped].hear("UnavailableError")
    assert f"process {stopped} (pid" in line
    assert "no sign of life for 5 s" in line
    assert job[1 - stopped].wait() == 0
    job[stopped].kill(signal.SIGCONT)  # it learns that it was given up, and is not ended
    job[stopped].hear("UnavailableError")
    assert job[stopped].wait() == 0


@pytest.mark.full
def test_ctrl_c_ends_a_wait_and_the_others_learn_it(start_job: StartJob) -> None:
    job = start_job(2, "job = initialize(); say('there'); job.store.get('never', 300)")
    for process in job.processes:
        process.hear("there")
    job[1].kill(signal.SIGINT)
    assert job[1].wait() == -signal.SIGINT
    assert job[0].wait() == 1
    assert "ended with KeyboardInterrupt" in "".join(job[0].errors)


@pytest.mark.full
def test_a_forked_child_leaves_the_job_alone(start_job: StartJob) -> None:
    job = start_job(
        2,
        """
job = initialize()
child = os.fork()
if child == 0:
    say("child", distributed.current(), distributed.process_count())
    attempt(job.store.get, "a")
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
job.barrier("after")
if rank == 1 and os.fork() == 0:
    os.read(0, 1)  # a child that lives longer than its parent
    os._exit(0)
say("there")
attempt(job.store.get, "never", 300)
""",
    )
    for process in job.processes:
        assert process.hear("child") == "child None 1"
        assert "belongs to the parent" in process.hear("FailedPreconditionError")
        process.hear("there")
    job[1].kill()
    assert "process 1 (pid" in job[0].hear("UnavailableError")
    job[1].say()
    assert job[0].wait() == 0


def test_callbacks_are_called_before_the_agent_stops(start_job: StartJob) -> None:
    lines = start_job(
        2,
        """
job = initialize()
job.on_end(lambda: say("ended", job.is_running))
distributed.shutdown()
attempt(job.barrier, "b")
attempt(job.store.get, "a")
""",
    ).succeed()
    for output in lines:
        assert output[0] == "ended False"
        assert all("shutdown() was called" in line for line in output[1:])


@pytest.mark.full
def test_a_leader_that_goes_after_the_others_is_no_loss(start_job: StartJob) -> None:
    lines = start_job(
        2,
        """
import threading
job = initialize()
announce, lose, leader_is_gone = job._announce, job._lose, threading.Event()

def announce_slowly(kind, **fields):
    announce(kind, **fields)
    if kind == "left" and rank == 1:
        assert leader_is_gone.wait(60)

job._announce = announce_slowly
job._lose = lambda *arguments: (lose(*arguments), leader_is_gone.set())
distributed.shutdown()
say("failure", job.failure)
""",
    ).succeed()
    assert lines == [["failure None"]] * 2
