"""A plugin that lacks what JAX calls: without the layer the process dies, with it JAX works or raises an error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cpu_plugins import INSTALLED, library
from tiny import build

from pjrt import layers
from pjrt.abi import schema

HERE = Path(__file__).parent
PLACES = {each.name.removeprefix("PJRT_"): 40 + 8 * each.index for each in schema.TABLE}

MEMORIES = [
    "Client_AddressableMemories",
    "Device_AddressableMemories",
    "Device_DefaultMemory",
    "Buffer_Memory",
    "Executable_OutputMemoryKinds",
    *(name for name in PLACES if name.startswith("Memory_")),
    "Buffer_CopyToMemory",
    "Executable_ParameterMemoryKinds",
]
NEVER_NEEDED = ["Plugin_Attributes", "Event_OnReady", "DeviceDescription_DebugString", "Buffer_IsOnCpu"]

RESULTS = {
    "devices": 1,
    "jit": [1, 3, 5, 7],
    "grad": [0, 2, 4, 6],
    "donated": [1, 2, 3, 4],
    "put": [0, 1, 2],
    "moved": [0, 1, 2],
}


def places(*names: str) -> str:
    return ",".join(str(PLACES[name]) for name in names)


def table_size(minor: int) -> int:
    return max(PLACES[each.name.removeprefix("PJRT_")] + 8 for each in schema.TABLE if each.minor <= minor)


@pytest.fixture(scope="module")
def libraries(tiny_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The exported device, the plugin that lacks something of it, and that with the layer before it."""
    folder = tmp_path_factory.mktemp("adapt")
    target = layers.write_library(folder / "libpass.so", "reference", ["pass"]).target
    older = build.build([HERE / "older.c"], tiny_cache, "libolder.so", ["-ldl"])
    return target, older, layers.write_library(folder / "libadapted.so", older, ["adapt"]).path


@pytest.fixture
def run_jax(libraries: tuple[Path, Path, Path]) -> Callable[..., subprocess.CompletedProcess[str]]:
    target, older, adapted = libraries

    def run(
        layered: bool, plugin: Path = target, adapt: str = "", **lacks: str | int
    ) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PJRT_NAMES_AND_LIBRARY_PATHS": f"older:{adapted if layered else older}",
            "JAX_PLATFORMS": "older",
            "OLDER_TARGET": str(plugin),
            "PYTHONWARNINGS": "ignore",
            **{f"OLDER_{key.upper()}": str(value) for key, value in lacks.items()},
            "PJRT_ADAPT": adapt,
        }
        return subprocess.run(
            [sys.executable, HERE / "adapted_jax.py"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=environment,
        )

    return run


def results(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "lacks",
    [
        pytest.param({"stubs": places(*MEMORIES, "Plugin_Attributes")}, id="stubs of memories"),
        pytest.param({"nulls": places(*MEMORIES)}, id="no memories", marks=pytest.mark.full),
        pytest.param({"nulls": places(*NEVER_NEEDED)}, id="functions that others replace", marks=pytest.mark.full),
        pytest.param({"minor": 30, "size": table_size(30)}, id="version 0.30", marks=pytest.mark.full),
    ],
)
def test_jax_dies_without_the_layer_and_works_with_it(
    run_jax: Callable[..., subprocess.CompletedProcess[str]], lacks: dict[str, str | int]
) -> None:
    assert run_jax(False, **lacks).returncode < 0
    assert results(run_jax(True, **lacks)).items() >= RESULTS.items()


@pytest.mark.vendor
@pytest.mark.parametrize("wheel", INSTALLED)
@pytest.mark.parametrize(
    "lacks",
    [
        pytest.param({}, id="as it is"),
        pytest.param({"minor": 30, "size": table_size(30)}, id="version 0.30"),
        pytest.param({"stubs": places(*MEMORIES, "Plugin_Attributes")}, id="stubs of memories"),
        pytest.param({"nulls": places("ExecuteContext_Create")}, id="no contexts"),
        pytest.param({"nulls": places("Buffer_CopyToMemory")}, id="no copies to memories"),
    ],
)
def test_real_plugins(
    run_jax: Callable[..., subprocess.CompletedProcess[str]], wheel: str, lacks: dict[str, str | int]
) -> None:
    plugin = library(wheel)
    if lacks:
        assert run_jax(False, plugin=plugin, **lacks).returncode < 0
    report = results(run_jax(True, plugin=plugin, **lacks))
    assert report["devices"] == 4
    assert report.items() >= (RESULTS | {"devices": 4}).items()


@pytest.mark.full
def test_a_version_that_jax_refuses(run_jax: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    old: dict[str, Any] = {"minor": 28, "size": table_size(28)}
    refused = run_jax(False, **old)
    assert refused.returncode == 1
    assert "older than the minimum supported version" in refused.stderr
    assert results(run_jax(True, **old, adapt="version=0.54")).items() >= RESULTS.items()
