"""The conformance programs of all operations on a device, beside the reference interpreter: what differs, and where.

`pjrt test-device` runs each program alone, with its arguments. This job runs up to 48 programs of an operation as one,
because some compilers take a second for each, and runs them twice: with arguments, and with constants, which compilers
compute themselves. What does not run together is run in halves. A state file keeps what is done, so that a run can be
continued.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import pjrt
from benchmarks.fuzz.worker import everything_here
from pjrt.api.element_type import ElementType
from pjrt.conformance import OperationCase, cases_of, operations
from pjrt.conformance.device.checks import run_on, shown_inputs
from pjrt.conformance.judge import Judge

MODES = ("arguments", "constants")
TOGETHER = 48
"""The most programs that are run as one."""
LARGEST = 4096
"""The most elements of an argument: larger ones have the same faults, and take seconds."""

_HEAD = re.compile(r"func\.func @main\(([^)]*)\) -> (.*) \{$", re.MULTILINE)


def main() -> int:
    """Run, and print the counts and the differences."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wrong_answers", description=__doc__)
    parser.add_argument("--device", default="iree")
    parser.add_argument("--options", type=json.loads, default={}, help="of the client, as JSON")
    parser.add_argument("--state", type=Path, required=True, help="where to keep what is done")
    parser.add_argument("--types", default="", help="MLIR's names of element types, with commas; all by default")
    parser.add_argument("--filter", default="", help="a regular expression for 'operation mode number'")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds that the programs of one unit may take")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    table = Table(arguments.types)
    if arguments.worker:
        return work(arguments.device, arguments.options, table)
    of = {name: getattr(arguments, name) for name in ("device", "options", "types")}
    state = json.loads(arguments.state.read_text()) if arguments.state.exists() else {**of, "done": {}}
    if of != {name: state[name] for name in of}:
        raise SystemExit(f"{arguments.state} is of a run with other arguments: {of}")
    done = state["done"]
    with Supervisor(arguments, table) as supervisor:
        for unit in table.units():
            if unit not in done and re.search(arguments.filter, unit):
                done[unit] = supervisor.outcome(unit)
                arguments.state.write_text(json.dumps(state, indent=1))
                for each in done[unit]["findings"]:
                    print(f"{unit}: {each['case']}: {each['message'][:200]}", flush=True)
    counts: Counter[str] = Counter()
    for outcome in done.values():
        counts.update(outcome["counts"])
    print(f"{len(done)} units of {len(list(table.units()))}: {dict(counts)}")
    return 1 if any(outcome["findings"] for outcome in done.values()) else 0


