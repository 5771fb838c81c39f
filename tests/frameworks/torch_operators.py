"""The operators of PyTorch's own database (``op_db``) on a device, beside PyTorch's CPU: a job, run by hand.

    python tests/frameworks/torch_operators.py reference --dtype float32        # or cpu; bfloat16, int64
    python tests/frameworks/torch_operators.py reference --dtype float32 --without-fallback
    python tests/frameworks/torch_operators.py reference --compiled             # by torch.compile(…, backend="pjrt")
    python tests/frameworks/torch_operators.py --record                         # all, into docs/frameworks/torch.md

Each operator runs with the first samples of its inputs. It is right if each result has the CPU's type, shape and
values, or, where no values are prescribed, the CPU's type and shape. Operators run one after the other in a process,
which starts again behind one that ends it or that takes too long. The environment is that of ``torch_tpu_job.py``; with
``--compiled``, one with torchax and JAX.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import logging.handlers
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "frameworks" / "torch.md"
DEVICES = ("reference", "cpu")
DTYPES = ("float32", "bfloat16", "int64")
SECONDS = 120
TOLERANCES = {"float32": (1e-4, 1e-4), "bfloat16": (5e-2, 2e-2), "int64": (1e-5, 1e-5)}
"""The relative and the absolute tolerance of each type; results of integers may be floating-point numbers."""

ANY_VALUES = re.compile(
    r"empty|uninitialized|^(rand|normal|bernoulli|multinomial|cauchy|exponential|geometric|log_normal|uniform|poisson)"
    r"|dropout|rrelu|sample|randn|randint|randperm|^nn.functional.*alpha_dropout|attention"
)
"""Operators whose values are random, or any."""

ON_HOST = ("tensor_split",)
"""Operators whose further arguments are on the CPU on all devices."""

ANY_ORDER = re.compile(r"^(sort|argsort|topk|kthvalue|mode|median|nanmedian|msort)$")
"""Operators with indices among equal elements, of which any is right."""

ANY_SIGNS = re.compile(r"svd|pca|eig|qr|lu$|lu_factor|ormqr|householder|geqrf|ldl|lobpcg|matrix_rank")
"""Decompositions, whose factors may have either sign: their absolute values are compared."""


def operators(dtype: str) -> list[Any]:
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    return [each for each in op_db if getattr(torch, dtype) in each.supported_dtypes("cpu")]


def full_name(operator: Any) -> str:
    return operator.name + (f".{operator.variant_test_name}" if operator.variant_test_name else "")


def compare(operator: str, found: Any, expected: Any, dtype: str) -> str:
    """Return what differs; empty if nothing does."""
    import torch
    from torch.utils._pytree import tree_leaves

    founds, expecteds = tree_leaves(found), tree_leaves(expected)
    if len(founds) != len(expecteds):
        return f"{len(founds)} results, expected {len(expecteds)}"
    rtol, atol = TOLERANCES[dtype]
    for a, b in zip(founds, expecteds, strict=True):
        if not isinstance(b, torch.Tensor):
            if type(a) is not type(b) or (
                isinstance(b, int | float | bool) and a != b and not ANY_VALUES.search(operator)
            ):
                return f"{a!r}, expected {b!r}"
            continue
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"{a.dtype}{list(a.shape)}, expected {b.dtype}{list(b.shape)}"
        if ANY_VALUES.search(operator) or b.is_sparse or b.layout != torch.strided:
            continue
        if ANY_ORDER.search(operator) and b.dtype == torch.int64 and (operator == "argsort" or b is not expecteds[0]):
            continue
        a, b = a.detach().cpu(), b.detach()
        if ANY_SIGNS.search(operator):
            a, b = a.abs(), b.abs()
        try:
            torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError as error:
            return " ".join(str(error).split())[:200]
    return ""


class Compiled:
    """Operators compiled for a device by the backend `pjrt`, with tensors on the CPU."""

    def __init__(self, device: str, fallback: bool) -> None:
        self._options = {"device": device, "cpu_fallback": fallback, "cache": False}
        self._warnings = logging.handlers.BufferingHandler(1 << 30)
        logging.getLogger("pjrt.frameworks._torch_compile").addHandler(self._warnings)

    def __call__(self, operator: Any, sample: Any, args: Any, kwargs: Any) -> Any:
        import torch

        from pjrt.frameworks import _torch_compile

        torch._dynamo.reset()
        _torch_compile.Target.forget()  # it warns of each operation once
        return torch.compile(operator, backend="pjrt", options=self._options)(sample, *args, **kwargs)

    def count(self) -> int:
        return len(self._warnings.buffer)


class Eager:
    """Operators on PyTorch's own device."""

    def __call__(self, operator: Any, sample: Any, args: Any, kwargs: Any) -> Any:
        return operator(sample, *args, **kwargs)

    def count(self) -> int:
        import pjrt

        return sum(pjrt.frameworks.torch.fallback_counts().values())


