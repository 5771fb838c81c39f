"""Vendors' wheels, found and asked what they are: on machines without their hardware too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.vendor


def pjrt(*arguments: str) -> subprocess.CompletedProcess[str]:
    cleared = {name: value for name, value in os.environ.items() if not name.startswith(("PJRT_", "TPU_"))}
    return subprocess.run(
        [sys.executable, "-m", "pjrt", *arguments],
        env={**cleared, "PJRT_CONFIG": os.devnull},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_each_wheel_is_one_plugin_that_says_what_it_is(libtpu: Path, cuda_plugin: Path) -> None:
    done = pjrt("plugins", "--json")
    assert done.returncode == 0, done.stderr
    listed = {each["name"]: each for each in json.loads(done.stdout)["plugins"]}
    tpu, cuda = listed["tpu"], listed["cuda"]
    assert [each["library"] for each in (tpu, cuda)] == [str(libtpu), str(cuda_plugin)]
    assert [each["distribution"] for each in (tpu, cuda)] == ["libtpu", "jax-cuda13-pjrt"]
    assert cuda["aliases"] == ["xla_cuda13"]
    assert cuda["other_origins"] == [
        "entry point jax_plugins of jax-cuda13-pjrt",
        "namespace package jax_plugins.xla_cuda13",
    ]
    for each in (tpu, cuda):
        assert each["problem"] == ""
        assert each["state"] in ("ready", "no hardware")
        assert int(each["api_version"].split(".")[1]) >= 112
        assert each["stablehlo_version"].startswith("1.")
        assert len(each["extensions"]) > 10
    assert [name for name in listed if "cuda" in name.lower()] == ["cuda"]


def test_a_wheel_s_plugin_by_the_name_that_jax_gives_its_module(cuda_plugin: Path) -> None:
    done = pjrt("plugins", "xla_cuda13", "--no-load", "--json")
    assert json.loads(done.stdout)["library"] == str(cuda_plugin)


def test_devices_whose_hardware_is_not_here_are_not_asked() -> None:
    report = json.loads(pjrt("devices", "--json").stdout)
    reasons = {each["name"]: each["reason"] for each in report["unavailable"]}
    here = {device["name"] for device in report["devices"]}
    for name in ("tpu", "cuda"):
        assert name in here or reasons[name] == "its hardware is not here"
