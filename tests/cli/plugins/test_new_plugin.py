"""``pjrt new-plugin``: what it writes works, from Python and from JAX, without a change."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

import pjrt
from pjrt.cli.new_plugin import _supported_versions


def run(*command: str, path: Path | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=180, env=environment, cwd=cwd
    )


@pytest.fixture
def package(tmp_path: Path) -> Path:
    done = run("-m", "pjrt", "new-plugin", "gadget", "--folder", str(tmp_path))
    assert done.returncode == 0, done.stderr
    return tmp_path / "gadget"


def install(package: Path) -> None:
    """Write what an installation leaves behind for entry points: metadata beside the package."""
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    metadata = package / "src" / "gadget-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")


@pytest.mark.full
def test_its_own_tests_pass(package: Path) -> None:
    install(package)
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", path=package / "src", cwd=package)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "11 passed" in done.stdout


@pytest.mark.full
def test_what_others_are_told_is_understood(package: Path) -> None:
    install(package)
    done = run("-m", "pjrt", "plugins", "gadget", "--json", path=package / "src")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert not found["problem"]
    assert found["options"] == {"num_devices": 1}
    assert found["frameworks"] == {"jax": {"platform": "gadget"}, "torch_xla": {"name": "GADGET"}}


@pytest.mark.full
def test_pytorch_xla_finds_it(package: Path) -> None:
    """As far as that goes without PyTorch/XLA: its entry point leads to what answers for this device."""
    install(package)
    code = """
import importlib.metadata, pjrt
from pjrt.frameworks import torch_xla
torch_xla._plugin_class = lambda: torch_xla.TorchXlaDevice
(point,) = importlib.metadata.entry_points(group="torch_xla.plugins", name="GADGET")
plugin = point.load()()
with pjrt.load_plugin(plugin.library_path()).client(**plugin.client_create_options()) as client:
    print(plugin.name, client.platform_name)
"""
    done = run("-c", code, path=package / "src")
    assert done.stdout.split() == ["GADGET", "gadget"], done.stderr


@pytest.mark.full
def test_its_devices_are_shared_between_processes(package: Path) -> None:
    install(package)
    code = """
import os, pjrt
os.environ["PJRT_OPTIONS_GADGET"] = "num_devices=4"
print(pjrt.plugins.assign_devices("gadget", 1, 2).devices)
with pjrt.client("gadget") as client:
    print([device.id for device in client.addressable_devices])
