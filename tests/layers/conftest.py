"""A traced run of a known program, for the tests of everything that reads traces."""

from __future__ import annotations

from pathlib import Path

import pytest
from traced import TracedRun, run_traced

KNOWN = """
executable = client.compile(program("double"))
buffers = [client.buffer_from_host(X) for _ in range(3)]
for buffer in buffers:
    (result,) = executable(buffer)
    assert result.to_host().result().tolist() == [0, 2, 4, 6]
    result.delete()
    buffer.delete()
try:
    client.compile(pjrt.Program(b"nonsense", format="tiny"))
except pjrt.PjrtError:
    pass
broken = client.compile(program("broken", statements=[("fail", 13, "no luck")]))
(result,) = broken(client.buffer_from_host(X))
try:
    result.to_host().result()
except pjrt.PjrtError:
    pass
client.close()
"""


@pytest.fixture(scope="session")
def known_run(tiny_library: Path, tmp_path_factory: pytest.TempPathFactory) -> TracedRun:
    """The run of a program of which every number is known."""
    run = run_traced(KNOWN, tiny_library, tmp_path_factory.mktemp("known"))
    assert run.returncode == 0, run.output
    return run
