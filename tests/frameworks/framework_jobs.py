"""The jobs of frameworks that run on JAX: their parts, and the devices on which they run.

A job is a module ``NAME_job.py`` with functions that are marked by ``part``. Each returns arrays by name. A job runs in
a process for each device, on eight devices, and its results are compared with those of JAX's own CPU backend. The
programs know nothing of this package. The first part of each job is the framework's code on the page
``docs/frameworks/index.md``.

``run_jobs.py`` runs jobs.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "frameworks" / "index.md"

JAX_CPU = "jax"
"""JAX's own CPU backend, without this package: what the devices are compared with."""

DEVICES = ("cpu", "reference", "mychip", "iree")
"""The devices under test; ``mychip`` is the scaffold that ``pjrt new-plugin mychip`` writes."""

CLUSTER = "cluster"
"""Four workers with two ``cpu`` devices each; jobs are run on it by hand, and it has no column on the page."""

NUM_DEVICES = 8
TIME_LIMIT = 1200

Results = Mapping[str, Any]


@dataclass(frozen=True)
class Framework:
    """A framework on the page.

    Attributes:
        heading: the heading of its section on the page.
        packages: the packages whose versions are recorded.
        compared: the variables of its code on the page that are compared.
        tolerance: the largest difference of these, relative to the largest number of the array.
    """

    heading: str
    packages: tuple[str, ...]
    compared: tuple[str, ...]
    tolerance: float = 1e-5


FRAMEWORKS = {
    "jax": Framework("JAX", ("jax",), ("losses",)),
    "sparse": Framework("Sparse matrices", ("jax",), ("solution",)),
    "flax": Framework("Flax (NNX)", ("flax",), ("losses",)),
    "equinox": Framework("Equinox", ("equinox",), ("losses",)),
    "optax": Framework("Optax", ("optax",), ("losses",)),
    "keras": Framework("Keras 3", ("keras",), ("losses",)),
    "numpyro": Framework("NumPyro", ("numpyro",), ("means",), tolerance=1e-2),
    "orbax": Framework("Orbax", ("orbax-checkpoint",), ("restored",)),
    "diffrax": Framework("Diffrax", ("diffrax",), ("populations",), tolerance=1e-4),
    "distrax": Framework("Distrax", ("distrax",), ("losses",)),
}
"""The frameworks by the names of their jobs."""


@dataclass(frozen=True)
class Part:
    """A program of a job.

    Attributes:
        name: its name, the function's.
        run: the function, which returns arrays by name.
        tolerance: the largest difference of an array, relative to the largest number in it.
    """

    name: str
    run: Callable[[], Results]
    tolerance: float


def part(tolerance: float = 1e-5) -> Callable[[Callable[[], Results]], Part]:
    """Return a decorator that makes a function a part of the job in its module."""
    return lambda function: Part(function.__name__, function, tolerance)


def parts(name: str) -> Iterator[Part]:
    """Yield the parts of a job: the code on the page, then those of its module. The framework must be installed."""
    framework = FRAMEWORKS[name]
    yield Part("this page", lambda: run_page(framework), framework.tolerance)
    module = importlib.import_module(f"{name}_job")
    yield from (value for value in vars(module).values() if isinstance(value, Part))


def page_blocks(heading: str) -> list[str]:
    """Return the Python blocks of a section of the page."""
    section = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    if section is None:
        raise LookupError(f"{PAGE.name} has no section {heading!r}")
    return re.findall(r"^```python\n(.*?)^```", section[1], re.DOTALL | re.MULTILINE)


DATA = "The data"
"""The section of the page with the arrays that the others use."""


def run_page(framework: Framework) -> Results:
    """Run the code of a framework on the page, with the arrays that it uses; return what is compared."""
    names: dict[str, Any] = {}
    for heading in (DATA, framework.heading):
        for code in page_blocks(heading):
            exec(compile(code, f"{PAGE}, {heading}", "exec"), names)
    return {name: names[name] for name in framework.compared}


@dataclass(frozen=True)
class Outcome:
    """The results of a job on a device.

    Attributes:
        arrays: the results by ``part/name``.
        seconds: the time of each part.
        tolerances: the tolerance of each part.
        error: why it failed; empty if it did not.
    """

    arrays: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    tolerances: Mapping[str, float] = field(default_factory=dict)
    error: str = ""


