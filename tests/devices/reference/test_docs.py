"""The page of the reference device: its examples run, and its table has every op."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from pjrt.devices.reference import rules

PAGE = (Path(__file__).parents[3] / "docs" / "devices" / "reference.md").read_text()


def test_the_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block, names)
    printed = capsys.readouterr().out
    assert "0.5800" in printed
    assert "stablehlo.negate" in printed
    names["client"].close()


def test_the_table_has_every_op() -> None:
    importlib.import_module("pjrt.devices.reference.ops")
    missing = [rule.name for rule in rules() if f"| `{rule.name}` |" not in PAGE]
    assert not missing, "run python tools/generate.py operations"
