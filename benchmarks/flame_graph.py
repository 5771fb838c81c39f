"""Draw where the time of a case of `benchmarks.compare` goes, in Python and in native code, as a flame graph.

    pip install py-spy
    python -m benchmarks.flame_graph                              # the cases of KEPT, to benchmarks/flame_graphs
    python -m benchmarks.flame_graph 'execute on cpu, waiting' --output .

The case runs again and again in a subprocess. `py-spy`, which samples a process from outside, looks only at the calls,
not at the imports and the preparation before them. It needs the right to trace processes: root, or a `ptrace_scope` of
0. Where it cannot follow a stack through code without symbols, a function is drawn without some of its callers.
"""

from __future__ import annotations

import argparse
import dataclasses
import html
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.cases import CASES

KEPT = (
    "execute on cpu, waiting",
    "execute on exported-cpu, waiting",
    "jax.jit on exported cpu, waiting",
    "jax.jit on exported python_noop, waiting",
    "compile a tiny program on reference",
)
"""The cases whose graphs are kept beside the benchmarks: a call of each path that was made short by its profile."""

FOLDER = Path(__file__).parent / "flame_graphs"
_WARM_UP = 200
_WIDTH, _ROW = 1200, 16
_LEAST = 4
"""The width of the narrowest function that is drawn."""
_LOOP = """
from benchmarks.cases import CASES
call = CASES[{case!r}]()
for _ in range({warm_up}):
    call()
print("ready", flush=True)
while True:
    call()
"""


@dataclasses.dataclass
class Frame:
    """A function in a stack, with the samples of all stacks that begin with it and its callers."""

    samples: int = 0
    callees: dict[str, Frame] = dataclasses.field(default_factory=dict)

    def add(self, stack: list[str], samples: int) -> None:
        """Add the samples of a stack of functions, the outermost first."""
        self.samples += samples
        if stack:
            self.callees.setdefault(stack[0], Frame()).add(stack[1:], samples)

    @property
    def depth(self) -> int:
        """The number of functions in the deepest stack."""
        return 1 + max((callee.depth for callee in self.callees.values()), default=0)


def sample(case: str, seconds: int, rate: int) -> Frame:
    """Return the stacks of a case, sampled `rate` times a second while its calls run."""
    command = [sys.executable, "-c", _LOOP.format(case=case, warm_up=_WARM_UP)]
    with tempfile.TemporaryDirectory() as folder, subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as loop:
        stacks = Path(folder) / "stacks"
        try:
            if loop.stdout is None or "ready\n" not in iter(loop.stdout.readline, ""):
                raise SystemExit(f"the process of {case!r} ended before its first sample")
            how = ["--native", "--format", "raw", "--rate", str(rate), "--duration", str(seconds)]
            subprocess.run(["py-spy", "record", *how, "--pid", str(loop.pid), "--output", str(stacks)], check=True)
        finally:
            loop.kill()
        root = Frame()
        for line in stacks.read_text().splitlines():
            stack, _, samples = line.rpartition(" ")
            functions = (function for function in stack.split(";") if not function.startswith("0x"))  # without a symbol
            root.add([_short(function) for function in functions], int(samples))
    return root


def _short(function: str) -> str:
    """Return the name of a function without the arguments of templates and of calls, and without lines."""
    function = re.sub(r"^<(\w+)>", r"\1", function)  # as in `<module>`
    while (shorter := re.sub(r"<[^<>]*>|\{[^{}]*\}|:\d+(?=\)$)", "", function)) != function:
        function = shorter
    name, _, place = function.partition(" (")
    return f"{name.split('(')[0][-60:]} ({Path(place.rstrip(')')).name})"


def drawn(title: str, root: Frame) -> str:
    """Return a flame graph as SVG: a row for each depth of the stack, wide where many samples were."""
    height = (root.depth + 2) * _ROW
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="monospace" '
        'font-size="11">',
        f'<text x="4" y="14">{html.escape(title)}: {root.samples} samples</text>',
    ]

    def draw(frame: Frame, left: float, row: int) -> None:
        for name, callee in sorted(frame.callees.items()):
            width = callee.samples / root.samples * _WIDTH
            if width >= _LEAST:
                text = html.escape(name)
                share = f"{callee.samples / root.samples:.1%}"
                shade = 120 + sum(map(ord, name)) % 110
                lines.append(
                    f'<g><title>{text} {share}</title><rect x="{left:.1f}" y="{row * _ROW}" width="{width:.1f}" '
                    f'height="{_ROW - 1}" fill="rgb(240,{shade},70)"/>'
                )
                letters = int(width / 6.7)
                if letters > 3:
                    label = html.escape(name[:letters])
                    lines.append(f'<text x="{left + 2:.1f}" y="{row * _ROW + 12}">{label}</text>')
                lines.append("</g>")
                draw(callee, left, row + 1)
            left += width

    draw(root, 0, 1)
    return "\n".join([*lines, "</svg>\n"])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="names of cases; by default those that are kept")
    parser.add_argument("--output", type=Path, default=FOLDER, help="the folder of the graphs")
    parser.add_argument("--seconds", type=int, default=5, help="the time for which each case is sampled")
    parser.add_argument("--rate", type=int, default=200, help="the samples in a second")
    arguments = parser.parse_args()
    unknown = [case for case in arguments.cases if case not in CASES]
    if unknown:
        parser.error(f"expected names of cases, found {', '.join(map(repr, unknown))}; there are {', '.join(CASES)}")
    if shutil.which("py-spy") is None:
        parser.error("this needs py-spy: pip install py-spy")
    arguments.output.mkdir(parents=True, exist_ok=True)
    for case in arguments.cases or KEPT:
        file = arguments.output / (re.sub(r"[^a-z0-9]+", "_", case.lower()) + ".svg")
        file.write_text(drawn(case, sample(case, arguments.seconds, arguments.rate)), encoding="utf-8")
        print(file)


if __name__ == "__main__":
    main()
