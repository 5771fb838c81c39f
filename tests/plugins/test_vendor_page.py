"""The code about saved executables on the page "Use a vendor plugin" runs as it is, with any device."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pjrt

PAGE = (Path(__file__).parents[2] / "docs" / "vendor.md").read_text()

PROGRAM = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


def test_keeping_what_was_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    section = PAGE.split("## Keep compiled programs")[1].split("\n## ")[0]
    saving, caching = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    topology = pjrt.topology("cpu")
    space: dict[str, Any] = {"pjrt": pjrt, "topology": topology, "program": PROGRAM, "options": None}
    with pjrt.client("cpu") as client:
        space |= {"client": client, "executable": topology.compile(PROGRAM)}
        exec(saving, space)
        np.testing.assert_array_equal(np.asarray(space["loaded"](np.ones(4, np.float32))[0]), 2)
        exec(caching, space)
        np.testing.assert_array_equal(np.asarray(space["executable"](np.ones(4, np.float32))[0]), 2)
        assert len(list((tmp_path / ".cache" / "my-programs").iterdir())) == 1
