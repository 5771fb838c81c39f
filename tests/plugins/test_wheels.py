"""Vendors' plugins by name: found where their wheels are installed, and named where they are not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pjrt
from pjrt import plugins
from pjrt.plugins import _wheels, registry

LIBRARIES = [(name, wheel) for name, wheels in _wheels.WHEELS.items() for wheel in wheels]


def run(code: str, path: Path, **environment: str) -> str:
    """What code prints in a process that finds packages in a folder first."""
    cleared = {name: value for name, value in os.environ.items() if not name.startswith("TPU_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=cleared | {"PYTHONPATH": str(path)} | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(("name", "wheel"), LIBRARIES, ids=[wheel.distribution for _, wheel in LIBRARIES])
def test_a_library_is_found_in_its_package_without_importing_it(
    name: str, wheel: _wheels.Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / wheel.library
    library.parent.mkdir(parents=True)
    (library.parent / "__init__.py").write_text("raise RuntimeError('imported')")
    library.touch()
    monkeypatch.setitem(_wheels.WHEELS, name, (wheel,))
    monkeypatch.syspath_prepend(tmp_path)
    assert _wheels.library(name) == library


@pytest.mark.parametrize("name", _wheels.WHEELS)
def test_a_plugin_that_is_not_installed_names_its_wheel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = tuple(
        _wheels.Wheel(wheel.distribution, f"no_such_{number}/x.so") for number, wheel in enumerate(_wheels.WHEELS[name])
    )
    monkeypatch.setitem(_wheels.WHEELS, name, missing)
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
    patterns = {
        name: tuple(str(tmp_path / Path(pattern).name) for pattern in patterns if "vfio" not in pattern)
        for name, patterns in _wheels._DEVICE_FILES.items()
    }
    monkeypatch.setattr(_wheels, "_DEVICE_FILES", patterns)
    monkeypatch.syspath_prepend(tmp_path)
    for name in _wheels.WHEELS:
        wheel = _wheels.Wheel(f"wheel-of-{name}", f"a_package_with_{name}/plugin.so")
        monkeypatch.setitem(_wheels.WHEELS, name, (wheel,))
        if name in installed:
            (tmp_path / wheel.library).parent.mkdir()
            (tmp_path / wheel.library).touch()
    assert registry.default() == found
    assert found in plugins.names()


def test_a_name_leads_to_a_plugin(tiny_library: Path, tmp_path: Path) -> None:
    package = tmp_path / "jax_plugins" / "xla_cuda13"
    package.mkdir(parents=True)
    (package / "xla_cuda_plugin.so").symlink_to(tiny_library)
    code = """
import pjrt
assert pjrt.load_plugin("cuda") is pjrt.plugins.find("cuda")
print(len(pjrt.topology("cuda", "2x2").device_descriptions), len(pjrt.client("cuda", num_devices=3).devices))
"""
    assert run(code, tmp_path) == "4 3"


@pytest.mark.skipif(
    any(Path("/dev").glob("accel[0-9]*")) or any(Path("/dev/vfio").glob("[0-9]*")), reason="a TPU may be here"
)
def test_libtpu_does_not_look_for_a_tpu_that_is_not_here(tiny_library: Path, tmp_path: Path) -> None:
    (tmp_path / "libtpu").mkdir()
    (tmp_path / "libtpu" / "libtpu.so").symlink_to(tiny_library)
    code = """
import os, pjrt
pjrt.load_plugin("tpu")
print(os.environ["TPU_SKIP_MDS_QUERY"], os.environ["TPU_WORKER_ID"])
"""
    assert run(code, tmp_path) == "1 0"
    assert run(code, tmp_path, TPU_WORKER_ID="7") == "1 7"


def test_other_plugins_leave_the_environment_alone(tiny_library: Path, tmp_path: Path) -> None:
    load = f"import os, pjrt; pjrt.load_plugin({str(tiny_library)!r})"
    code = f"{load}; print([name for name in os.environ if name.startswith('TPU_')])"
    assert run(code, tmp_path) == "[]"