"""
    done = run("-c", code, path=package / "src")
    assert done.stdout.splitlines() == ["(2, 3)", "[2, 3]"], done.stderr


@pytest.mark.full
def test_jax_goes_on_without_one_that_is_broken(package: Path) -> None:
    install(package)
    (package / "src" / "gadget" / "__init__.py").write_text("import nothing_of_this_name\n")
    done = run("-c", "import jax; print(jax.devices())", path=package / "src")
    assert done.returncode == 0, done.stderr
    assert "CpuDevice" in done.stdout


@pytest.mark.full
def test_it_is_listed(package: Path) -> None:
    install(package)
    done = run("-m", "pjrt", "devices", "gadget", path=package / "src")
    assert done.returncode == 0, done.stderr
    assert "gadget" in done.stdout


def test_a_broken_one_says_whose_it_is(package: Path) -> None:
    install(package)
    (package / "src" / "gadget" / "__init__.py").write_text("import nothing_of_this_name\n")
    done = run("-m", "pjrt", "devices", "gadget", path=package / "src")
    assert done.returncode == 2
    assert "entry point pjrt.plugins of gadget" in done.stderr
    assert "nothing_of_this_name" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("name", ["My-Device", "1st", "a b", "class"])
def test_a_name_that_is_none(tmp_path: Path, name: str) -> None:
    done = run("-m", "pjrt", "new-plugin", name, "--folder", str(tmp_path))
    assert done.returncode == 2
    assert "mydevice" in done.stderr
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(package: Path) -> None:
    done = run("-m", "pjrt", "new-plugin", "gadget", "--folder", str(package.parent))
    assert done.returncode == 2
    assert "exists already" in done.stderr


def test_no_package_is_hidden(tmp_path: Path) -> None:
    done = run("-m", "pjrt", "new-plugin", "numpy", "--folder", str(tmp_path))
    assert done.returncode == 2
    assert "'numpy' is here already" in done.stderr
    assert not list(tmp_path.iterdir())


def test_no_device_is_hidden(tmp_path: Path) -> None:
    done = run("-m", "pjrt", "new-plugin", "cpu", "--folder", str(tmp_path))
    assert done.returncode == 2
    assert "a device called 'cpu' is here already" in done.stderr
    assert not list(tmp_path.iterdir())


def test_one_for_tensorflow_has_its_adapter(tmp_path: Path) -> None:
    """TensorFlow itself has it in ``tensorflow_job.py``."""
    done = run("-m", "pjrt", "new-plugin", "gadget", "--tensorflow", "--folder", str(tmp_path))
    assert done.returncode == 0, done.stderr
    package = tmp_path / "gadget"
    project = tomllib.loads((package / "pyproject.toml").read_text())
    assert "tensorflow-cpu==2.21.*" in project["build-system"]["requires"]
    assert project["project"]["optional-dependencies"]["tensorflow"] == ["tensorflow-cpu==2.21.*"]
    assert 'tf.device("GADGET:0")' in (package / "README.md").read_text()


@pytest.mark.full
def test_one_for_tensorflow_is_not_built_without_it(tmp_path: Path) -> None:
    pytest.importorskip("setuptools.command.bdist_wheel", reason="setuptools is older than the package asks for")
    assert run("-m", "pjrt", "new-plugin", "gadget", "--tensorflow", "--folder", str(tmp_path)).returncode == 0
    package = tmp_path / "gadget"
    (package / "tensorflow.py").write_text("raise ImportError('not here')\n")
    done = run("setup.py", "-q", "build_py", "--build-lib", "built", path=package, cwd=package)
    assert done.returncode == 1
    assert "pip install tensorflow-cpu" in done.stderr
    assert (package / "built" / "gadget" / "__init__.py").is_file()


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("mytpu", (), "without cpu, gpu and tpu"),
        ("my_c_pu", (), "without cpu, gpu and tpu"),
        ("gadget", ("--driver",), "give --driver or --tensorflow"),
    ],
)
def test_one_that_tensorflow_cannot_have(tmp_path: Path, name: str, options: tuple[str, ...], reason: str) -> None:
    done = run("-m", "pjrt", "new-plugin", name, "--tensorflow", *options, "--folder", str(tmp_path))
    assert done.returncode == 2
    assert reason in done.stderr
    assert not list(tmp_path.iterdir())


def test_what_is_written_has_no_place_left_to_fill(package: Path) -> None:
    for file in package.rglob("*"):
        assert file.is_dir() or not re.search("@[A-Z]+@", file.read_text()), file


def test_it_works_with_the_versions_that_keep_what_this_one_has() -> None:
    assert _supported_versions("0.1.0") == ">=0.1.0,<0.3"
    assert _supported_versions("0.9.2") == ">=0.9.2,<0.11"
    assert _supported_versions("2.3.1") == ">=2.3.1,<3"


def make_wheel(folder: Path, *options: str) -> tuple[Path, Path]:
    """Write a package and build its wheel, without a network."""
    done = run("-m", "pjrt", "new-plugin", "gadget", *options, "--folder", str(folder))
    assert done.returncode == 0, done.stderr
    package = folder / "gadget"
    assert f'"pjrt[xla]{_supported_versions(pjrt.__version__)}"' in (package / "pyproject.toml").read_text()
    offline = ("--no-deps", "--no-build-isolation")
    done = run("-m", "pip", "wheel", "-q", *offline, "--wheel-dir", "wheels", ".", cwd=package)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (package / "wheels").iterdir()
    return package, wheel


@pytest.fixture(scope="module")
def driver_wheel(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A package with a driver in C, and its wheel."""
    return make_wheel(tmp_path_factory.mktemp("driver"), "--driver")


