"""Several processes of one machine, each with its own devices; the processes are real ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pjrt
from pjrt.plugins import Declaration, ProcessOptions, visible_devices

ASSIGN = """
import json, sys
import pjrt
share = pjrt.plugins.assign_devices("reference", int(sys.argv[1]), int(sys.argv[2]))
with pjrt.client("reference") as client:
    print(json.dumps([[d.id for d in client.devices], [d.id for d in client.addressable_devices]]))
"""


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visible_devices, "_assigned", {})
    monkeypatch.setattr(visible_devices, "_started", set())
    for variable in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK"):
        monkeypatch.delenv(variable, raising=False)


def chip(tmp_path: Path, number: int, **facts: object) -> Declaration:
    for device in range(number):
        (tmp_path / f"chip{device}").touch()
    return Declaration("chip", "a test", factory="chip:make", hardware=(str(tmp_path / "chip*"),), **facts)  # type: ignore[arg-type]


@pytest.mark.full
def test_processes_share_the_devices_between_them() -> None:
    environment = {**os.environ, "PJRT_OPTIONS_REFERENCE": "num_devices=4"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", ASSIGN, str(rank), "2"], stdout=subprocess.PIPE, env=environment, text=True
        )
        for rank in range(2)
    ]
    answers = [json.loads(process.communicate(timeout=120)[0]) for process in started]
    assert answers == [[[0, 1, 2, 3], [0, 1]], [[0, 1, 2, 3], [2, 3]]]


def test_devices_are_counted_by_their_files(tmp_path: Path) -> None:
    assert visible_devices.count_devices(chip(tmp_path, 4), {}) == 4


def test_what_the_environment_leaves_is_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIPS", "5,7")
    plugin = chip(tmp_path, 8, partition=("CHIPS",))
    assert visible_devices.count_devices(plugin, {}) == 2
    share = visible_devices.assign(plugin, {}, 1, 2)
    assert share.devices == (1,)
    assert share.environment == {"CHIPS": "7"}
    assert os.environ["CHIPS"] == "7"


def test_options_come_from_the_share_before_the_caller_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_OPTIONS_REFERENCE", "num_devices=4")
    pjrt.plugins.assign_devices("reference", 0, 2)
    with pjrt.client("reference") as client:
        assert len(client.addressable_devices) == 2
    with pjrt.client("reference", num_devices=1) as client:
        assert len(client.addressable_devices) == 1


def test_gpus_are_named_as_their_client_wants_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    names = ProcessOptions(devices="visible_devices", index="node_id", total="num_nodes")
    share = visible_devices.assign(chip(tmp_path, 4, processes=names, partition=("CHIPS",)), {}, 1, 4)
    assert share.options == {"visible_devices": (1,), "node_id": 5, "num_nodes": 8}
    assert share.environment == {}


def test_a_tpu_is_told_by_its_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in list(os.environ):
        if variable.startswith(("TPU_", "CLOUD_TPU_")):
            monkeypatch.delenv(variable)
    set_later = ("TPU_VISIBLE_CHIPS", "TPU_PROCESS_BOUNDS", "TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_PROCESS_ADDRESSES")
    for variable in (*set_later, "TPU_PROCESS_PORT", "CLOUD_TPU_TASK_ID"):
        monkeypatch.setenv(variable, "")  # so that the value from before this test comes back
        monkeypatch.delenv(variable)
    monkeypatch.setenv("TPU_PROCESS_PORT", "9000")
    (tmp_path / "libtpu.so").touch()
    for number in range(4):
        (tmp_path / f"accel{number}").touch()
    plugin = Declaration(
        "tpu",
        "a test",
        library=tmp_path / "libtpu.so",
        hardware=(str(tmp_path / "accel*"),),
        partition=("TPU_VISIBLE_CHIPS",),
        process_environment="pjrt.plugins.discovery.wheels:process_environment",
    )
    visible_devices.assign(plugin, {}, 3, 4)
    assert {name: os.environ[name] for name in set_later} == {
        "TPU_VISIBLE_CHIPS": "3",
        "TPU_PROCESS_BOUNDS": "2,2,1",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_ADDRESSES": "localhost:8476,localhost:8477,localhost:8478,localhost:8479",
    }
    assert os.environ["CLOUD_TPU_TASK_ID"] == "3"
    assert os.environ["TPU_PROCESS_PORT"] == "9000"


def test_too_late_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_OPTIONS_REFERENCE", "num_devices=2")
    pjrt.client("reference").close()
    with pytest.raises(pjrt.FailedPreconditionError, match="made a client in this process already"):
        pjrt.plugins.assign_devices("reference", 0, 2)


def test_a_process_is_one_of_them_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_OPTIONS_REFERENCE", "num_devices=2")
    first = pjrt.plugins.assign_devices("reference", 0, 2)
    assert pjrt.plugins.assign_devices("reference", 0, 2) is first
    with pytest.raises(pjrt.FailedPreconditionError, match="number 0 of 2"):
        pjrt.plugins.assign_devices("reference", 1, 2)


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 2), (0, 0)])
def test_a_process_that_is_none(rank: int, size: int) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=f"found {rank} of {size}"):
        pjrt.plugins.assign_devices("reference", rank, size)


def test_devices_that_cannot_be_shared_equally(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_OPTIONS_REFERENCE", "num_devices=4")
    with pytest.raises(pjrt.InvalidArgumentError, match="has 4 devices here, which 3 processes cannot share equally"):
        pjrt.plugins.assign_devices("reference", 0, 3)


def test_a_plugin_that_cannot_be_told(tmp_path: Path) -> None:
    with pytest.raises(pjrt.FailedPreconditionError, match="declare 'processes'"):
        visible_devices.assign(chip(tmp_path, 2), {}, 0, 2)
    assert visible_devices.assign(chip(tmp_path, 2), {}, 0, 1).options == {}


def test_a_machine_is_known_by_the_launchers_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = pjrt.plugins.declaration("reference")
    assert visible_devices.host_index(plugin) == 0
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert visible_devices.host_index(plugin) == 2
    monkeypatch.setenv("GROUP_RANK", "7")
    assert visible_devices.host_index(plugin) == 7


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_a_child_made_by_fork_may_have_other_devices() -> None:
    code = """
import os
import pjrt
os.environ["PJRT_OPTIONS_REFERENCE"] = "num_devices=2"
pjrt.plugins.assign_devices("reference", 0, 2)
child = os.fork()
if child == 0:
    assert pjrt.plugins.assign_devices("reference", 1, 2).devices == (1,)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", code], timeout=120, check=True)
