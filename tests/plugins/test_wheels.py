"""Vendors' plugins by name: found where their wheels are installed, and named where they are not."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import pjrt
from pjrt import plugins
from pjrt.plugins.discovery import wheels

WHEELS = [(name, wheel) for name, vendor in wheels.vendors().items() for wheel in vendor.wheels]


def run(code: str, path: Path, **environment: str) -> str:
    """Run code in a subprocess that finds packages in a folder first, and return its output."""
    cleared = {name: value for name, value in os.environ.items() if not name.startswith(("TPU_", "PJRT_"))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=cleared | {"PYTHONPATH": str(path), "XDG_CONFIG_HOME": str(path / "no settings")} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def have(monkeypatch: pytest.MonkeyPatch, name: str, *known: wheels.Wheel) -> None:
    """Has a vendor's plugin come in these wheels."""
    changed = {**wheels.vendors(), name: replace(wheels.vendors()[name], wheels=known)}
    monkeypatch.setattr(wheels, "vendors", lambda: changed)
    plugins.refresh()


@pytest.mark.parametrize(("name", "wheel"), WHEELS, ids=[wheel.distribution for _, wheel in WHEELS])
def test_a_library_is_found_in_its_package_without_importing_it(
    name: str, wheel: wheels.Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / wheel.library
    library.parent.mkdir(parents=True)
    (library.parent / "__init__.py").write_text("raise RuntimeError('imported')")
    library.touch()
    have(monkeypatch, name, wheel)
    monkeypatch.syspath_prepend(tmp_path)
    found = plugins.declaration(name)
    assert (found.library, found.origin, found.problem) == (library, f"wheel {wheel.distribution}", "")


@pytest.mark.parametrize("name", wheels.vendors())
def test_a_plugin_that_is_not_installed_names_its_wheel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = wheels.vendors()[name].wheels
    missing = [wheels.Wheel(wheel.distribution, f"no_such_{number}/x.so") for number, wheel in enumerate(known)]
    have(monkeypatch, name, *missing)
    for ask in (pjrt.client, pjrt.topology, pjrt.load_plugin):
        with pytest.raises(pjrt.NotFoundError, match=rf"plugin of '{name}'.*pip install {missing[0].distribution}"):
            ask(name)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("files", "installed", "found"),
    [
        (["nvidia0"], ["cuda"], "cuda"),
        (["nvidia0"], [], "cpu"),
        ([], ["cuda", "tpu"], "cpu"),
        (["nvidia0", "accel0"], ["cuda", "tpu"], "tpu"),
        (["kfd", "nvidiactl"], ["cuda", "rocm"], "rocm"),
    ],
)
def test_the_default_is_what_has_both_its_hardware_and_its_wheel(
    files: list[str], installed: list[str], found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in files:
        (tmp_path / file).touch()
    device_files = {"tpu": "accel[0-9]*", "cuda": "nvidia[0-9]*", "rocm": "kfd", "xpu": "nothing"}
    here = {
        name: replace(vendor, facts={**vendor.facts, "hardware": (str(tmp_path / device_files[name]),)})
        for name, vendor in wheels.vendors().items()
    }
    monkeypatch.setattr(wheels, "vendors", lambda: here)
    monkeypatch.syspath_prepend(tmp_path)
    for name in wheels.vendors():
        wheel = wheels.Wheel(f"wheel-of-{name}", f"a_package_with_{name}/plugin.so")
        have(monkeypatch, name, wheel)
        if name in installed:
            (tmp_path / wheel.library).parent.mkdir()
            (tmp_path / wheel.library).touch()
    assert plugins.default() == found
    assert found in plugins.names()


def test_a_name_leads_to_a_plugin(tiny_library: Path, tmp_path: Path) -> None:
    package = tmp_path / "jax_plugins" / "xla_cuda13"
    package.mkdir(parents=True)
    (package / "xla_cuda_plugin.so").symlink_to(tiny_library)
    code = """
import pjrt
assert pjrt.load_plugin("cuda") is pjrt.plugins.load_plugin("cuda")
print(len(pjrt.topology("cuda", "2x2").device_descriptions), len(pjrt.client("cuda", num_devices=3).devices))
"""
    assert run(code, tmp_path) == "4 3"


def test_a_library_that_is_cut_off_is_not_usable(
    tiny_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = wheels.Wheel("wheel-of-tpu", "a_package_cut_off/plugin.so")
    (tmp_path / wheel.library).parent.mkdir()
    (tmp_path / wheel.library).write_bytes(tiny_library.read_bytes()[:5000])
    monkeypatch.syspath_prepend(tmp_path)
    have(monkeypatch, "tpu", wheel)
    assert "is cut off: it has 5000 bytes" in plugins.declaration("tpu").problem
    assert "tpu" not in plugins.names()
    with pytest.raises(pjrt.FailedPreconditionError, match=r"'tpu' \(wheel wheel-of-tpu\) cannot be used: .*cut off"):
        pjrt.client("tpu")


@pytest.mark.full
@pytest.mark.skipif(
    any(Path("/dev").glob("accel[0-9]*")) or any(Path("/dev/vfio").glob("[0-9]*")), reason="a TPU may be here"
)
@pytest.mark.parametrize("asked", ["'tpu'", "pjrt.plugins.declaration('tpu').library"], ids=["name", "path"])
def test_libtpu_does_not_look_for_a_tpu_that_is_not_here(asked: str, tiny_library: Path, tmp_path: Path) -> None:
    (tmp_path / "libtpu").mkdir()
    (tmp_path / "libtpu" / "libtpu.so").write_bytes(tiny_library.read_bytes())
    code = f"""
import os, pjrt
pjrt.load_plugin({asked})
print(os.environ["TPU_SKIP_MDS_QUERY"], os.environ["TPU_WORKER_ID"])
"""
    assert run(code, tmp_path) == "1 0"
    assert run(code, tmp_path, TPU_WORKER_ID="7") == "1 7"


def test_other_plugins_leave_the_environment_alone(tiny_library: Path, tmp_path: Path) -> None:
    load = f"import os, pjrt; pjrt.load_plugin({str(tiny_library)!r})"
    code = f"{load}; print([name for name in os.environ if name.startswith('TPU_')])"
    assert run(code, tmp_path) == "[]"
