"""The subprocess of a replay: the plugin may crash it or hang.

The task comes on the standard input. Findings go line by line into the file ``answers`` of a folder, the call at work
into the file ``progress`` there, which the parent reads when the process is gone.
"""

from __future__ import annotations

import json
import mmap
import pickle
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pjrt.api.errors import PjrtError
from pjrt.capi.raw.table import Table
from pjrt.layers.recording.recording import Recording
from pjrt.layers.replay.replay_arguments import Settings
from pjrt.layers.replay.replay_finding import ReplayFinding
from pjrt.layers.replay.replayer import Replayer

PROGRESS = struct.Struct("<QQ200s")
"""The contents of the file ``progress``: a count of moments, the number of a call, and what it is."""


@dataclass(frozen=True, slots=True)
class Task:
    """The task of the subprocess.

    Attributes:
        recording: the path of the recording.
        open_plugin: a function at the top of a module that opens the plugin: it returns the address of its table, and
            what keeps it open.
        settings: the settings of the replay.
    """

    recording: str
    open_plugin: Callable[[], tuple[int, Any]]
    settings: Settings


def main() -> None:
    """Run the task."""
    folder = Path(sys.argv[1])
    progress = (folder / "progress").open("r+b")
    moments = mmap.mmap(progress.fileno(), PROGRESS.size)
    answers = (folder / "answers").open("w", encoding="utf-8")
    count = 0

    def say(**event: Any) -> None:
        answers.write(json.dumps(event) + "\n")
        answers.flush()

    def move(call: int, text: str) -> None:
        nonlocal count
        count += 1
        PROGRESS.pack_into(moments, 0, count, call, text.encode()[:200])

    def report(finding: ReplayFinding) -> None:
        say(event="finding", **finding.as_dict())

    task: Task = pickle.load(sys.stdin.buffer)
    recording = Recording.open(task.recording)
    move(0, "loading the plugin")
    try:
        address, _keep = task.open_plugin()
    except Exception as error:
        say(event="failed", text=PjrtError.wrap(error).message)
        return
    replayer = Replayer(recording, Table(address), task.settings, move, report)
    replayer.run()
    say(event="end", calls=replayer.calls, skipped=replayer.skipped, notes=replayer.comparison.notes)


if __name__ == "__main__":
    main()
    # Nothing of the plugin is ended: what the recording leaves open, as one that was cut short does, stays open.
    sys.stdout.flush()
    import os

    os._exit(0)
