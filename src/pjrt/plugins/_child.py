"""A function of this package in a process of its own, for what may crash, hang or print."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

_CODE = """
import json, sys
from pathlib import Path
folder = Path(sys.argv[1])
sys.path[:] = json.loads((folder / "path").read_text(encoding="utf-8"))
import importlib
getattr(importlib.import_module(sys.argv[2]), sys.argv[3])(folder)
"""


def run(function: Callable[[Path], None], folder: Path, time_limit: float) -> str | None:
    """Calls a function of a module with a folder, through which it is asked and answers.

    What it prints, and what is printed in its process, goes to the file ``printed`` in the folder.

    Args:
        function: the function; it is imported by its name there.
        folder: the folder; the process finds modules where this one does.
        time_limit: after how many seconds it is ended.

    Returns:
        How the process ended, with what it printed last, as words for people; ``None`` if it had to be ended.
    """
    (folder / "path").write_text(json.dumps(sys.path), encoding="utf-8")
    command = [sys.executable, "-c", _CODE, str(folder), function.__module__, function.__name__]
    # A file, for a pipe stays open as long as anything that the function started.
    with (folder / "printed").open("wb") as printed:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed)
        try:
            code = child.wait(time_limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            child.kill()
            child.wait()
    return _end(code) + _last_words(folder / "printed")


def _end(code: int) -> str:
    """How a process ended, by its return code as ``subprocess`` has it."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _last_words(printed: Path) -> str:
    """The line in which native code usually says what was wrong: the first of a failed check, otherwise the last."""
    text = printed.read_bytes()[-20000:].decode("utf-8", "replace")
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    told = next((line for line in lines if "Check failed" in line), lines[-1] if lines else "")
    return f"; it printed {told[:300]!r}" if told else ""
