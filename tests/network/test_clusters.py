"""Clusters whose controller and workers are on hosts of their own, with slow wires and partitions between them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hosts import Hosts
from job_fixtures import StartJob
from job_programs import QUIET
from network_fixtures import MakeHosts

pytestmark = [pytest.mark.network, pytest.mark.timeout(600)]

WORKER = """
say("begun")
command = ["-m", "pjrt", "worker", "--controller", os.environ["CONTROLLER"], "--token-file", os.environ["TOKEN"]]
os.execv(sys.executable, [sys.executable, *command, "--index", str(rank - 1)])
"""

# Its lines tell what a program does that needs all hosts, and one that needs all but the last.
CONTROLLER = (
    QUIET
    + """
from test_lost_workers import first, start, sum_over

options = dict(controller_address=os.environ["CONTROLLER"], token_file=os.environ["TOKEN"], progress=False)
options |= dict(launcher="external", num_devices=1) | eval(os.environ["OPTIONS"])
with pjrt.cluster(count - 1, **options) as client:
    groups = client.devices, client.devices[:-1]
    say("begun")
    while (word := hear()) != "end":
        attempt(lambda: first(start(sum_over(client, groups[int(word)]))))
say("ended")
"""
)


def start_cluster(start_job: StartJob, hosts: Hosts, folder: Path, **options: Any) -> Any:
    """Start a controller on the first host and a worker on each other; return them when they have begun."""
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text("a-token-of-many-letters\n")
    job = start_job(
        [CONTROLLER, *[WORKER] * (len(hosts.names) - 1)],
        environment={
            "PYTHONPATH": str(Path(__file__).parents[1] / "clusters") + ":" + ":".join(sys.path),
            "CONTROLLER": f"{hosts.addresses[0]}:8470",
            "TOKEN": str(token),
            "OPTIONS": repr(options),
        },
        address=f"{hosts.addresses[0]}:8471",
        place=hosts.command,
    )
    job[0].hear("begun")
    return job


def ask(job: Any, group: int) -> str:
    """Return what a program says: on all devices (0), or on all but the last (1)."""
    job[0].say(str(group))
    return str(job[0].hear(""))


def test_a_cluster_over_slow_wires(make_hosts: MakeHosts, start_job: StartJob, tmp_path: Path) -> None:
    job = start_cluster(start_job, make_hosts(3, delay=0.05, loss=0.005), tmp_path)
    assert [ask(job, group) for group in (0, 0, 1)] == ["result [2048.0, 2048.0]"] * 2 + ["result [0.0]"]
    job[0].say("end")
    assert job.wait() == [0, 0, 0]


def test_a_short_partition_ends_nothing(make_hosts: MakeHosts, start_job: StartJob, tmp_path: Path) -> None:
    hosts = make_hosts(3)
    job = start_cluster(start_job, hosts, tmp_path)
    assert ask(job, 0) == "result [2048.0, 2048.0]"
    with hosts.partition(2, 5):
        job[0].say("0")
    assert job[0].hear("") == "result [2048.0, 2048.0]"
    job[0].say("end")
    assert job.wait() == [0, 0, 0]


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("met", [False, True])
def test_a_host_that_is_cut_off_is_a_lost_worker(
    make_hosts: MakeHosts, start_job: StartJob, tmp_path: Path, device: str, met: bool
) -> None:
    """Before the first meeting of the devices, too; and the worker ends, which the controller cannot reach."""
    hosts = make_hosts(4)
    job = start_cluster(start_job, hosts, tmp_path, device=device, heartbeat_timeout=4)
    if met:
        assert ask(job, 0).startswith("result [")
    hosts.cut_off(3)
    message = ask(job, 0)
    assert message.startswith("UnavailableError")
    assert "host3" in message
    assert "no sign of life for 4 s" in message
    if device == "cpu":
        assert ask(job, 1) == "result [2048.0, 2048.0]"
    hosts.cut_off(3, cut=False)
    assert job[3].wait() != 0
    job[0].say("end")
    assert job.wait()[:3] == [0, 0, 0]


def test_workers_end_without_their_controller(make_hosts: MakeHosts, start_job: StartJob, tmp_path: Path) -> None:
    hosts = make_hosts(3)
    job = start_cluster(start_job, hosts, tmp_path, heartbeat_timeout=4)
    assert ask(job, 0) == "result [2048.0, 2048.0]"
    hosts.cut_off(0)
    assert [job[rank].wait() != 0 for rank in (1, 2)] == [True, True]
    assert ask(job, 0).startswith("UnavailableError")
    job[0].say("end")
    assert job[0].wait() == 0
