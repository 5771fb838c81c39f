"""The option --cache: a program that was compiled before is not compiled again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import pjrt
from pjrt.cli import main

PROGRAM = "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {\n  return %x : tensor<2xf32>\n}"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.mlir"
    path.write_text(PROGRAM)
    return path


def printed(*arguments: str | Path) -> Any:
    done = CliRunner().invoke(main, [*map(str, arguments), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_the_second_run_is_a_hit(program: Path, tmp_path: Path, device: str) -> None:
    command = ("run", program, "-d", device, "-i", "[1,2]", f"--cache={tmp_path / 'kept'}")
    assert printed(*command)["cache"] == {"folder": str(tmp_path / "kept"), "hit": False}
    assert printed(*command)["cache"]["hit"]
    done = CliRunner().invoke(main, [*map(str, command)])
    assert "f32[2] [1, 2]" in done.stdout
    assert f"hit, in {tmp_path / 'kept'}" in done.stdout
    program.write_text(PROGRAM.replace("2x", "3x"))
    assert not printed(*command[:4], "-i", "[1,2,3]", command[-1])["cache"]["hit"]


def test_compiling_has_a_cache_too(program: Path, tmp_path: Path) -> None:
    command = ("compile", program, "-t", "cpu", "--cache", tmp_path / "kept")
    first, second = printed(*command), printed(*command, "-o", tmp_path / "saved.bin")
    assert (first["cache"]["hit"], second["cache"]["hit"]) == (False, True)
    assert first["memory"] == second["memory"]
    assert pjrt.SavedExecutable.read(tmp_path / "saved.bin").name == "main"


def test_the_default_folder_is_the_users(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert printed("run", program, "-d", "reference", "-i", "ones", "--cache")["cache"] == {
        "folder": str(tmp_path / "caches" / "pjrt" / "executables"),
        "hit": False,
    }
    assert "cache" not in printed("run", program, "-d", "reference", "-i", "ones")


def test_a_folder_that_cannot_be(program: Path) -> None:
    done = CliRunner().invoke(main, ["run", str(program), "-i", "ones", "--cache", str(program)])
    assert done.exit_code == 2
    assert "cannot be a cache's folder" in done.output


def test_a_model_has_a_cache(program: Path, tmp_path: Path) -> None:
    for hits in (0, 1):
        cache = pjrt.CompilationCache(tmp_path / "kept")
        with pjrt.load_model(program, "reference", cache=cache) as model:
            (result,) = model([1.0, 2.0])
            assert result.tolist() == [1, 2]
        assert (cache.hits, cache.misses) == (hits, 1 - hits)
