"""Packages from ``pjrt new-plugin``, made different from each other and installed side by side."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

NAMES = ("abacus", "sliderule", "comptometer")

_NO_FALLBACK = (', fallback="reference"', "")
# What is changed of the device that new-plugin writes: one has more operations, one has fewer, and none has a fallback.
_CHANGES = {
    "abacus": (_NO_FALLBACK,),
    "sliderule": (
        _NO_FALLBACK,
        ('    "stablehlo.tanh"', '    "stablehlo.sine": lambda operation, x: np.sin(x),\n    "stablehlo.tanh"'),
    ),
    "comptometer": (_NO_FALLBACK, ('    "stablehlo.tanh": lambda operation, x: np.tanh(x),\n', "")),
}

Install = Callable[[Path, Path], None]
"""Installs the package in one folder into another, which is on the search path."""


def python(*command: str, path: Path | None = None, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """Run Python with a folder on its search path."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "PJRT_CONFIG": os.devnull}
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(path), os.environ.get("PYTHONPATH", ""))))
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=timeout, env=environment, check=False
    )


def make(folder: Path, install: Install) -> Path:
    """Make and install the three packages, and return the folder that they are installed in."""
    site = folder / "site"
    site.mkdir()
    for name in NAMES:
        done = python("-m", "pjrt", "new-plugin", name, "--folder", str(folder))
        assert done.returncode == 0, done.stderr
        source = folder / name / "src" / name / "__init__.py"
        for old, new in _CHANGES[name]:
            assert old in source.read_text()
            source.write_text(source.read_text().replace(old, new))
        install(folder / name, site)
    return site


def lay_out(package: Path, site: Path) -> None:
    """Write what an installation leaves behind: the package's files, and its metadata beside them."""
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    name = project["name"]
    (package / "src" / name).rename(site / name)
    metadata = site / f"{name}-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {project['version']}\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{point} = {value}" for point, value in points.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")


def ask(site: Path, *command: str, codes: Sequence[int] = (0,), timeout: float = 240) -> Any:
    """Return what a command of ``pjrt`` prints as JSON."""
    done = python("-m", "pjrt", *command, "--json", path=site, timeout=timeout)
    assert done.returncode in codes, (done.returncode, done.stdout, done.stderr)
    return json.loads(done.stdout)


PROGRAMS = {
    "sum": "%0 = stablehlo.add %x, %x : tensor<4xf32>",
    "tanh": "%0 = stablehlo.tanh %x : tensor<4xf32>",
    "sine": "%0 = stablehlo.sine %x : tensor<4xf32>",
    "call": "%0 = stablehlo.custom_call @nobody_has_this(%x) : (tensor<4xf32>) -> tensor<4xf32>",
}

VERDICTS = {
    "abacus": {"sum": "yes", "tanh": "yes", "sine": "no", "call": "no"},
    "sliderule": {"sum": "yes", "tanh": "yes", "sine": "yes", "call": "no"},
    "comptometer": {"sum": "yes", "tanh": "no", "sine": "no", "call": "no"},
    "reference": {"sum": "yes", "tanh": "yes", "sine": "yes", "call": "no"},
    "cpu": {"sum": "yes", "tanh": "yes", "sine": "yes", "call": "no"},
}


def write_programs(folder: Path) -> dict[str, Path]:
    """Write the programs to files, and return the paths by name."""
    found = {}
    for name, body in PROGRAMS.items():
        found[name] = folder / f"{name}.mlir"
        found[name].write_text(
            f"func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{\n  {body}\n  return %0 : tensor<4xf32>\n}}\n"
        )
    return found


USE_AND_SWAP = """
import gc, json, sys
from pathlib import Path
import numpy as np
import pjrt
import jax, jax.extend

site, names = Path(sys.argv[1]), sys.argv[2:]
PROGRAM = '''func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %y : tensor<4xf32>
  return %0 : tensor<4xf32>
}'''
x, y = np.arange(4, dtype=np.float32), np.full(4, 10, np.float32)


def ours(name):
    with pjrt.client(name) as client:
        (z,) = client.compile(PROGRAM)(x, y)
        return np.asarray(z).tolist()


def jaxs(name):
    device = jax.devices(name)[0]
    return np.asarray(jax.jit(lambda a, b: a + b)(jax.device_put(x, device), jax.device_put(y, device))).tolist()


def everything():
    return {name: [ours(name), jaxs(name)] for name in names}


found = {"before": everything(), "default": jax.default_backend()}
source = site / names[0] / "__init__.py"
source.write_text(source.read_text().replace("np.add(x, y)", "np.subtract(x, y)"))
jax.clear_caches()
jax.extend.backend.clear_backends()
gc.collect()
found["changed"] = [path.name for path in pjrt.plugins.reload(names[0])]
found["after"] = everything()
print(json.dumps(found))
"""


def use_and_swap(site: Path) -> None:
    """This package and JAX use all three, and one's source is swapped while the process lives."""
    done = python("-c", USE_AND_SWAP, str(site), *NAMES, path=site)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    plus, minus = [10.0, 11.0, 12.0, 13.0], [-10.0, -9.0, -8.0, -7.0]
    assert found["default"] == "cpu"
    assert found["before"] == {name: [plus, plus] for name in NAMES}
    assert found["changed"] == ["__init__.py"]
    assert found["after"] == {NAMES[0]: [minus, minus], NAMES[1]: [plus, plus], NAMES[2]: [plus, plus]}
