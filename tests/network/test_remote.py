"""A server and its client on hosts of their own, with slow wires and partitions between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from hosts import Hosts
from job_fixtures import StartJob
from job_programs import ALL_REDUCE
from network_fixtures import MakeHosts

pytestmark = [pytest.mark.network, pytest.mark.timeout(600)]

SERVER = """
import numpy as np
folder, options = os.environ["FOLDER"], eval(os.environ["OPTIONS"])
files = dict(tls_certificate=f"{folder}/server.pem", tls_key=f"{folder}/server.key", client_ca=f"{folder}/ca.pem")
local = pjrt.client("cpu")
server = pjrt.remote.serve(local, os.environ["PLACE"], **files, **options)
say(server.address)
while (word := hear()) != "end":
    say("sessions", len(server._open_sessions()))
"""

CLIENT = (
    ALL_REDUCE
    + """
folder, options = os.environ["FOLDER"], eval(os.environ["OPTIONS"])
files = dict(ca_file=f"{folder}/ca.pem", certificate_file=f"{folder}/alice.pem", key_file=f"{folder}/alice.key")

def run(word):
    global client, double
    if word == "connect":
        client = pjrt.client("remote", address=f"grpcs://{os.environ['PLACE']}", **files, **options)
        double = client.compile(DOUBLE)
    return np.asarray(double(np.full(4, 3, "f4"))[0])[0]

while (word := hear()) != "end":
    attempt(run, word)
os._exit(0)
"""
)


def start(start_job: StartJob, hosts: Hosts, folder: Path, **options: Any) -> Any:
    """Start a server on the first host, and a client on the second, which runs a program for each line of its input."""
    authority = Authority(folder, "ca")
    authority.issue("server", f"IP:{hosts.addresses[0]}")
    authority.issue("alice")
    place = f"{hosts.addresses[0]}:8470"
    job = start_job(
        [SERVER, CLIENT],
        environment={"FOLDER": str(folder), "PLACE": place, "OPTIONS": repr(options)},
        address=place,
        place=hosts.command,
    )
    job[0].hear("grpcs://")
    assert ask(job) == "result 6.0"
    return job


def ask(job: Any, word: str = "connect") -> str:
    job[1].say(word)
    return str(job[1].hear(""))


def test_a_client_over_slow_wires(make_hosts: MakeHosts, start_job: StartJob, tmp_path: Path) -> None:
    job = start(start_job, make_hosts(2, delay=0.05, loss=0.01, rate=1e6), tmp_path)
    assert [ask(job, "run") for _ in range(3)] == ["result 6.0"] * 3


@pytest.mark.parametrize(("seconds", "options"), [(5, {}), (60, {"heartbeat_timeout": 300.0})])
def test_a_partition_that_is_shorter_than_the_heartbeat_timeout(
    make_hosts: MakeHosts, start_job: StartJob, tmp_path: Path, seconds: float, options: dict[str, Any]
) -> None:
    hosts = make_hosts(2)
    job = start(start_job, hosts, tmp_path, **options)
    with hosts.partition(1, seconds):
        job[1].say("run")
    assert job[1].hear("") == "result 6.0"


def test_a_longer_partition_ends_the_session_on_both_sides(
    make_hosts: MakeHosts, start_job: StartJob, tmp_path: Path
) -> None:
    """A new client works as soon as the server is reached again."""
    hosts = make_hosts(2)
    job = start(start_job, hosts, tmp_path, heartbeat_timeout=4.0)
    hosts.cut_off(1)
    message = ask(job, "run")
    assert message.startswith("UnavailableError")
    assert f"{hosts.addresses[0]}:8470" in message
    job[0].say()
    while job[0].hear("sessions") != "sessions 0":
        job[0].say()
    hosts.cut_off(1, cut=False)
    assert ask(job) == "result 6.0"


def test_a_server_that_cannot_be_reached_is_named(make_hosts: MakeHosts, start_job: StartJob, tmp_path: Path) -> None:
    hosts = make_hosts(2)
    job = start(start_job, hosts, tmp_path)
    hosts.cut_off(1)
    message = ask(job)
    assert message.startswith("UnavailableError")
    assert f"{hosts.addresses[0]}:8470" in message
