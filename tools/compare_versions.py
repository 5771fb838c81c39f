"""Run the tests with several versions of Python and jaxlib; say which were tested, and what differed.

    python tools/compare_versions.py                                  # this Python, and the newest on this machine
    python tools/compare_versions.py python3.12 "python3.11 jaxlib==0.9.* jax==0.9.*"
    python tools/compare_versions.py --report first.xml newest        # first.xml: pytest's report of this Python
    python tools/compare_versions.py --report first.xml --report .venv13/bin/python=second.xml   # runs nothing
    python tools/compare_versions.py --record                         # and write the result into docs/platforms.md
    python tools/compare_versions.py --left-to-newest                 # options of pytest for the long tests of this one

Each argument is a Python, by its command or as ``newest``, and what to install beside the extra ``test-full``. It
gets a new environment with the newest packages that its pip finds. Only the tests that depend on these versions run:
those of ``FOLDERS``, and of those that take long those of ``FULL_FOLDERS``. The latter ``.ci/run`` runs with the newest
Python alone, if there is one: once is enough, and the workflow ``check`` runs them with each. The exit code is 1 if a
test failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parents[1]
PAGE = HERE / "docs" / "platforms.md"
BEGIN, END = "<!-- versions: tools/compare_versions.py --record -->\n", "<!-- end of versions -->\n"

FOLDERS = (
    # Modules that are compiled for a Python: references, garbage, threads, the end of the interpreter.
    *("tests/api", "tests/export"),
    *(f"tests/capi/test_{noun}.py" for noun in ("callbacks", "dlpack", "events", "lifetime")),
    # What JAX and jaxlib do: their calls, classes, files, messages and faults.
    *("tests/artifacts", "tests/devices/xla", "tests/frameworks", "tests/remote/client"),
    *(f"tests/remote/test_{noun}.py" for noun in ("jax_executables", "protocol", "schema")),
    *(f"tests/stablehlo/{noun}" for noun in ("encodings", "files", "reading")),
    *(f"tests/stablehlo/transforms/test_{noun}.py" for noun in ("partitioner", "refinement")),
    "tests/stablehlo/test_lowering.py",
)
"""The quick tests whose outcome depends on the version of Python, JAX or jaxlib: folders, and files where a folder has
others, too. What is computed of our own, whatever these say, needs no second run: analyses and cuts of programs, the
reference interpreter, messages and limits of servers. The table in docs/platforms.md names no test from elsewhere.
"""

FULL_FOLDERS = ("tests/devices/xla", "tests/export", "tests/frameworks", "tests/remote", "tests/stablehlo")
"""Rooms whose long tests run JAX, or are about jaxlib's bindings: they run with the newest Python alone. Those of the
others try more values, more devices and more processes, which no version changes.
"""

PACKAGES = ("jax", "jaxlib", "numpy")
BELOW_PYTHON = (3, 15)  # as `requires-python` in pyproject.toml says

_DESCRIPTION = f"""
import importlib.metadata, json, platform
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "none"
print(json.dumps([platform.python_version(), *map(version, {PACKAGES!r})]))
"""


@dataclass
class Run:
    """The outcome of the tests with one Python.

    Attributes:
        versions: those of Python and of ``PACKAGES``.
        outcomes: "passed", "failed" or "skipped" by the name of a test.
        reasons: why a test failed or was skipped.
    """

    versions: list[str]
    outcomes: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"Python {self.versions[0]}, JAX {self.versions[1]}"

    def read(self, *reports: Path) -> Run:
        """Take in pytest's reports in JUnit's format."""
        for case in (case for report in reports for case in ET.parse(report).getroot().iter("testcase")):
            name = f"{case.get('classname')}::{case.get('name')}"
            outcome, reason = "passed", ""
            for child in case:
                if child.tag in ("failure", "error", "skipped"):
                    outcome = "skipped" if child.tag == "skipped" else "failed"
                    reason = (child.get("message") or "").partition("\n")[0]
            if self.outcomes.get(name) != "failed":  # a test that passed can fail when its fixtures end
                self.outcomes[name], self.reasons[name] = outcome, reason
        return self


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="*", metavar="PYTHON", help="a Python, and requirements beside the tests'")
    parser.add_argument(
        "--report",
        action="append",
        default=[],
        metavar="[PYTHON=]FILE",
        help="a report of tests, of this Python or another",
    )
    parser.add_argument("--pre", action="store_true", help="install pre-releases of jax and jaxlib")
    parser.add_argument(
        "--left-to-newest", action="store_true", help="print what leaves the long tests of these folders out"
    )
    parser.add_argument("--record", action="store_true", help="write the result into docs/platforms.md")
    arguments = parser.parse_args()
    if arguments.left_to_newest:
        print(*left_to_newest(), sep="\n", end="")
        return 0
    runs = read_reports(arguments.report)
    pythons = arguments.pythons or {0: [sys.executable, "newest"], 1: ["newest"]}.get(len(runs), [])
    for spec in pythons:
        python, *requirements = shlex.split(spec)
        if python == "newest":
            newest = newest_python()
            if newest is None:
                print(f"no Python newer than {'.'.join(map(str, sys.version_info[:2]))} is on this machine", flush=True)
                continue
            python = newest
        runs.append(run_tests(python, requirements, pre=arguments.pre))
    table = describe(runs)
    print(table)
    if arguments.record:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(before + BEGIN + "\n" + table + "\n" + END + rest.partition(END)[2])
    return int(any("failed" in run.outcomes.values() for run in runs))


def read_reports(reports: Sequence[str]) -> list[Run]:
    """Return a run for each Python that reports are of; the first is this one's, if it has one."""
    files: dict[str, list[Path]] = {}
    for report in reports:
        python, _, file = report.rpartition("=")
        files.setdefault(python or sys.executable, []).append(Path(file))
    return [Run(_versions(python)).read(*of_python) for python, of_python in files.items()]


