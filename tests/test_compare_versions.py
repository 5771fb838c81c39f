"""``tools/compare_versions.py``: which Python is the newest one, and what differed."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
REPORT = """<testsuites><testsuite>
<testcase classname="tests.a" name="test_same"/>
<testcase classname="tests.a" name="test_kinds[0]">{first}</testcase>
<testcase classname="tests.a" name="test_kinds[1]">{first}</testcase>
<testcase classname="tests.a" name="test_end"/>{end}
</testsuite></testsuites>"""


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    path = ROOT / "tools" / "compare_versions.py"
    spec = importlib.util.spec_from_file_location("compare_versions", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def test_what_differed_is_named(tool: ModuleType, tmp_path: Path) -> None:
    ended = '<testcase classname="tests.a" name="test_end"><error message="left behind"/></testcase>'
    texts = {
        "old": REPORT.format(first="", end=""),
        "new": REPORT.format(first='<skipped message="needs | more"/>', end=ended),
    }
    runs = []
    for number, (name, text) in enumerate(texts.items()):
        path = tmp_path / f"{name}.xml"
        path.write_text(text)
        runs.append(tool.Run([f"3.1{number}", f"0.{number}", f"0.{number}", "2"]).read(path))
    table = tool.describe(runs)
    assert "| 3.10 | 0.0 | 0.0 | 2 | 4 | 0 | 0 |" in table
    assert "| 3.11 | 0.1 | 0.1 | 2 | 1 | 1 | 2 |" in table
    assert "| `tests.a::test_kinds` | 2 | passed | skipped | needs \\| more |" in table
    assert "| `tests.a::test_end` | 1 | passed | failed | left behind |" in table
    assert "test_same" not in table
    assert "each test ended as" in tool.describe([runs[0], runs[0]])


def test_reports_of_several_pythons(tool: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "quick.xml").write_text(REPORT.format(first="", end=""))
    (tmp_path / "full.xml").write_text(REPORT.format(first="", end='<testcase classname="tests.b" name="test_long"/>'))
    other = tmp_path / "python"
    other.symlink_to(sys.executable)
    reports = [str(tmp_path / "quick.xml"), str(tmp_path / "full.xml"), f"{other}={tmp_path / 'quick.xml'}"]
    own, others = tool.read_reports(reports)
    assert (len(own.outcomes), len(others.outcomes)) == (5, 4)
    assert own.versions[0] == "{}.{}.{}".format(*sys.version_info)


def test_the_newest_python_is_one_that_works(tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def install(folder: Path, minor: int, answer: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"python3.{minor}").write_text(f"#!/bin/sh\n{answer}\n")
        (folder / f"python3.{minor}").chmod(0o755)

    here = sys.version_info[1]
    monkeypatch.setattr(tool, "BELOW_PYTHON", (3, here + 5))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    install(tmp_path / "path", here, "echo 0")  # no newer than this one
    assert tool.newest_python() is None
    assert tool.left_to_newest() == []
    install(tmp_path / "path", here + 1, "echo 0")
    install(tmp_path / "path", here + 2, "exit 127")  # pyenv's command for a version that is not chosen
    install(tmp_path / "pyenv" / "versions" / "free" / "bin", here + 3, "echo 1")  # free-threaded
    install(tmp_path / "path", here + 5, "echo 0")  # newer than what is supported
    assert tool.newest_python() == str(tmp_path / "path" / f"python3.{here + 1}")
    assert "--ignore=tests/frameworks" in tool.left_to_newest()
    install(tmp_path / "pyenv" / "versions" / "new" / "bin", here + 4, "echo 0")
    assert tool.newest_python() == str(tmp_path / "pyenv" / "versions" / "new" / "bin" / f"python3.{here + 4}")


def test_what_is_left_to_the_newest_python_is_run_by_it(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool, "newest_python", lambda: sys.executable)
    monkeypatch.setattr(sys, "argv", ["compare_versions.py", "--left-to-newest"])
    assert tool.main() == 0
    left = [option.removeprefix("--ignore=") for option in capsys.readouterr().out.splitlines()]
    assert left == list(tool.FULL_FOLDERS)
    assert all((ROOT / folder).exists() for folder in (*tool.FOLDERS, *left))