def run_on(device: str, name: str, folder: Path) -> Outcome:
    """Run a job on a device, in a subprocess.

    Args:
        device: one of ``DEVICES``, ``CLUSTER``, or ``JAX_CPU``.
        name: the job.
        folder: a folder for files, the same for all devices of a job.
    """
    target = folder / f"{device}.npz"
    environment = {**os.environ, "JOB_FOLDER": str(folder), "TF_CPP_MIN_LOG_LEVEL": "2"}
    environment.pop("JAX_PLATFORMS", None)
    if device == "cpu":
        environment["JAX_PLATFORMS"] = "pjrt_cpu"  # JAX finds it as "cpu" where JAX's own is left out
    command = [sys.executable, "-X", "faulthandler", __file__, device, name, str(target)]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired:
        return Outcome(error=f"not done after {TIME_LIMIT} seconds")
    if done.returncode != 0:
        return Outcome(error=f"exit code {done.returncode}: {done.stderr[-3000:]}")
    with np.load(target) as file:
        arrays = dict(file)
    seconds, tolerances = json.loads(str(arrays.pop("parts")))
    return Outcome(arrays, seconds, tolerances)


def difference(result: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    """Return the largest difference of two arrays, relative to the largest number; infinity if the shapes differ."""
    if result.shape != expected.shape or not np.array_equal(np.isfinite(result), np.isfinite(expected)):
        return np.inf
    if result.size == 0:
        return 0.0
    largest = np.abs(np.nan_to_num(expected)).max()
    return float(np.abs(np.nan_to_num(result) - np.nan_to_num(expected)).max() / (largest or 1.0))


def largest_difference(outcome: Outcome, expected: Outcome, part: str) -> float:
    """Return the largest difference of the arrays of a part; infinity if one of them is missing."""
    names, expected_names = (
        {name for name in each.arrays if name.startswith(f"{part}/")} for each in (outcome, expected)
    )
    if names != expected_names:
        return np.inf
    return max(difference(outcome.arrays[name], expected.arrays[name]) for name in names)


def scaffold(folder: Path) -> str:
    """Write the plugin ``mychip`` as ``pjrt new-plugin`` does; return the name of its function that makes clients."""
    subprocess.run([sys.executable, "-m", "pjrt", "new-plugin", "mychip"], cwd=folder, check=True, capture_output=True)
    return f"{folder}/mychip/src/mychip/__init__.py:make_client"


def register(device: str, folder: Path) -> str:
    """Make a device JAX's default, and return its name in JAX. The folder is for files of the device."""
    if device == JAX_CPU:
        import jax

        jax.config.update("jax_num_cpu_devices", NUM_DEVICES)
        return "cpu"
    import pjrt

    target = scaffold(folder) if device == "mychip" else device
    os.environ["JOB_TARGET"] = "cpu" if device == CLUSTER else target  # for the processes that a job starts
    options: dict[str, Any] = {"num_devices": NUM_DEVICES}
    if device == "iree":
        options["cache"] = str(folder / "modules")
    if device == CLUSTER:
        options |= {"hosts": 4, "num_devices": NUM_DEVICES // 4, "logs": "hide"}
    return pjrt.frameworks.jax.register(
        target, platform=device if target != device else None, make_default=True, **options
    )


def run_here(device: str, name: str, target: Path) -> None:
    """Run a job on a device in this process, and write the results to a file."""
    platform = register(device, target.parent)
    sys.path.insert(0, str(HERE))
    import jax

    assert len(jax.devices(platform)) == len(jax.devices()) == NUM_DEVICES, jax.devices()
    arrays: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    tolerances: dict[str, float] = {}
    for each in parts(name):
        begin = time.perf_counter()
        for key, value in each.run().items():
            arrays[f"{each.name}/{key}"] = np.asarray(value, np.float64)
        seconds[each.name] = time.perf_counter() - begin
        tolerances[each.name] = each.tolerance
    if device not in (JAX_CPU, "cpu"):
        programs = jax.devices("cpu")[0].client.live_executables()
        assert not programs, f"{len(programs)} programs were compiled for JAX's own CPU backend"
    np.savez(target, parts=json.dumps([seconds, tolerances]), **arrays)


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="Explicitly requested dtype")
    # As a module of its own name, so that the jobs' parts have the classes of the module that they import.
    importlib.import_module("framework_jobs").run_here(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
