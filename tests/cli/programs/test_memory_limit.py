"""``pjrt run --memory-limit``: a program larger than the memory that it may use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from pjrt.cli import main

LAYERS = 6
SIZE = 32
TYPE = f"tensor<{SIZE}x{SIZE}xf32>"


def program() -> str:
    """Return a program of dense layers on a donated argument."""
    weights = "".join(f', %w{layer}: {TYPE} loc("w{layer}")' for layer in range(LAYERS))
    lines = [f'func.func @main(%x: {TYPE} {{tf.aliasing_output = 0 : i32}} loc("x"){weights}) -> {TYPE} {{']
    for layer in range(LAYERS):
        value = f"%y{layer - 1}" if layer else "%x"
        lines.append(
            f"  %y{layer} = stablehlo.dot_general {value}, %w{layer}, contracting_dims = [1] x [0]"
            f" : ({TYPE}, {TYPE}) -> {TYPE}"
        )
    return "\n".join([*lines, f"  return %y{LAYERS - 1} : {TYPE}", "}"])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(3)
    (tmp_path / "layers.mlir").write_text(program())
    arrays = {f"w{layer}": rng.standard_normal((SIZE, SIZE)).astype(np.float32) / 6 for layer in range(LAYERS)}
    np.savez(tmp_path / "w.npz", **arrays)
    np.save(tmp_path / "x.npy", rng.standard_normal((SIZE, SIZE)).astype(np.float32))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*options: str) -> Result:
    return CliRunner().invoke(main, ["run", "layers.mlir", "-i", "w.npz", "-i", "x.npy", "-d", "reference", *options])


def test_the_results_are_the_same(folder: Path) -> None:
    assert run("-o", "whole.npz").exit_code == 0
    done = run("--memory-limit", "17 kB", "--expect", "whole.npz", "--repeat", "2")
    assert done.exit_code == 0, done.output
    assert "6 stages, 1 compiled program; weights 24.0 KiB" in done.output
    assert "2 runs" in done.output


def test_json_has_the_stages(folder: Path) -> None:
    done = run("--memory-limit", "17kb", "--json")
    stages: dict[str, Any] = json.loads(done.stdout)["stages"]
    assert stages["memory_limit"] == 17_000
    assert stages["peak_bytes"] <= 17_000
    assert [stage["weights"] for stage in stages["stages"]] == [[f"w{layer}"] for layer in range(LAYERS)]


def test_stages_come_from_the_cache(folder: Path) -> None:
    for hit in (False, True):
        done = run("--memory-limit", "17 kB", "--cache", "cache", "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["cache"]["hit"] is hit


def test_too_little_memory(folder: Path) -> None:
    done = run("--memory-limit", "4KiB")
    assert done.exit_code != 0
    assert "a stage of the program needs" in done.output


@pytest.mark.parametrize("size", ["", "2", "x", "0", "-5", "2 QiB", "1e9"])
def test_sizes(size: str, folder: Path) -> None:
    done = run("--memory-limit", size)
    assert done.exit_code != 0
    expected = (
        "at least 1 byte" if size == "0" else "a stage of the program" if size == "2" else "expected a size such as"
    )
    assert expected in done.output or "larger than the memory limit of 2 bytes" in done.output
