"""The worth of the conformance suite: it finds plugins with one fault each.

All mutants are here, but each gets only the checks that are known to catch it: the first one, and a further one if
that misses it. This takes about 10 seconds of a core, and 20 when the mutants are not compiled yet.
``mutants/run.py`` runs the whole suite on them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

HERE = Path(__file__).resolve().parent
KNOWN: dict[str, list[str]] = json.loads((HERE / "mutants" / "caught_by.json").read_text())


def test_mutants_are_caught() -> None:
    options = ["--known", "--json", "--jobs", "8", "--time-limit", "10"]
    command = [sys.executable, str(HERE / "mutants" / "run.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.stdout, done.stderr
    results: dict[str, list[str]] = json.loads(done.stdout)
    missed = {name: checks for name, checks in KNOWN.items() if not results.get(name)}
    assert not missed, "these mutants pass the checks that are known to catch them"
    assert len(results) == 100
    assert len(KNOWN) >= 98
