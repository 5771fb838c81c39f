"""Jobs whose processes are on hosts of their own, with slow wires and partitions between them."""

from __future__ import annotations

from typing import Any

import pytest
from hosts import Hosts
from job_fixtures import StartJob
from job_programs import ALL_REDUCE
from network_fixtures import MakeHosts

pytestmark = [pytest.mark.network, pytest.mark.timeout(600)]

SUMS = (
    ALL_REDUCE
    + """
initialize(**eval(os.environ["OPTIONS"]))
client = pjrt.client("cpu", num_devices=1)
executable = client.compile(all_reduce(count), pjrt.CompileOptions(num_replicas=count))
say("begun")
while (word := hear()) != "end":
    attempt(lambda: first(executable.execute(put(client))))
attempt(distributed.shutdown)
os._exit(0)
"""
)


def start(start_job: StartJob, hosts: Hosts, **options: Any) -> Any:
    """Start a job with a process on each host, each of which sums for each line of its input until ``end``."""
    place = {"address": f"{hosts.addresses[0]}:8470", "place": hosts.command}
    job = start_job(len(hosts.names), SUMS, environment={"OPTIONS": repr(options)}, **place)
    for process in job.processes:
        process.hear("begun")
    return job


def say(job: Any, word: str = "sum") -> None:
    for process in job.processes:
        process.say(word)


def test_a_job_over_slow_wires(make_hosts: MakeHosts, start_job: StartJob) -> None:
    job = start(start_job, make_hosts(3, delay=0.05, loss=0.01))
    for _ in range(3):
        say(job)
    say(job, "end")
    assert [lines[1:] for lines in job.succeed()] == [["result [6144.0]"] * 3 + ["result None"]] * 3


@pytest.mark.parametrize(("seconds", "options"), [(5, {"heartbeat_timeout_seconds": 10}), (60, {})])
def test_a_partition_that_is_shorter_than_the_heartbeat_timeout(
    make_hosts: MakeHosts, start_job: StartJob, seconds: float, options: dict[str, Any]
) -> None:
    hosts = make_hosts(2)
    job = start(start_job, hosts, **{"heartbeat_timeout_seconds": 100, **options})
    say(job)
    for process in job.processes:
        process.hear("result [2048.0]")
    job[0].say()
    with hosts.partition(1, seconds):
        job[1].say()
    say(job, "end")
    assert [lines[2:] for lines in job.succeed(500)] == [["result [2048.0]", "result None"]] * 2


@pytest.mark.parametrize("recoverable", [False, True])
@pytest.mark.parametrize("met", [False, True])
def test_a_longer_partition_is_a_loss_on_both_sides(
    make_hosts: MakeHosts, start_job: StartJob, recoverable: bool, met: bool
) -> None:
    """Before the first meeting of the devices, too."""
    hosts = make_hosts(3)
    job = start(start_job, hosts, heartbeat_timeout_seconds=4, recoverable=recoverable)
    say(job)
    for process in job.processes if met else ():
        process.hear("result [6144.0]")
    hosts.cut_off(2)
    say(job)
    say(job, "end")
    for rank in (0, 1):
        line = job[rank].hear("UnavailableError")
        assert f"process 2 (pid {job[2].popen.pid} on host2) was lost: it gave no sign of life for 4 s" in line
    assert "process 0 (pid" in job[2].hear("UnavailableError")
    job.wait()
