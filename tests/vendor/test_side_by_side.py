"""Three packages from ``pjrt new-plugin``, installed beside the wheels of the TPU and of CUDA in one environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import new_packages
import pytest

pytestmark = pytest.mark.vendor

VENDORS = ("tpu", "cuda")


def pip_install(package: Path, site: Path) -> None:
    """A real installation, for which nothing is fetched."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--target", str(site), str(package)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_packages.make(tmp_path_factory.mktemp("three"), pip_install)


def test_all_appear_with_their_state(site: Path) -> None:
    listed = {plugin["name"]: plugin for plugin in new_packages.ask(site, "plugins")["plugins"]}
    states = {name: listed[name]["state"] for name in (*new_packages.NAMES, *VENDORS)}
    assert states == {**dict.fromkeys(new_packages.NAMES, "ready"), **dict.fromkeys(VENDORS, "no hardware")}
    assert {listed[name]["version"] for name in new_packages.NAMES} == {"0.1.0"}
    assert listed["tpu"]["extensions"]
    assert listed["cuda"]["extensions"]


def test_programs_are_judged_for_each(site: Path, tmp_path: Path, h100: Path) -> None:
    devices = tuple(new_packages.VERDICTS)
    for name, program in new_packages.write_programs(tmp_path).items():
        options = [part for device in devices for part in ("--device", device)]
        said = new_packages.ask(site, "check", str(program), *options, codes=(0, 1))
        verdicts = {one["device"]: one["verdict"] for one in said["devices"]}
        assert verdicts == {device: new_packages.VERDICTS[device][name] for device in devices}, name
        runs = name != "call"
        for topology in (["tpu:v5e:2x2"], ["cuda:cuda", "-O", f"target_config=@{h100}", "-O", "topology=1x1x1"]):
            said = new_packages.ask(site, "check", str(program), "--topology", *topology, codes=(0, 1))
            assert [one["verdict"] for one in said["devices"]] == ["yes" if runs else "no"], (name, topology)


def test_both_use_all_and_one_is_swapped(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    new_packages.use_and_swap(new_packages.make(tmp_path, pip_install))
