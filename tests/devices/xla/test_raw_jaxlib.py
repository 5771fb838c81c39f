"""The rival of our benchmarks: jaxlib's private client changes from version to version."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

_SUM = """
import numpy as np
from benchmarks.raw_jaxlib import RawClient

kind = "tensor<4xf32>"
text = f"%0 = stablehlo.add %x, %x : {kind} return %0 : {kind}"
client, x = RawClient(), np.arange(4, dtype=np.float32)
run = client.compile(f"func.func @main(%x: {kind}) -> {kind} {{ {text} }}", [(x.shape, x.dtype)])
for copy in (True, False):
    (result,) = run(client.put(x, copy=copy))
    print(np.asarray(memoryview(result)).tolist())
"""


def test_it_runs_a_program_with_the_installed_jaxlib() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SUM], capture_output=True, text=True, timeout=120, check=False, cwd=ROOT
    )
    assert done.stdout.splitlines() == ["[0.0, 2.0, 4.0, 6.0]"] * 2, done.stderr
