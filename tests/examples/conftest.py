"""Example packages as ``pip install`` leaves them, without the network that pip needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function of an example's name: it returns a folder with what ``pip install`` writes, package and metadata."""

    def install(name: str) -> Path:
        folder = tmp_path_factory.mktemp("site")
        shutil.copytree(EXAMPLES / name / "src", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*cache*"))
        project = tomllib.loads((EXAMPLES / name / "pyproject.toml").read_text())["project"]
        metadata = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        )
        lines = []
        for group, points in project["entry-points"].items():
            lines += [f"[{group}]", *(f"{point} = {value}" for point, value in points.items())]
        (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
        return folder

    return install


@pytest.fixture(scope="session")
def run_with() -> Callable[..., subprocess.CompletedProcess[str]]:
    """A function that runs Python with a folder of packages: ``run_with(folder, *arguments, **environment)``."""

    def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        variables = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": str(folder), **environment}
        return subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, timeout=280, env=variables, check=False
        )

    return run
