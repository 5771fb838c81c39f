"""Run scripts in a subprocess."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

HERE = Path(__file__).parent


def run_python(source: str, *, timeout: float = 200) -> subprocess.CompletedProcess[str]:
    """Run a script that can import the toys, in a subprocess."""
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-W", "error", "-c", textwrap.dedent(source)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
