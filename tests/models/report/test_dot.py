"""The graph of a program as text for Graphviz."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pjrt.models import program_dot

LOOP = """
module @countdown {
  func.func @main(%x: tensor<4xf32> loc("image"), %n: tensor<i32>) -> tensor<4xf32> {
    %r:2 = stablehlo.while(%s = %x, %i = %n) : tensor<4xf32>, tensor<i32>
     cond {
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %more = stablehlo.compare GT, %i, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
     } do {
      %next = func.call @step(%s) : (tensor<4xf32>) -> tensor<4xf32>
      stablehlo.return %next, %i : tensor<4xf32>, tensor<i32>
     }
    return %r#0 : tensor<4xf32>
  }
  func.func private @step(%x: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.tanh %x : tensor<4xf32> loc("tanh"("step.py":3:7))
    return %0 : tensor<4xf32>
  }
}
"""

_STRING = r'"(?:[^"\\]|\\.)*"'
_VALUE = rf"(?:{_STRING}|[\w.#]+)"
_ATTRIBUTES = rf"\[\w+={_VALUE}(?:, \w+={_VALUE})*\]"
_BEGIN = rf"(?:digraph {_STRING}|subgraph \w+) {{"
_STATEMENT = rf"(?:label={_STRING}|(?:graph|node|edge|n\d+)(?: -> n\d+)? {_ATTRIBUTES});"
_LINE = re.compile(rf"\s*(?:{_BEGIN}|{_STATEMENT}|}})")


def assert_is_dot(text: str) -> None:
    """Check the lines that this writer uses by their grammar; and by Graphviz, where it is installed."""
    assert all(_LINE.fullmatch(line) for line in text.splitlines()), text
    assert text.count("{\n") == len(re.findall(r"^\s*}$", text, re.MULTILINE))
    for parser in filter(None, [shutil.which("nop")]):
        done = subprocess.run([parser], input=text, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


def test_functions_and_regions_are_clusters() -> None:
    text = program_dot(LOOP)
    assert_is_dot(text)
    assert text.startswith('digraph "countdown" {')
    assert re.findall(r"subgraph (\w+) ", text) == ["cluster_function_0", "cluster_region_2", "cluster_function_1"]
    labels = dict(re.findall(r'^ *(n\d+) \[label="((?:[^"\\]|\\.)*)"', text, re.MULTILINE))
    assert labels["n0"] == r"image\nf32[4]"
    assert r"tanh %0\nf32[4]\nstep.py:3" in labels.values()
    (compare,) = (node for node, label in labels.items() if label.startswith("compare"))
    assert re.findall(rf"(n\d+) -> {compare} ", text), "the constant"
    assert "n0 -> n2 " in text


@pytest.mark.skipif(shutil.which("dot") is None, reason="needs Graphviz: apt-get install graphviz")
def test_graphviz_draws_it() -> None:
    text = program_dot(LOOP)
    done = subprocess.run(["dot", "-Tsvg"], input=text, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "<svg" in done.stdout
    assert "tanh" in done.stdout


@given(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=30))
def test_any_name_is_a_string(name: str) -> None:
    escaped = "".join(f"\\{byte:02X}" for byte in name.encode())
    text = program_dot(f'module @"{escaped}" {{\n  func.func @main() {{\n    return\n  }}\n}}')
    first = text.split("\n  graph [")[0]
    assert re.fullmatch(rf"digraph {_STRING} {{", first, re.DOTALL), first
