"""The records of callbacks, in C: many threads at once, with the thread sanitizer."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tiny import build

HERE = Path(__file__).parent
LIBRARY = HERE.parents[2] / "src" / "pjrt" / "layers" / "library"


def test_many_threads_use_records(tiny_cache: Path) -> None:
    flags = ["-fsanitize=thread", "-fPIE", "-pie", f"-I{LIBRARY}"]
    sources = [HERE / "callback_records_stress.c", LIBRARY / "callback_records.c"]
    program = build.build(sources, tiny_cache, "callback-records-stress", flags)
    done = subprocess.run([program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("ok\n", "", 0)