class Table:
    """The cases of all operations, for some element types, in units.

    Args:
        types: MLIR's names of element types, with commas between them; all types if empty.
    """

    def __init__(self, types: str) -> None:
        self._types = {ElementType.from_mlir(each) for each in types.split(",")} if types else set(ElementType)
        self._cases = functools.cache(self._made)

    def units(self) -> Iterator[str]:
        """Return the names of what is run as one: an operation, a mode, and the number of a part of the cases."""
        for mode in MODES:
            for operation in operations():
                for number in range(-(-len(self._cases(operation, mode)) // TOGETHER)):
                    yield f"{operation} {mode} {number}"

    def cases_in(self, unit: str) -> list[OperationCase]:
        """Return the cases of a unit."""
        operation, mode, number, *_ = unit.split()
        begin = int(number) * TOGETHER
        return self._cases(operation, mode)[begin : begin + TOGETHER]

    def _made(self, operation: str, mode: str) -> list[OperationCase]:
        return [
            case
            for element_type in operations()[operation]
            if element_type in self._types
            for case in cases_of(operation, element_type)
            if all(each.size <= LARGEST for each in case.inputs) and (mode == "arguments" or case.inputs)
        ]


class Supervisor:
    """Answers for units by a process that a device may end, and that is then started anew."""

    def __init__(self, arguments: argparse.Namespace, table: Table) -> None:
        command = [sys.executable, "-m", "benchmarks.wrong_answers", "--worker", "--state", "-"]
        command += [f"--device={arguments.device}", f"--types={arguments.types}"]
        self._command = [*command, "--options", json.dumps(arguments.options)]
        self._limit = arguments.limit
        self._table = table
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *exception: object) -> None:
        self._end()

    def outcome(self, unit: str) -> dict[str, Any]:
        """Return the counts and the findings of a unit; a process that ends or hangs is a finding."""
        answer = self._ask(unit)
        if answer is not None:
            return answer
        counts: Counter[str] = Counter()
        findings: list[dict[str, str]] = []
        for number, case in enumerate(self._table.cases_in(unit)):
            answer = self._ask(f"{unit} {number}")
            if answer is None:
                counts["crashed"] += 1
                answer = {"counts": {}, "findings": [_finding(case, "the process ended, or did not answer in time")]}
            counts.update(answer["counts"])
            findings += answer["findings"]
        return {"counts": dict(counts), "findings": findings}

    def _ask(self, request: str) -> dict[str, Any] | None:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(self._limit, process.kill)
        timer.start()
        try:
            process.stdin.write(request + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if line:
            return dict(json.loads(line))
        self._end()
        return None

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def work(device: str, options: dict[str, Any], table: Table) -> int:
    """Answer for the units that the standard input names, a line for each."""
    client = pjrt.client(device, **options)
    for request in sys.stdin:
        _, mode, _, *numbers = request.split()
        cases = table.cases_in(request)
        run = Run(client, mode)
        with contextlib.nullcontext() if numbers else everything_here():  # what ended a process is asked for alone
            run.compare([cases[int(each)] for each in numbers] or cases)
        print(json.dumps({"counts": dict(run.counts), "findings": run.findings}), flush=True)
    return 0


class Run:
    """The comparisons of some cases on a client, with their counts and findings."""

    def __init__(self, client: pjrt.Client, mode: str) -> None:
        self._client, self._mode = client, mode
        self.counts: Counter[str] = Counter()
        self.findings: list[dict[str, str]] = []

    def compare(self, cases: Sequence[OperationCase]) -> None:
        """Compare cases as one program; where it does not run, or differs, those of each half."""
        if not cases:
            return
        text, inputs, counts = merged(cases, self._mode)
        try:
            results = run_on(self._client, text, inputs)
        except pjrt.PjrtError as error:
            if len(cases) > 1:
                self._halves(cases)
            elif error.code is pjrt.StatusCode.UNIMPLEMENTED:
                self.counts["refused"] += 1
            else:
                self._found(cases[0], f"{type(error).__name__}: {error.message}")
            return
        for case, count in zip(cases, counts, strict=True):
            mine, results = results[:count], results[count:]
            wrong = Judge(case.program).wrong_result(case, mine)
            if wrong is None:
                self.counts["right"] += 1
                continue
            place = None if wrong.difference is None else wrong.difference.worst
            if case.elementwise and place is not None and case.inputs[0].shape:
                shown = ", ".join(shown_inputs(case.of_one_element(place).inputs))
            else:
                shown = ", ".join(shown_inputs(case.inputs))
            self._found(case, f"{wrong.message}; {shown}")

    def _halves(self, cases: Sequence[OperationCase]) -> None:
        middle = len(cases) // 2
        self.compare(cases[:middle])
        self.compare(cases[middle:])

    def _found(self, case: OperationCase, message: str) -> None:
        self.counts["different"] += 1
        self.findings.append(_finding(case, message))


def _finding(case: OperationCase, message: str) -> dict[str, str]:
    return {"case": case.label, "message": message[:600], "program": case.program}


def merged(cases: Sequence[OperationCase], mode: str) -> tuple[str, list[Any], list[int]]:
    """Return a program that calls those of all cases, its arguments, and how many results each case has."""
    functions, formal, calls, outputs, counts = [], [], [], [], []
    types_out: list[str] = []
    inputs: list[Any] = []
    for number, case in enumerate(cases):
        head = _HEAD.search(case.program)
        assert head is not None, case.program
        arguments = [each.split(": ", 1) for each in _split(head[1])]
        results = _split(head[2].removeprefix("(").removesuffix(")")) if head[2].startswith("(") else [head[2]]
        body = case.program.replace("@main", f"@case{number}", 1).replace("@swap", f"@swap{number}")
        functions.append(body.replace("func.func @case", "func.func private @case", 1))
        names = [f"%{name.removeprefix('%')}{number}" for name, _ in arguments]
        for name, (_, type_), array in zip(names, arguments, case.inputs, strict=True):
            if mode == "constants":
                calls.append(f"  {name} = stablehlo.constant {literal(array)} : {type_}")
            else:
                formal.append(f"{name}: {type_}")
                inputs.append(array)
        spelled = ", ".join(type_ for _, type_ in arguments)
        count = len(results)
        calls.append(
            f"  %r{number}{f':{count}' if count > 1 else ''} = func.call @case{number}({', '.join(names)}) : "
            f"({spelled}) -> ({', '.join(results)})"
        )
        outputs += [f"%r{number}#{each}" if count > 1 else f"%r{number}" for each in range(count)]
        types_out += results
        counts.append(count)
    main_text = "\n".join(
        [
            f"func.func @main({', '.join(formal)}) -> ({', '.join(types_out)}) {{",
            *calls,
            f"  return {', '.join(outputs)} : {', '.join(types_out)}\n}}",
        ]
    )
    return "\n".join([main_text, *functions]), inputs, counts


def _split(types: str) -> list[str]:
    """Return the parts of a list between commas that are not within angle brackets."""
    return [each for each in re.split(r", (?![^<]*>(?!>)|[^<]*>>)", types) if each]


def literal(array: Any) -> str:
    """Return an array as a constant of StableHLO, by its bits."""
    element = ElementType.of(array.dtype)
    if element is ElementType.PRED:
        text = np.array2string(array, separator=", ", threshold=sys.maxsize).lower()
        return f"dense<{text if array.size else ''}>"
    if not array.size:
        return "dense<>"
    if element.bits >= 8:
        return f'dense<"0x{np.ascontiguousarray(array).tobytes().hex().upper()}">'
    numbers = array.astype(np.int64) if element.is_integer else array.view(np.uint8)
    flat = [str(int(each)) if element.is_integer else f"0x{int(each):X}" for each in numbers.reshape(-1)]
    return f"dense<{_nested(flat, array.shape)}>"


def _nested(flat: Sequence[str], shape: Sequence[int]) -> str:
    if not shape:
        return flat[0]
    size = len(flat) // shape[0]
    return f"[{', '.join(_nested(flat[n * size : (n + 1) * size], shape[1:]) for n in range(shape[0]))}]"


if __name__ == "__main__":
    sys.exit(main())
