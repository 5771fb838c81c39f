"""The command in the process of the tests: for tests of its work, not of its start or its end."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

from click.testing import CliRunner

from pjrt.cli import main


def pjrt(
    *arguments: str | Path, folder: Path | None = None, content: bytes | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command in this process, and return what a subprocess would; an exception other than its own is raised.

    Args:
        arguments: the arguments of the command.
        folder: the current folder; None leaves it.
        content: the bytes on the standard input.
    """
    texts = [*map(str, arguments)]
    runner = CliRunner(env={"COLUMNS": "200", "TF_CPP_MIN_LOG_LEVEL": "3"})
    with contextlib.nullcontext() if folder is None else contextlib.chdir(folder):
        result = runner.invoke(main, texts, input=content, prog_name="pjrt", catch_exceptions=False)
    return subprocess.CompletedProcess(texts, result.exit_code, result.stdout, result.stderr)