def run_all(device: str, dtype: str, fallback: bool, samples: int, first: int, compiled: bool) -> None:
    """Run the operators from a number on, and print a line of each: its name before, its outcome behind."""
    import torch
    from torch.utils._pytree import tree_map

    import pjrt

    place = torch.device("cpu") if compiled else pjrt.frameworks.torch.register(device, cpu_fallback=fallback)
    way: Compiled | Eager = Compiled(device, fallback) if compiled else Eager()

    def moved(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.detach().clone().to(place)
        return place if isinstance(value, torch.device) else value

    for number, operator in enumerate(operators(dtype)):
        if number < first:
            continue
        print(json.dumps([number, full_name(operator)]), flush=True)
        outcome = "right"
        before = way.count()
        try:
            torch.manual_seed(number)
            inputs = operator.sample_inputs("cpu", getattr(torch, dtype), requires_grad=False)
            for sample in itertools.islice(inputs, samples):
                arguments = (sample.input, sample.args, sample.kwargs)
                on_device = tree_map(moved, arguments)  # before the CPU's operator may change them
                if full_name(operator) in ON_HOST:
                    on_device = (on_device[0], sample.args, sample.kwargs)
                try:
                    expected = operator(arguments[0], *arguments[1], **arguments[2])
                except Exception as error:
                    outcome = f"not on the CPU: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
                    break
                if "device" in on_device[2]:
                    on_device[2]["device"] = place
                found = way(operator, *on_device)
                problem = compare(full_name(operator), found, expected, dtype)
                if problem:
                    outcome = f"differs: {problem}"
                    break
        except Exception as error:
            text = " ".join(str(error).split())
            missing = "is not implemented for TPU" in text
            outcome = f"{'missing' if missing else 'refused'}: {type(error).__name__}: {text[:300]}"
        if outcome == "right" and way.count() > before:
            outcome = "right, on the CPU"
        print(json.dumps(outcome), flush=True)
    print("null", flush=True)


def outcomes(device: str, dtype: str, fallback: bool, samples: int, compiled: bool) -> Iterator[tuple[str, str]]:
    """Return what became of each operator."""
    first = 0
    while True:
        command = [sys.executable, __file__, device, "--dtype", dtype, "--samples", str(samples), "--first", str(first)]
        command += ["--without-fallback"] * (not fallback) + ["--compiled"] * compiled
        name = ""
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            for line in _lines(process):
                value = json.loads(line)
                if value is None:
                    return
                if isinstance(value, list):
                    first, name = value[0] + 1, value[1]
                else:
                    yield name, value
                    name = ""
        if not name:
            raise SystemExit(f"{device}, {dtype}: the process ended with {process.returncode} between two operators")
        yield name, f"ends the process, or takes {SECONDS} s: {process.returncode}"


def _lines(process: subprocess.Popen[str]) -> Iterator[str]:
    """Return the lines of a process, which is killed if the next one takes too long."""
    assert process.stdout is not None
    while True:
        timer = threading.Timer(SECONDS, process.kill)
        timer.start()
        line = process.stdout.readline()
        timer.cancel()
        if not line:
            return
        if line[0] in '["n':
            yield line


HEADING = "| device | type | operators | right | of them on the CPU | refused | other values |"
"""The head of the table in the page."""


def row(device: str, dtype: str, kinds: collections.Counter[str]) -> str:
    """Return the row of the table in the page."""
    here, there = kinds["right"], kinds["right, on the CPU"]
    refused, other = kinds["refused"] + kinds["missing"], kinds["differs"]
    count = sum(kinds.values()) - kinds["not on the CPU"]
    ended = count - here - there - refused - other
    numbers = [count, f"{here + there} ({100 * (here + there) / count:.1f} %)", there, refused + ended, other]
    return f"| {' | '.join([f'`{device}`', f'`{dtype}`', *map(str, numbers)])} |"


def record(rows: list[str]) -> None:
    """Write the table of the page anew."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    begin = end = lines.index(HEADING) + 2
    while lines[end].startswith("|"):
        end += 1
    PAGE.write_text("\n".join([*lines[:begin], *rows, *lines[end:]]) + "\n", encoding="utf-8")


def measure(device: str, dtype: str, fallback: bool, samples: int, compiled: bool = False) -> collections.Counter[str]:
    began = time.monotonic()
    kinds: collections.Counter[str] = collections.Counter()
    for name, outcome in outcomes(device, dtype, fallback, samples, compiled):
        kinds[outcome.partition(":")[0]] += 1
        if not outcome.startswith("right"):
            print(f"    {name}: {outcome}", flush=True)
    print(
        f"{device} {dtype} fallback={fallback} samples={samples}: {sum(kinds.values())} operators: {dict(kinds)}, "
        f"{time.monotonic() - began:.0f} s",
        flush=True,
    )
    return kinds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("device", nargs="?")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--without-fallback", action="store_true")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--first", type=int)
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    if args.first is not None:
        run_all(args.device, args.dtype, not args.without_fallback, args.samples, args.first, args.compiled)
        sys.stdout.flush()
        os._exit(0)
    fallback = not args.without_fallback
    if args.record:
        record([row(each, dtype, measure(each, dtype, fallback, 1)) for each in DEVICES for dtype in DTYPES])
    else:
        measure(args.device, args.dtype, fallback, args.samples, args.compiled)


if __name__ == "__main__":
    main()
