"""PyTorch/XLA's interface of a device, answered without PyTorch/XLA; the processes of a job are real ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pjrt
from pjrt.frameworks._served import JAX, Served
from pjrt.frameworks.torch_xla import OPTIONS_VARIABLE, TorchXlaDevice, _from_environment
from pjrt.plugins import Declaration, ProcessOptions, visible_devices

PROCESS = """
import json, sys
import numpy as np
import pjrt
from pjrt.frameworks.torch_xla import TorchXlaDevice

# What PyTorch/XLA does in each process that it starts: say who the process is, then ask for the client.
device = TorchXlaDevice("reference", {"num_devices": 4})
rank, size = int(sys.argv[1]), device.physical_chip_count()
device.configure_multiprocess(rank, size)
plugin = pjrt.load_plugin(device.library_path())
with plugin.client(**device.client_create_options()) as client:
    (mine,) = client.addressable_devices
    (y,) = client.compile(
        "func.func @main(%x: tensor<f32>) -> tensor<f32> {"
        " %0 = stablehlo.add %x, %x : tensor<f32> return %0 : tensor<f32> }"
    )(np.float32(rank))
    print(json.dumps([size, len(client.devices), mine.id, float(np.asarray(y))]))
try:
    device.configure_multiprocess((rank + 1) % size, size)
except pjrt.FailedPreconditionError as error:
    print(error.message)
"""


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visible_devices, "_assigned", {})
    monkeypatch.setattr(visible_devices, "_started", set())
    for variable in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def vendors(tmp_path: Path, tiny_library: Path) -> str:
    """A vendor's plugin with four devices, as a user of its wheel would have it."""
    for number in range(4):
        (tmp_path / f"gpu{number}").touch()
    plugin = Declaration(
        "vendors",
        "a test",
        library=tiny_library,
        hardware=(str(tmp_path / "gpu*"),),
        options={"platform_name": "tiny"},
        environment={"PJRT_TEST_OF_A_VENDOR": "1"},
        processes=ProcessOptions(devices="visible_devices", index="node_id", total="num_nodes"),
    )
    pjrt.plugins.register(plugin)
    return plugin.name


@pytest.fixture(autouse=True)
def _nothing_registered() -> object:
    yield
    for name in ("vendors", "said", "object"):
        if name in pjrt.plugins.names():
            pjrt.plugins.unregister(name)
    os.environ.pop("PJRT_TEST_OF_A_VENDOR", None)


@pytest.mark.full
def test_the_processes_of_a_job_have_a_device_each() -> None:
    started = [
        subprocess.Popen([sys.executable, "-c", PROCESS, str(rank)], stdout=subprocess.PIPE, text=True)
        for rank in range(4)
    ]
    answers = [process.communicate(timeout=120)[0].splitlines() for process in started]
    for rank, (first, second) in enumerate(answers):
        assert json.loads(first) == [4, 4, rank, 2.0 * rank]
        assert "made a client in this process already" in second


def test_a_device_in_python_comes_through_a_library_of_ours() -> None:
    device = TorchXlaDevice("reference", {"num_devices": 3})
    assert device.name == "PJRT_REFERENCE"
    assert Path(device.library_path()).is_file()
    assert device.client_create_options() == {"num_devices": 3}
    assert device.host_index() == 0
    assert device.physical_chip_count() == 3
    assert not device.requires_xla_coordinator()


def test_a_single_process_has_one_device() -> None:
    device = TorchXlaDevice("reference", {"num_devices": 3})
    device.configure_single_process()
    assert visible_devices.assigned(pjrt.plugins.declaration("reference")).devices == (0,)  # type: ignore[union-attr]


def test_a_vendors_plugin_is_its_own_library_with_its_own_options(vendors: str, tiny_library: Path) -> None:
    device = TorchXlaDevice(vendors, {"bytes_limit": 1 << 20})
    device.configure_multiprocess(2, 4)
    assert device.physical_chip_count() == 4
    assert device.library_path() == str(tiny_library)
    assert os.environ["PJRT_TEST_OF_A_VENDOR"] == "1"
    assert device.client_create_options() == {
        "platform_name": "tiny",
        "visible_devices": [2],
        "node_id": 2,
        "num_nodes": 4,
        "bytes_limit": 1 << 20,
    }
    assert device.requires_xla_coordinator()


