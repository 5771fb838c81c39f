"""Executables for devices that are not here, in files and in the compilation cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Ask = Callable[..., dict[str, Any]]

pytestmark = pytest.mark.vendor

BODY = """
program = "func.func @main(%x: tensor<64x64xf32>) -> tensor<64x64xf32> { return %x : tensor<64x64xf32> }"
cache = pjrt.CompilationCache(folder)
topology = pjrt.topology("tpu", name)
executable = cache.compile(topology, program)
found = dict(hits=cache.hits, key=cache.key(topology, program), shapes=executable.output_shapes,
    output=executable.memory_stats().output_size_in_bytes, fingerprint=executable.fingerprint().hex(),
    serialized=len(executable.serialize()), limit=topology.attributes["device_memory_bytes_limit"])
"""


def test_another_process_finds_what_one_compiled(ask: Ask, libtpu: Path, tmp_path: Path) -> None:
    compiled, found, other = (ask(BODY, folder=str(tmp_path), name=name) for name in ("v5e:2x2", "v5e:2x2", "v6e:2x2"))
    assert (compiled.pop("hits"), found.pop("hits"), other["hits"]) == (0, 1, 0)
    assert found == compiled
    assert found["serialized"] > 1000
    assert len(list(tmp_path.iterdir())) == 2
