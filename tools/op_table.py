"""Generate the table of ops of the reference device: op by element type, tested or not.

``python tools/generate.py operations`` runs the device's tests and writes the table into docs/devices/reference.md. A
cell is filled if a test that passed compiled the op with that element type (of its first operand, or of its first
result where it has none). Whether StableHLO allows the op on a type is asked of its own verifier: an op that was
tested on another type is written down with this one, and parsed.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from pjrt.api.element_type import ElementType
from pjrt.devices.reference import Evaluator, rules
from pjrt.devices.reference.core import mlir
from pjrt.devices.reference.fast.module_compiler import FastBlockCompiler
from pjrt.stablehlo.ir.mlir_attributes import decode_type
from pjrt.stablehlo.ir.types import TensorType

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests" / "devices" / "reference"
TYPES = [t for t in ElementType if t not in (ElementType.INVALID, ElementType.TOKEN, ElementType.S1, ElementType.U1)]
BY_RESULT = frozenset({"stablehlo.rng_bit_generator", "stablehlo.dynamic_iota", "stablehlo.rng"})
"""Ops whose operands are of one type always."""

OF_ANYTHING = frozenset({"stablehlo.while", "func.call", "stablehlo.custom_call", "sdy.manual_computation"})
"""Ops that take operands of several types, and treat them alike."""

TESTED, DEFINED, NOT_DEFINED = "✓", "·", " "
SAMPLES = 6
"""So many ways of writing an op down are tried with another type."""


class Recorder:
    """A pytest plugin that notes what tests compile, and keeps it if they pass."""

    def __init__(self) -> None:
        self.tested: defaultdict[str, set[str]] = defaultdict(set)
        self.quantized: set[str] = set()
        self.samples: defaultdict[str, dict[tuple[str, str], None]] = defaultdict(dict)
        self._now: list[tuple[str, str, bool, str]] = []
        original = FastBlockCompiler._add

        def add(compiler: Any, operation: Any) -> None:
            original(compiler, operation)
            self._note(operation)

        FastBlockCompiler._add = add  # type: ignore[method-assign]

    def _note(self, operation: Any) -> None:
        values = [*operation.operands, *operation.results]
        if operation.name in BY_RESULT:
            values.reverse()
        types = [t for t in (decode_type(v.type) for v in values) if isinstance(t, TensorType)]
        quantized, text = any(t.quantization for t in types), written_down(operation) if types else ""
        for type_ in types if operation.name in OF_ANYTHING else types[:1]:
            self._now.append((operation.name, type_.element.name, quantized, text))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the operations that a test compiled if it passed, or drop them."""
        if report.when == "setup":
            self._now.clear()
        elif report.when == "call" and report.passed:
            for name, element, quantized, text in self._now:
                self.tested[name].add(element)
                if quantized:
                    self.quantized.add(name)
                elif len(self.samples[name]) < SAMPLES:
                    self.samples[name][text, element] = None


def written_down(operation: Any) -> str:
    """Write an operation as a function whose arguments are its operands; empty if it needs its surroundings."""
    text = operation.get_asm(print_generic_op_form=True)
    if "callee" in text or "@" in text:
        return ""
    head = re.match(r"(?:%[\w#:]+ = )?(\"[\w.-]+\")\(([^)]*)\)", text)
    if head is None:
        return ""
    params = ", ".join(f"%x{i}: {value.type}" for i, value in enumerate(operation.operands))
    names = ", ".join(f"%x{i}" for i in range(len(operation.operands)))
    return f"func.func @main({params}) {{\n {head[1]}({names}){text[head.end() :]}\n return }}"


def is_defined(recorder: Recorder, name: str, element: ElementType) -> bool:
    """Whether StableHLO's verifier takes the op with this type in the place of one that it was tested with."""
    for text, given in recorder.samples[name]:
        if not text:
            continue
        old, new = ElementType[given].mlir, element.mlir
        changed = text.replace(f"x{old}>", f"x{new}>").replace(f"tensor<{old}>", f"tensor<{new}>")
        try:
            mlir.parse(changed)
        except Exception:  # whatever the verifier says: not with this type
            continue
        return True
    return False


def tables(recorder: Recorder) -> str:
    """Return a table for each chapter as Markdown."""
    Evaluator(mlir.parse("func.func @main() { return }"))  # registers the ops
    chapters: defaultdict[str, list[str]] = defaultdict(list)
    for rule in rules():
        chapters[rule.chapter].append(rule.name)
    counts = dict.fromkeys((TESTED, DEFINED), 0)
    parts = []
    for chapter, names in sorted(chapters.items()):
        rows = [row(recorder, name, counts) for name in names]
        head = ["op", *(t.mlir for t in TYPES), "quantized"]
        parts.append(f"### {chapter.replace('_', ' ')}\n")
        parts.append("\n".join([f"| {' | '.join(head)} |", f"|---{'|:-:' * (len(head) - 1)}|", *rows]) + "\n")
    total = sum(counts.values())
    return (
        "The columns are the element types of an op's first operand, or of its result if it has no operand. "
        f"`{TESTED}` is tested, `{DEFINED}` is defined by StableHLO and not tested, an empty cell is not defined. "
        f"{counts[TESTED]} of {total} are tested.\n\n"
        "The verifier allows more than the specification defines. The type f8E8M0FNU has neither zero nor sign, so it "
        "has no sums and solvers. Complex numbers have no order. Ops on tokens alone have no element types.\n\n"
        + "\n".join(parts)
    )


def row(recorder: Recorder, name: str, counts: dict[str, int]) -> str:
    """Return one op's row of the table."""
    cells = []
    for element in TYPES:
        cell = NOT_DEFINED
        if element.name in recorder.tested[name]:
            cell = TESTED
        elif is_defined(recorder, name, element):
            cell = DEFINED
        if cell in counts:
            counts[cell] += 1
        cells.append(cell)
    return f"| `{name}` | {' | '.join([*cells, TESTED if name in recorder.quantized else NOT_DEFINED])} |"


def generate() -> str:
    """Run the tests, and return the tables that they give."""
    recorder = Recorder()
    others = f"--ignore={TESTS / 'test_docs.py'}"  # those of the page with this very table
    if status := pytest.main([str(TESTS), others, "-q", "-p", "no:cacheprovider"], plugins=[recorder]):
        print("the tests must pass first", file=sys.stderr)
        raise SystemExit(int(status))
    return tables(recorder)
