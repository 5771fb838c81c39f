"""Programs that are traced in a subprocess, for tests in which they die, fork or use many threads."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pjrt.layers.trace.trace_file import Trace, read_trace

TINY = Path(__file__).resolve().parents[2] / "plugins"

BEGINNING = """
import os, signal, sys, threading
import numpy as np
import pjrt
from tiny import TinyProgram

LIBRARY = sys.argv[1]
X = np.arange(4, dtype=np.float32)


def program(name="adder", operation="add", statements=()):
    made = TinyProgram(name)
    x = made.parameter("f32[4]")
    for words in statements:
        made.do(*words)
    return pjrt.Program(made.result(made.let(operation, x, x)).code, format="tiny")


plugin = pjrt.load_plugin(LIBRARY)
client = plugin.client(num_devices=1)
"""


@dataclass
class TracedRun:
    """A traced process that ended, and its traces, the first process first."""

    returncode: int
    output: str
    traces: list[Trace]

    @property
    def trace(self) -> Trace:
        """The trace of the only process."""
        (trace,) = self.traces
        return trace


def run_traced(code: str, library: Path, folder: Path, options: str = "", inject: str = "") -> TracedRun:
    """Run code, which may use the names of ``BEGINNING``, with the trace layer on all plugins, and faults below it."""
    text = f"{options},file={folder}/%p.trace,ring=1m".lstrip(",")  # of a key that is there twice, the first counts
    environment = {
        **os.environ,
        "PJRT_LAYERS": "trace,inject" if inject else "trace",
        "PJRT_INJECT": inject,
        "PJRT_TRACE": text,
        "PYTHONPATH": str(TINY),
    }
    command = [sys.executable, "-c", BEGINNING + code, str(library)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    files = sorted(folder.glob("*.trace"), key=lambda path: int(path.stem))
    return TracedRun(done.returncode, done.stdout + done.stderr, [read_trace(path) for path in files])
