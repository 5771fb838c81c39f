"""Files of a stranger in the current folder, such as a ``json.py`` beside a model: no command runs them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest

import pjrt
from pjrt.remote.security.credentials import ClientSecurity
from pjrt.remote.security.tunnel import TunnelProcess
from pjrt.system.python_process import ask, run_module

SCRIPT = Path(sysconfig.get_path("scripts")) / ("pjrt.exe" if sys.platform == "win32" else "pjrt")
PLANTED = ("json", "pickle", "pathlib", "subprocess", "tempfile", "struct", "random", "click", "numpy", "pjrt")
PROGRAM = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.tanh %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""
DEVICE = """import pjrt
def make_client(**options):
    return pjrt.StableHloClient("mine", compile=lambda program, options: abs, **options)
"""

posix = pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is sent as a signal")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model, and with modules that note that they ran."""
    ran = tmp_path / "ran"
    ran.mkdir()
    (tmp_path / "m.mlir").write_text(PROGRAM)
    (tmp_path / "mine.py").write_text(DEVICE)
    for name in PLANTED:
        (tmp_path / f"{name}.py").write_text(f"open({str(ran / name)!r}, 'w').close()\nraise ImportError('planted')\n")
    return tmp_path


def ran(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "ran").iterdir())


@pytest.mark.full
@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", "m.mlir"],
        ["run", "m.mlir", "-d", "cpu", "-i", "zeros"],
        ["check", "m.mlir", "--device", "cpu"],
        ["check", "m.mlir", "--device", "./mine.py:make_client"],
        ["capabilities", "cpu"],
        ["compare", "m.mlir", "-d", "cpu", "-d", "reference", "-i", "zeros"],
        ["devices", "./mine.py:make_client"],
        ["info", "./mine.py:make_client"],
    ],
    ids=" ".join,
)
def test_a_command_runs_nothing_of_the_current_folder(folder: Path, arguments: Sequence[str]) -> None:
    done = subprocess.run([SCRIPT, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert not ran(folder)
    assert "planted" not in done.stdout + done.stderr


@pytest.mark.full
@posix
def test_run_watch_runs_nothing_of_the_current_folder(folder: Path) -> None:
    command = [SCRIPT, "run", "m.mlir", "-d", "cpu", "-i", "zeros", "--watch"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "watching" in line:
                process.send_signal(signal.SIGINT)
        assert "watching" in lines[-1] or "watching" in lines[-2]
    assert not ran(folder), lines


def test_no_python_is_started_in_another_way() -> None:
    """``module_command`` keeps the current folder out; what a user starts with ``pjrt launch`` is the user's."""
    source = Path(pjrt.__file__).parent
    starters = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if re.search(r"\[\s*sys\.executable", path.read_text("utf-8"))
    }
    assert starters == {"system/python_process.py", "distributed/launcher.py"}


def nothing(question: object) -> object:
    return question


def test_a_subprocess_runs_nothing_of_the_current_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert ask(nothing, 1, 60) == 1
    ended = run_module("platform", given=b"", time_limit=60)
    assert ended is not None
    assert ended.status == 0
    assert not ran(folder)


@posix
def test_a_tunnel_runs_nothing_of_the_current_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    tunnel = TunnelProcess("grpcs://127.0.0.1:1", ClientSecurity())
    tunnel.close()
    assert not ran(folder)
