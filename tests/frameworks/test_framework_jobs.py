"""The page of what runs on a device, the jobs that run its code, and those jobs that need JAX alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import framework_jobs
import numpy as np
import pytest
import run_jobs
from framework_jobs import DEVICES, FRAMEWORKS, JAX_CPU, PAGE, Outcome, difference, largest_difference, page_blocks

import pjrt

ENVIRONMENT = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        pytest.param("jax", ["cpu", "mychip"], marks=pytest.mark.full),
        pytest.param("jax", ["reference"], marks=pytest.mark.heavy),  # on which ``mychip`` falls back
        pytest.param("sparse", ["reference"], marks=pytest.mark.heavy),
    ],
)
def test_a_job_that_needs_jax_alone(name: str, devices: list[str]) -> None:
    pytest.importorskip("jax")
    rows, failures = run_jobs.run(name, devices)
    assert not failures
    assert len(rows) >= 3
    assert all(len(row) == 2 + len(devices) for row in rows)


@pytest.mark.full
def test_the_page_as_a_reader_copies_it() -> None:
    pytest.importorskip("jax")
    text = PAGE.read_text()
    first = text[text.index("```python\n") + len("```python\n") :]
    code = [first[: first.index("```")], *page_blocks(framework_jobs.DATA), *page_blocks("JAX")]
    code.append("print(x.devices() == set(jax.devices('reference')[:1]), losses[-1] < losses[0] / 2)")
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(code)], capture_output=True, text=True, timeout=120, env=ENVIRONMENT
    )
    assert done.stdout.split() == ["True", "True"], done.stderr[-3000:]


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_each_framework_has_code_on_the_page_and_a_job(name: str) -> None:
    framework = FRAMEWORKS[name]
    (code,) = page_blocks(framework.heading)
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    for variable in framework.compared:
        assert re.search(rf"\b{variable}\b.* = ", code), variable
    assert "@part(" in (PAGE.parents[2] / "tests" / "frameworks" / f"{name}_job.py").read_text()
    install = re.search(r"pip install (.*)", PAGE.read_text().partition("## Run the jobs")[2])
    assert install is not None
    assert set(framework.packages) <= set(install[1].split())


def test_every_section_with_python_is_of_a_framework() -> None:
    headings = re.findall(r"^## (.*)$", PAGE.read_text(), re.MULTILINE)
    with_code = [heading for heading in headings if page_blocks(heading)]
    assert with_code == [framework_jobs.DATA, *(framework.heading for framework in FRAMEWORKS.values())]


def test_the_page_has_the_results_of_every_framework() -> None:
    _, results = PAGE.read_text().split(run_jobs.MARKERS[0])
    versions, differences = run_jobs.rows_of(results, 4), run_jobs.rows_of(results, 3 + len(DEVICES))
    headings = [framework.heading for framework in FRAMEWORKS.values()]
    assert [row[0] for row in versions] == headings
    assert list(dict.fromkeys(row[0] for row in differences)) == headings
    for row in versions:
        assert re.search(r"\d\.\d", row[1])
        assert re.search(r"^jax \d+\.\d+\.\d+, Python 3\.\d+$", row[2])
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", row[3])
    for row in differences:
        for cell in row[3:]:
            match = re.fullmatch(r"(?:(equal|\de-\d\d), \d+\.\d s|not run)", cell)
            assert match, row
            assert match[1] in ("equal", None) or float(match[1]) <= float(row[2])
        if row[1] != "this page":
            assert f"def {row[1].replace(' ', '_')}(" in job_source(row[0])


def job_source(heading: str) -> str:
    return (Path(__file__).with_name(f"{run_jobs.job_of(heading)}_job.py")).read_text()


def test_recording_keeps_the_results_of_other_frameworks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "index.md"
    page.write_text(PAGE.read_text())
    monkeypatch.setattr(run_jobs, "PAGE", page)
    before = page.read_text().splitlines()
    parts = [row for row in run_jobs.rows_of(page.read_text(), 3 + len(DEVICES)) if row[0] == "JAX"]
    run_jobs.record({"jax": [("this page", "1e-03", "equal, 999.9 s"), ("more", "0", "equal, 1.0 s")]}, ["reference"])
    after = page.read_text().splitlines()
    changed = [line for line in after if line not in before and line.startswith("| JAX | this")]
    assert changed == [f"| JAX | this page | 1e-03 | {parts[0][3]} | equal, 999.9 s | {parts[0][5]} | {parts[0][6]} |"]
    assert "| JAX | more | 0 | not run | equal, 1.0 s | not run | not run |" in after
    gone = [line for line in before if line not in after]
    assert all(line.startswith("| JAX |") for line in gone)
    assert len(gone) >= len(parts)


def test_differences() -> None:
    one, other = np.array([1.0, -4.0]), np.array([1.0, -3.0])
    assert difference(one, one) == 0
    assert difference(other, one) == 0.25
    assert difference(one[:1], one) == np.inf
    assert difference(np.array([np.nan, 1.0]), one) == np.inf
    assert difference(np.zeros(0), np.zeros(0)) == 0
    assert largest_difference(Outcome({"a/x": other}), Outcome({"a/x": one, "b/y": one}), "a") == 0.25
    assert largest_difference(Outcome({"a/x": one}), Outcome({"a/x": one, "a/y": one}), "a") == np.inf


def test_a_job_that_fails_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_on(device: str, name: str, folder: Path) -> Outcome:
        numbers = np.ones(2) + (0.1 if device == "cpu" else 0)
        if device == "reference":
            return Outcome(error="exit code 1")
        return Outcome({"one/x": numbers}, {"one": 1.0}, {"one": 1e-5})

    monkeypatch.setattr(run_jobs, "run_on", run_on)
    rows, failures = run_jobs.run("jax", ["cpu", "reference", "iree"])
    assert rows == [("one", "1e-05", "1e-01, 1.0 s", "failed", "equal, 1.0 s")]
    assert [failure.partition(":")[0] for failure in failures] == ["jax on reference", "jax on cpu", "jax on reference"]


@pytest.mark.skipif(
    not sysconfig.get_config_var("Py_ENABLE_SHARED"),
    reason="this Python was built without a shared library, which a C program needs to start it",
)
def test_the_program_in_c(tmp_path: Path) -> None:
    (code,) = re.findall(r"^```c\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "host.c").write_text(code)
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None, "the tests need a C compiler"
    include = Path(pjrt.__file__).parent / "abi"
    build = [compiler, "-Wall", "-Wextra", "-Werror", f"-I{include}", "host.c", "-o", "host", "-ldl"]
    subprocess.run(build, cwd=tmp_path, check=True, timeout=120)
    export = [sys.executable, "-m", "pjrt", "export", "reference", "-o", "libreference.so"]
    subprocess.run(export, cwd=tmp_path, check=True, timeout=120, capture_output=True)
    done = subprocess.run(["./host"], cwd=tmp_path, capture_output=True, text=True, timeout=120, env=ENVIRONMENT)
    assert (done.returncode, done.stdout) == (0, "reference\n"), done.stderr


def test_the_scheduled_workflow_installs_every_package() -> None:
    workflow = (ROOT / ".github" / "workflows" / "frameworks.yml").read_text()
    install = re.search(r"pip install (.*)", workflow)
    assert install is not None
    assert {package for framework in FRAMEWORKS.values() for package in framework.packages} <= set(install[1].split())
    assert "tests/frameworks/run_jobs.py" in workflow
    assert JAX_CPU not in DEVICES
