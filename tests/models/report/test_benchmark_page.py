"""The page of a benchmark, in a real browser."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from browser import Browser

import pjrt
from pjrt.models import benchmark_page

ADD = """module @"<b>adder</b>" {
  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %x, %x : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}"""


def test_devices_are_shown_side_by_side(window: Browser, tmp_path: Path) -> None:
    benchmark = pjrt.bench(ADD, ["reference", "cpu"], [np.zeros(4, np.float32)], count=30, warm_up=1, in_flight=2)
    (tmp_path / "page.html").write_text(benchmark_page(benchmark))
    window.open(tmp_path / "page.html")
    assert window.run("return document.querySelector('h1').textContent") == "<b>adder</b>"
    cells = "return [...document.querySelectorAll('table')[0].rows].map(row => [...row.cells].map(c => c.textContent))"
    header, first, second = window.run(cells)
    assert header == ["device", "runs", "50%", "90%", "99%", "99.9%", "max", "a second", "ratio"]
    assert first[:2] == ["reference", "30"]
    assert first[-1] == "1"
    assert second[:2] == ["cpu", "30"]
    assert " to " in second[-1]
    # The curve of percentiles; a histogram and the times in their order for each of four parts of two devices.
    assert window.run("return document.querySelectorAll('.plot').length") == 1 + 2 * 4 * 2
    counts = """
    const plot = [...document.querySelectorAll('details')][0].querySelector('.plot');
    return [...plot.querySelectorAll('.bar title')].map(e => parseInt(e.textContent)).reduce((a, b) => a + b)"""
    assert window.run(counts) == 30
    assert window.run("return document.querySelectorAll('.plot circle').length") == 2 * 13
    window.click("details:nth-of-type(2) summary")
    assert window.run("return document.querySelectorAll('details[open]').length") == 3
    assert window.console() == []


def test_equal_times_have_a_page(window: Browser, tmp_path: Path) -> None:
    """One execution is one time: no axis may end where it begins."""
    (tmp_path / "page.html").write_text(benchmark_page(pjrt.bench(ADD, ["cpu"], ["zeros"], count=1, warm_up=0)))
    window.open(tmp_path / "page.html")
    assert "NaN" not in window.run("return document.body.innerHTML")
    assert window.console() == []