def left_to_newest() -> list[str]:
    """Return what leaves out the long tests that the newest Python runs: options of pytest, or none if this is it."""
    return [f"--ignore={folder}" for folder in FULL_FOLDERS] if newest_python() else []


def newest_python() -> str | None:
    """Return the newest supported Python on the path or among pyenv's, if it is newer than this one."""
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    folders += sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/*/bin"))
    found = {path for folder in folders if folder.is_dir() for path in folder.iterdir()}
    newest, choice = sys.version_info[:2], None
    for path in sorted(path for path in found if re.fullmatch(r"python3\.\d+", path.name)):
        minor = (3, int(path.name.partition(".")[2]))
        if newest < minor < BELOW_PYTHON and _is_usable(path):
            newest, choice = minor, str(path)
    return choice


def _is_usable(python: Path) -> bool:
    """Whether a Python starts (a command of pyenv's may lead nowhere), has pip, and is not free-threaded."""
    question = "import ensurepip, sysconfig; print(sysconfig.get_config_var('Py_GIL_DISABLED') or 0)"
    try:
        answer = subprocess.run([python, "-c", question], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.stdout.strip() == "0"


def _versions(python: str) -> list[str]:
    answer = subprocess.run([python, "-c", _DESCRIPTION], capture_output=True, text=True, check=True)
    versions: list[str] = json.loads(answer.stdout)
    return versions


def run_tests(python: str, requirements: list[str], *, pre: bool) -> Run:
    """Run the tests of ``FOLDERS`` with a Python, in a new environment."""
    print(f"\n== {python} {' '.join(requirements)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", f"{folder}/venv"], check=True)
        own = f"{folder}/venv/bin/python"
        install = [own, "-m", "pip", "install", "-q"]
        subprocess.run([*install, "-e", ".[test-full]", *requirements], cwd=HERE, check=True)
        if pre:
            subprocess.run([*install, "--pre", "--upgrade", "jax", "jaxlib"], cwd=HERE, check=True)
        subprocess.run([own, "-m", "compileall", "-q", "src"], cwd=HERE, check=True)  # as .ci/run does
        # On the path of the environment, as a user who has activated it runs the command.
        env = os.environ | {"PATH": f"{folder}/venv/bin{os.pathsep}{os.environ.get('PATH', '')}"}
        reports = []
        for name, chosen in (("quick", FOLDERS), ("full", ("-m", "full", *FULL_FOLDERS))):
            reports.append(Path(folder) / f"{name}.xml")
            command = [own, "-m", "pytest", "-n", "auto", "-q", f"--junitxml={reports[-1]}", *chosen]
            subprocess.run(command, cwd=HERE, env=env, check=False)
        return Run(_versions(own)).read(*reports)


def describe(runs: list[Run]) -> str:
    """Return the versions and counts as a table, and the tests whose outcome differs from the first run's."""
    lines = ["| Python | JAX | jaxlib | NumPy | passed | failed | skipped |", "|---|---|---|---|---|---|---|"]
    for run in runs:
        counts = Counter(run.outcomes.values())
        numbers = (f"{counts[outcome]:,}" for outcome in ("passed", "failed", "skipped"))
        lines.append(f"| {' | '.join((*run.versions, *numbers))} |")
    for run in runs[1:]:
        lines += ["", *_differences(runs[0], run)]
    return "\n".join(lines) + "\n"


def _differences(first: Run, other: Run) -> list[str]:
    rows: Counter[tuple[str, str, str, str]] = Counter()
    for name in sorted(first.outcomes.keys() & other.outcomes.keys()):
        before, after = first.outcomes[name], other.outcomes[name]
        if before != after:
            reason = other.reasons[name] or first.reasons[name]
            rows[re.sub(r"\[.*", "", name), before, after, reason.replace("|", "\\|")] += 1
    if not rows:
        return [f"With {other.name}, each test ended as with {first.name}."]
    lines = [f"With {other.name}, these tests ended otherwise than with {first.name}:", ""]
    lines += ["| test | number | before | now | why |", "|---|---|---|---|---|"]
    lines += [
        f"| `{test}` | {count} | {before} | {after} | {why} |" for (test, before, after, why), count in rows.items()
    ]
    return lines


if __name__ == "__main__":
    sys.exit(main())
