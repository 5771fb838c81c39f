"""The worth of the conformance suite: plugins with one fault each are found.

Each mutant gets only the checks that are known to catch it; ``mutants/run.py`` runs the whole suite on them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
KNOWN: dict[str, list[str]] = json.loads((HERE / "mutants" / "caught_by.json").read_text())


@pytest.fixture(scope="module")
def caught() -> dict[str, list[str]]:
    """The checks that caught each mutant, by the mutants' names."""
    command = [sys.executable, str(HERE / "mutants" / "run.py"), "--known", "--enough", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.stdout, done.stderr
    results: dict[str, list[str]] = json.loads(done.stdout)
    return results


def test_there_are_a_hundred_mutants_and_at_least_95_are_caught(caught: dict[str, list[str]]) -> None:
    assert len(caught) == 100
    assert len(KNOWN) >= 95


@pytest.mark.parametrize("mutant", KNOWN)
def test_a_mutant_is_caught(mutant: str, caught: dict[str, list[str]]) -> None:
    assert caught[mutant], f"none of {', '.join(KNOWN[mutant])} fails on it; see mutants/run.py"
