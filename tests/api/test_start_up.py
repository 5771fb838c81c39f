"""`import pjrt` stays light: what only some programs need is imported when they need it."""

import subprocess
import sys

SLOW_TO_IMPORT = {"asyncio", "click", "google.protobuf", "jaxlib", "rich"}


def test_importing_pjrt_leaves_out_what_is_slow_to_import() -> None:
    code = "import sys, pjrt; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert SLOW_TO_IMPORT.isdisjoint(done.stdout.split())
