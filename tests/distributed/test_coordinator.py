"""The coordinator: a job whose leader is none of its processes."""

from __future__ import annotations

import json
import queue
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from job_fixtures import StartJob

import pjrt
from pjrt.clusters.workers.control_server import Authority, server_context
from pjrt.distributed.job import Job
from pjrt.distributed.leader import Coordinator
from pjrt.distributed.relay import open_channel
from pjrt.distributed.settings import Member, Protection

SECONDS = 120.0

ENTER = """
import json
from pjrt.distributed.initialization import enter
from pjrt.distributed.settings import Settings

fields = json.loads(os.environ["SETTINGS"])
fields["addresses"] = [tuple(address) for address in fields["addresses"]]
"""

FOLLOW = (
    ENTER
    + """
job = enter(Settings(**{**fields, "process_index": rank}))
job.store.put(f"there/{rank}", b"")
job.barrier("all", 120)
say(sorted(job.live_processes()), len(job.store.directory("there")))
hear()
try:
    job.barrier("again", 120)
except Exception as error:
    say(str(error))
say(sorted(job.live_processes()), job.failure)
hear()
job.barrier("never", 120)
"""
)


def settings_of(coordinator: Coordinator) -> dict[str, str]:
    settings = coordinator.settings_of(0, initialization_timeout=SECONDS, shutdown_timeout=SECONDS)
    return {"SETTINGS": json.dumps(asdict(settings))}


def protection(folder: Path, authority: Authority | None = None) -> Protection:
    """Return a protection by a new certificate, which an authority has issued."""
    authority = authority or Authority()
    context, _ = server_context(authority.issue("leader"), folder)
    return Protection(context, authority.certificate, "leader")


@pytest.mark.full
@pytest.mark.parametrize("encrypted", [False, True], ids=["in the clear", "with TLS"])
def test_no_process_is_needed_by_the_others(start_job: StartJob, tmp_path: Path, encrypted: bool) -> None:
    """The loss of process 0, which leads other jobs, does not end this one; the loss of the leader does."""
    begun: queue.SimpleQueue[list[Member]] = queue.SimpleQueue()
    lost: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
    coordinator = Coordinator(
        3,
        ["127.0.0.1"],
        bind_host="127.0.0.1",
        on_begin=begun.put,
        on_lost=lambda *loss: lost.put(loss),
        protection=protection(tmp_path) if encrypted else None,
    )
    try:
        job = start_job(3, FOLLOW, environment=settings_of(coordinator))
        for process in job.processes:
            process.hear("[0, 1, 2] 3")
        assert [member.process_index for member in begun.get(timeout=SECONDS)] == [0, 1, 2]
        job[0].kill()
        assert lost.get(timeout=SECONDS) == (0, "its process ended, or its connection was lost")
        for index in (1, 2):
            job[index].say()
            job[index].hear("process 0 (pid")
            job[index].hear("[1, 2] None")
    finally:
        coordinator.close()
        coordinator.close()
    for index in (1, 2):
        job[index].say()
        assert job[index].wait() == 1
        assert "the leader of the job was lost" in "\n".join(job[index].errors)


@pytest.mark.full
def test_a_process_cannot_join_again(start_job: StartJob) -> None:
    coordinator = Coordinator(1, ["127.0.0.1"], bind_host="127.0.0.1")
    try:
        program = ENTER + "enter(Settings(**fields)); say('there'); hear()"
        first = start_job(1, program, environment=settings_of(coordinator))
        first[0].hear("there")
        first[0].kill()
        second = start_job(1, program, environment=settings_of(coordinator))
        assert second[0].wait() == 1
        assert "the job has begun, and process 0 cannot join it again" in "\n".join(second[0].errors)
    finally:
        coordinator.close()


def test_another_process_cannot_join() -> None:
    coordinator = Coordinator(2, ["127.0.0.1"], bind_host="127.0.0.1")
    try:
        with pytest.raises(pjrt.InvalidArgumentError, match="found process 2 of 2"):
            coordinator.settings_of(2, initialization_timeout=1, shutdown_timeout=1)
    finally:
        coordinator.close()


def test_the_store_is_for_those_who_know_the_job() -> None:
    coordinator = Coordinator(1, ["127.0.0.1"], bind_host="127.0.0.1")
    try:
        settings = coordinator.settings_of(0, initialization_timeout=1, shutdown_timeout=1)
        with pytest.raises(ConnectionError):
            open_channel(settings.addresses[0], "")
        open_channel(settings.addresses[0], settings.token).close()
    finally:
        coordinator.close()


def test_the_store_of_a_leader_with_tls(tmp_path: Path) -> None:
    """Nobody reaches it in the clear, and nobody is taken for the leader who has not its certificate."""
    own, other = Authority(), Authority()
    coordinator = Coordinator(
        2, ["127.0.0.1"], bind_host="127.0.0.1", heartbeat_timeout=SECONDS, protection=protection(tmp_path, own)
    )
    try:
        settings = coordinator.settings_of(0, initialization_timeout=1, shutdown_timeout=1)
        with pytest.raises(OSError):  # noqa: PT011  # the end of the connection, or bytes of TLS
            open_channel(settings.addresses[0], settings.token)
        for wrong in ({"authority": other.certificate}, {"certified_name": "follower"}):
            with pytest.raises(
                pjrt.UnauthenticatedError, match=r"is not the leader of the job: (unable to|.* mismatch)"
            ):
                Job.begin(replace(settings, **wrong))
        with pytest.raises(pjrt.FailedPreconditionError, match="another job has the address"):
            Job.begin(replace(settings, token="another"))
        with pytest.raises(pjrt.DeadlineExceededError, match="missing: process 1"):
            Job.begin(settings)
    finally:
        coordinator.close()