def test_the_options_of_a_user_come_before_the_share_of_the_process(vendors: str) -> None:
    """With JAX; PyTorch/XLA's name all devices of the machine."""
    TorchXlaDevice(vendors).configure_multiprocess(2, 4)
    options = Served(vendors, JAX, {"visible_devices": (3,)}).own_options()
    assert (options["visible_devices"], options["node_id"]) == ([3], 2)


@pytest.mark.parametrize(("text", "reason"), [("[1]", r"must be a table, found \[1\]"), ("{", "not written in JSON")])
def test_options_of_the_environment_that_are_no_table(text: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OPTIONS_VARIABLE, text)
    with pytest.raises(pjrt.InvalidArgumentError, match=reason):
        _from_environment()


def test_a_vendors_plugin_comes_through_this_package_where_that_is_asked_for(vendors: str) -> None:
    device = TorchXlaDevice(vendors, wrap=True)
    assert device.client_create_options() == {}
    assert device.library_path() != TorchXlaDevice(vendors).library_path()


def test_what_a_plugin_says_for_pytorch_holds() -> None:
    facts = {"torch_xla": {"name": "SAID", "coordinator": True}}
    pjrt.plugins.register(name="said", factory="somewhere:make", frameworks=facts)
    device = TorchXlaDevice("said")
    assert device.name == "SAID"
    assert device.requires_xla_coordinator()


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"nmae": "X"}, r"unknown key frameworks\.torch_xla\.nmae"),
        ({"coordinator": 1}, "must be of type bool, found 1"),
    ],
)
def test_what_a_plugin_says_wrongly_is_told(facts: dict[str, object], reason: str) -> None:
    pjrt.plugins.register(name="said", factory="somewhere:make", frameworks={"torch_xla": facts})
    with pytest.raises(pjrt.InvalidArgumentError, match=reason):
        TorchXlaDevice("said").requires_xla_coordinator()


def test_a_library_is_named_by_its_file(tiny_library: Path) -> None:
    assert TorchXlaDevice(tiny_library).name == "PJRT_" + tiny_library.stem.removeprefix("lib").upper()


def test_a_device_that_is_not_there_is_told() -> None:
    with pytest.raises(pjrt.NotFoundError, match="no device called 'nothing'"):
        TorchXlaDevice("nothing").library_path()


@pytest.mark.parametrize(("name", "platform"), [("said", "said"), ("said_2", "pjrt")])
def test_the_launcher_can_read_the_platforms_name(name: str, platform: str, tmp_path: Path) -> None:
    """PyTorch/XLA's launcher reads names of devices that are letters and a number: ``SAID:0``."""
    (tmp_path / "said.py").write_text(
        f"import pjrt\ndef make(**options): return pjrt.StableHloClient({name!r}, fallback='reference', **options)\n"
    )
    pjrt.plugins.register(name=name, factory=f"{tmp_path / 'said.py'}:make")
    try:
        device = TorchXlaDevice(name)
        with pjrt.load_plugin(device.library_path()).client(**device.client_create_options()) as client:
            assert client.platform_name == platform
    finally:
        pjrt.plugins.unregister(name)


def test_a_device_that_no_other_process_can_import_is_refused() -> None:
    pjrt.plugins.register(name="object", factory=lambda: pjrt.client("reference"))
    with pytest.raises(pjrt.InvalidArgumentError, match="registered in this process with an object"):
        TorchXlaDevice("object").library_path()


HOLD = """
import sys
from pjrt.frameworks.torch_xla import TorchXlaDevice
TorchXlaDevice("lonely").client_create_options()
print("held", flush=True)
sys.stdin.readline()
"""


def test_a_vendors_devices_that_cannot_be_shared_are_pytorchs_alone(
    tmp_path: Path, tiny_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[plugins.lonely]\nlibrary = "{tiny_library}"\nsharing = "one-process"\n')
    monkeypatch.setenv("PJRT_CONFIG", str(config))
    monkeypatch.setenv("PJRT_LOCK_FOLDER", str(tmp_path))
    holder = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(pjrt.FailedPreconditionError, match=f"process {holder.pid}"):
            pjrt.client("lonely")
        holder.kill()
    pjrt.client("lonely").close()
