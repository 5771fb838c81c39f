"""The options of ``pjrt.cluster``: what they may be, and the errors for what they may not be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pjrt
from pjrt.clusters.launchers.launcher import LocalLauncher
from pjrt.clusters.settings import host_names


@pytest.mark.parametrize(
    ("hosts", "names"),
    [
        (3, 3),
        (["a", "b"], ["a", "b"]),
        ("a,b:2", ["a", "b", "b"]),
        (("me@a:2",), ["me@a", "me@a"]),
        ("a:b", ["a:b"]),
    ],
)
def test_hosts_are_a_number_or_names(hosts: Any, names: Any) -> None:
    assert host_names(hosts) == names


@pytest.mark.parametrize("hosts", [None, 0, -1, True, 1.5, "", [], [""], ["a", 1], "-oProxyCommand=x", "a:0", 70000])
def test_other_hosts_are_errors(hosts: Any) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match="expected hosts=4, or the names of hosts"):
        host_names(hosts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": ""}, "expected the name of a device"),
        ({"device": 1}, "expected the name of a device"),
        ({"device": "cluster"}, "expected a device of the workers, found 'cluster'"),
        ({"options": 1}, "expected the device's options as a dict"),
        ({"options": {"num_devices": 2}, "num_devices": 2}, "the option num_devices of the device is there twice"),
        ({"memory": object()}, "the option memory goes to the workers, which take strings, numbers"),
        ({"environment": {"A": 1}}, "expected environment as a dict of strings"),
        ({"working_directory": 3}, "expected a path as working_directory"),
        ({"logs": 3}, "expected logs='show', 'hide' or a directory"),
        ({"logs": "/dev/null/folder"}, "expected logs='show', 'hide' or a directory"),
        ({"start_timeout": 0}, "expected start_timeout as seconds"),
        ({"heartbeat_timeout": "1"}, "expected heartbeat_timeout as seconds"),
        ({"controller_address": 3}, "expected HOST or HOST:PORT as controller_address"),
        ({"controller_address": "here"}, "controller_address is for workers on other machines"),
        ({"launcher": "boat"}, "expected one of the launchers local, ssh, ray, external"),
        ({"launcher": LocalLauncher(2, {})}, "has its hosts already; leave out hosts=2"),
    ],
)
def test_a_wrong_option_is_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(pjrt.InvalidArgumentError) as raised:
        pjrt.cluster(2, progress=False, **options)
    assert message in raised.value.message


def test_the_device_cluster_needs_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PJRT_CLUSTER_HOSTS", raising=False)
    with pytest.raises(pjrt.InvalidArgumentError, match="needs the option hosts"):
        pjrt.client("cluster")
    with pytest.raises(pjrt.InvalidArgumentError, match="has no option 'progress'; call pjrt"):
        pjrt.client("cluster", hosts=2, progress=True)


def test_the_environment_may_name_the_hosts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PJRT_CLUSTER_HOSTS", "2")
    with pytest.raises(pjrt.FailedPreconditionError, match="cannot start worker 0 on local0"):
        pjrt.client("cluster", working_directory=str(tmp_path / "missing"))
