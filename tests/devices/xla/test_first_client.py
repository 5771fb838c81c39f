"""The first client and the interpreter."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("function", ["enable", "disable"])
def test_the_first_client_leaves_the_garbage_collector_as_it_was(function: str) -> None:
    script = f"import gc; gc.{function}(); import pjrt; pjrt.client('cpu'); print(gc.isenabled())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == f"{function == 'enable'}\n"
