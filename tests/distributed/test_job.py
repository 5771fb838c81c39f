"""Jobs: how they begin, what their processes do together, and how they end."""

from __future__ import annotations

from pathlib import Path

import pytest
from job_fixtures import StartJob


@pytest.mark.full
@pytest.mark.parametrize("count", [1, 2, 4])
def test_all_processes_meet_and_leave(start_job: StartJob, count: int) -> None:
    lines = start_job(
        count,
        """
job = initialize()
job.store.put(f"value/{rank}", bytes([rank]))
job.barrier("written")
say(sorted(job.store.directory("value").items()))
say(distributed.process_index(), distributed.process_count(), list(distributed.live_processes()))
assert repr(job) == f"<Job process {rank} of {distributed.process_count()}, {job.address}>", job
distributed.shutdown()
assert "ended" in repr(job), job
say(distributed.current())
""",
    ).succeed()
    values = [(f"value/{rank}", bytes([rank])) for rank in range(count)]
    for rank, output in enumerate(lines):
        assert output == [str(values), f"{rank} {count} {list(range(count))}", "None"]


@pytest.mark.full
def test_a_killed_process_is_an_error_that_names_it(start_job: StartJob) -> None:
    job = start_job(
        3,
        """
job = initialize()
say("there")
attempt(job.store.get, "never", 300)
attempt(job.barrier, "never", 300)
""",
    )
    for process in job.processes:
        process.hear("there")
    job[1].kill()
    for rank in (0, 2):
        for _ in range(2):
            line = job[rank].hear("UnavailableError")
            assert "process 1 (pid" in line
            assert "was lost" in line
        assert job[rank].wait() == 0


@pytest.mark.full
def test_a_killed_leader_is_an_error_that_names_it(start_job: StartJob) -> None:
    job = start_job(3, 'job = initialize(); say("there"); attempt(job.store.get, "never", 300)')
    for process in job.processes:
        process.hear("there")
    job[0].kill()
    for rank in (1, 2):
        assert "process 0 (pid" in job[rank].hear("UnavailableError")
        assert job[rank].wait() == 0


def test_a_job_within_a_frameworks_job(start_job: StartJob, tmp_path: Path) -> None:
    lines = start_job(
        2,
        f"""
import pathlib, time

class FolderStore(pjrt.KeyValueStore):
    folder = pathlib.Path({str(tmp_path)!r})
    def put(self, key, value):
        part = self.folder / f"part{{rank}}"
        part.write_bytes(value)
        part.rename(self.folder / key.replace("/", "+"))
    def try_get(self, key):
        try:
            return (self.folder / key.replace("/", "+")).read_bytes()
        except FileNotFoundError:
            raise pjrt.NotFoundError(key) from None
    def get(self, key, timeout):
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            try:
                return self.try_get(key)
            except pjrt.NotFoundError:
                time.sleep(0.01)
        raise pjrt.DeadlineExceededError(key)

for turn in range(2):
    job = distributed.join(FolderStore(), rank, count)
    assert distributed.join(FolderStore(), rank, count) is job
    job.store.put(f"value/{{rank}}", b"x")
    say(job.store.get(f"value/{{1 - rank}}", 120), distributed.current())
    job.shutdown()
""",
    ).succeed()
    assert lines == [["b'x' None"] * 2] * 2