@pytest.fixture(scope="module")
def driver_package(driver_wheel: tuple[Path, Path]) -> tuple[Path, Path]:
    """The package, and the folder in which its wheel was unpacked."""
    package, wheel = driver_wheel
    zipfile.ZipFile(wheel).extractall(package.parent / "site")
    return package, package.parent / "site"


@pytest.mark.full
def test_the_wheel_of_a_driver_is_for_one_platform_and_every_python(driver_wheel: tuple[Path, Path]) -> None:
    assert re.fullmatch(r"gadget-0\.1\.0-py3-none-(?!any).+\.whl", driver_wheel[1].name)
    with zipfile.ZipFile(driver_wheel[1]) as wheel:
        assert wheel.read("gadget/_driver.so").startswith(b"\x7fELF")
        assert b"Root-Is-Purelib: false" in wheel.read("gadget-0.1.0.dist-info/WHEEL")


USE_IN_JAX = """
import jax, numpy as np
device = jax.devices("gadget")[0]
x = jax.device_put(np.arange(6, dtype=np.float32), device)
print(sorted(x.devices())[0].platform, jax.jit(lambda x: x * x + x)(x).tolist())
"""


def use_in_an_empty_environment(wheel: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Install a wheel alone into an environment that has only what this one has, and use its device in JAX."""
    python = folder / "empty" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "empty")], check=True, timeout=120)
    site = next((folder / "empty" / "lib").glob("python*")) / "site-packages"
    shared = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "shared.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in shared))
    done = run("-m", "pip", "--python", str(python), "install", "-q", "--no-index", "--no-deps", str(wheel))
    assert done.returncode == 0, done.stdout + done.stderr
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PJRT_", "JAX_", "PYTHON"))}
    environment = {**kept, "PJRT_CONFIG": os.devnull}
    return subprocess.run(
        [python, "-c", USE_IN_JAX], env=environment, cwd=folder, capture_output=True, text=True, timeout=180
    )


@pytest.mark.full
def test_jax_finds_an_installed_wheel(tmp_path: Path) -> None:
    done = use_in_an_empty_environment(make_wheel(tmp_path)[1], tmp_path)
    assert done.stdout == "gadget [0.0, 2.0, 6.0, 12.0, 20.0, 30.0]\n", done.stderr


@pytest.mark.full
def test_jax_finds_an_installed_wheel_with_a_driver(driver_wheel: tuple[Path, Path], tmp_path: Path) -> None:
    done = use_in_an_empty_environment(driver_wheel[1], tmp_path)
    assert done.stdout == "gadget [0.0, 2.0, 6.0, 12.0, 20.0, 30.0]\n", done.stderr


def conform_as_its_workflow_does(package: Path, site: Path) -> None:
    """Run the check of the package's workflow, with few of its checks."""
    steps = (package / ".github" / "workflows" / "ci.yml").read_text().splitlines()
    (command,) = [line.partition("run: ")[2] for line in steps if "pjrt conform" in line]
    few = " --filter lookup_device --filter 'buffer.element_type[s1]'"
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {**os.environ, "PYTHONPATH": str(site), "PATH": path}
    done = subprocess.run(
        command + few, shell=True, cwd=package, env=environment, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert pjrt.conformance.PluginReport.read(package / "report.json").facts["device_kinds"]


@pytest.mark.full
def test_its_workflow_checks_the_device(package: Path) -> None:
    install(package)
    conform_as_its_workflow_does(package, package / "src")


@pytest.mark.full
def test_the_workflow_of_one_with_a_driver_checks_its_library(driver_package: tuple[Path, Path]) -> None:
    conform_as_its_workflow_does(*driver_package)


@pytest.mark.full
def test_the_tests_of_one_with_a_driver_pass(driver_package: tuple[Path, Path]) -> None:
    package, site = driver_package
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", path=site, cwd=package)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
