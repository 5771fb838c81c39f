"""Time the start: of imports, clients, commands, and the way to the first result of the digits example.

Each contestant runs in fresh processes, which take turns. Beside the time on the clock, the least processor time of a
process is printed: other work on the machine hardly changes that.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.side_by_side import Aim, Report, Timing, duration, main, table

DIGITS = Path(__file__).parents[1] / "examples" / "digits"

# Each script notes the seconds since its first line at the end of each phase. argv[1] is the folder of the example and
# argv[2] a file that `jax.export` wrote. All end with the 360 predictions, which must be right.
BEGIN = """
import time
marks = {}
begin = time.perf_counter()
def mark(phase):
    marks[phase] = time.perf_counter() - begin
"""
ARGUMENTS = """
with np.load(sys.argv[1] + "/weights.npz") as saved:
    weights = {name: saved[name] for name in saved.files}
images = np.load(sys.argv[1] + "/images.npy")
mark("arguments")
"""
END = """
mark("run")
import json
accuracy = float((scores.argmax(axis=1) == np.load(sys.argv[1] + "/labels.npy")).mean())
print(json.dumps({"marks": marks, "accuracy": accuracy}))
"""

PJRT = (
    """
import sys
import numpy as np
import pjrt
mark("import")
client = pjrt.client("cpu")
mark("client")
"""
    + ARGUMENTS
    + """
executable = client.compile(open(sys.argv[1] + "/digits.stablehlo", "rb").read())
mark("compile")
scores = np.asarray(executable(*weights.values(), images)[0])
"""
)

RAW = (
    """
import sys
import numpy as np
from benchmarks.raw_jaxlib import RawClient
mark("import")
client = RawClient()
mark("client")
"""
    + ARGUMENTS
    + """
code = open(sys.argv[1] + "/digits.stablehlo", "rb").read()
executable = client.compile(code, [((360, 10), np.dtype(np.float32))])
mark("compile")
scores = np.asarray(executable(*[client.put(array) for array in (*weights.values(), images)])[0])
"""
)

# What a user of JAX has: the same program as `jax.export` saves it.
JAX_EXPORT = (
    """
import sys
import numpy as np
import jax
import jax.export
mark("import")
jax.devices()
mark("client")
"""
    + ARGUMENTS
    + """
compiled = jax.jit(jax.export.deserialize(open(sys.argv[2], "rb").read()).call).lower(weights, images).compile()
mark("compile")
scores = np.asarray(compiled(weights, images))
"""
)

# Or the model's source, traced and lowered anew.
JAX_SOURCE = (
    """
import sys
import numpy as np
import jax
import jax.numpy as jnp
mark("import")
jax.devices()
mark("client")
"""
    + ARGUMENTS
    + """
def classify(weights, images):
    x = images[..., None].astype(jnp.float32) / 16
    for layer in ("conv1", "conv2"):
        x = jax.lax.conv_general_dilated(
            x, weights[f"{layer}.kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(x + weights[f"{layer}.bias"])
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return x.reshape(len(x), -1) @ weights["dense.kernel"] + weights["dense.bias"]

compiled = jax.jit(classify).lower(weights, images).compile()
mark("compile")
scores = np.asarray(compiled(weights, images))
"""
)

SCRIPTS = {"pjrt": PJRT, "raw jaxlib": RAW, "jax, exported": JAX_EXPORT, "jax, from source": JAX_SOURCE}
PHASES = ("import", "client", "arguments", "compile", "run")

RUN = [
    *("run", str(DIGITS / "digits.stablehlo")),
    *("--input", str(DIGITS / "weights.npz"), "--input", str(DIGITS / "images.npy")),
]
COMMANDS = {
    "bare Python": ["-c", ""],
    "import pjrt": ["-c", "import pjrt"],
    "pjrt --help": ["-m", "pjrt", "--help"],
    "pjrt run": ["-m", "pjrt", *RUN],
    "named client": ["-c", "import pjrt; pjrt.client('cpu')"],
    "client without a name": ["-c", "import pjrt; pjrt.client()"],
}

_OVER_JAXLIB = (
    "Ours are a hundred modules for a client and thirty for a compilation, and MLIR's bindings, with which a program "
    "is inspected before XLA's compiler sees it."
)
_OVER_SCRIPT = (
    "Beyond what a script with pjrt imports, the command imports click, model files and arrays over devices, and a "
    "fork of it parses the program first, which may be damaged."
)


class Start(NamedTuple):
    """One process: the seconds on the clock and of its processors, and what it printed."""

    seconds: float
    processor_seconds: float
    output: str


def measure(quick: bool) -> Report:
    """Compare ours with jax and jaxlib: imports, clients, commands and the first result of the digits example."""
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder) / "digits.jax_export"
        _write_jax_export(exported)
        contestants = {
            name: ["-c", BEGIN + script + END, str(DIGITS), str(exported)] for name, script in SCRIPTS.items()
        } | COMMANDS
        starts: dict[str, list[Start]] = {name: [] for name in contestants}
        for number in range(1 + (3 if quick else 21)):
            for name, arguments in contestants.items():
                start = _start(arguments)
                if number > 0:  # the first round fills the caches of compiled Python files and of the disk
                    starts[name].append(start)
    return _report(starts)


def _report(starts: Mapping[str, Sequence[Start]]) -> Report:
    marks = {name: [_marks(start) for start in starts[name]] for name in SCRIPTS}
    totals = {name: Timing(tuple(noted["run"] for noted in rounds)) for name, rounds in marks.items()}
    phases = {name: [_phase(rounds, number) for number in range(len(PHASES))] for name, rounds in marks.items()}
    rows = [
        (name, total, f"{total.ratio_to(totals['pjrt']):.2f}×", *(duration(phase.median) for phase in phases[name]))
        for name, total in totals.items()
    ]
    processes = {name: Timing(tuple(start.seconds for start in rounds)) for name, rounds in starts.items()}
    least = {name: min(start.processor_seconds for start in rounds) for name, rounds in starts.items()}
    floor = processes["raw jaxlib"]
    of_processes = [
        (name, each, f"{each.ratio_to(floor):.2f}×", duration(least[name]), f"{least[name] / least['raw jaxlib']:.2f}×")
        for name, each in processes.items()
    ]
    report = Report(
        "Start-up",
        "The time from a script's first line to the predictions of the digits example, in fresh processes that take "
        "turns: in all, and by phase (medians). *jax, exported* runs a file written by `jax.export`; *jax, from "
        "source* traces the model. Then whole processes, from their start to their end, with the least processor time.",
        [
            table(["", "in all (quartiles)", "× pjrt", *PHASES], rows),
            table(["process", "clock (quartiles)", "× raw jaxlib", "processor", "× raw jaxlib"], of_processes),
        ],
    )
    report.aims += _aims(processes, totals, marks)
    return report


def _aims(
    processes: Mapping[str, Timing], totals: Mapping[str, Timing], marks: Mapping[str, list[Mapping[str, float]]]
) -> list[Aim]:
    floor = totals["raw jaxlib"]
    begins = {name: Timing(tuple(noted["client"] for noted in marks[name])) for name in ("pjrt", "raw jaxlib")}
    aims = [
        Aim("import pjrt: within 60 ms", _beyond(processes, "import pjrt", "bare Python") * 1e3, 60),
        Aim("pjrt --help: within 150 ms", processes["pjrt --help"].median * 1e3, 150),
        Aim(
            "a client without a name: within 5 ms beyond a named one",
            _beyond(processes, "client without a name", "named client") * 1e3,
            5,
        ),
        Aim("within 1.05× of raw jaxlib", totals["pjrt"].ratio_to(floor), 1.05, reason=_OVER_JAXLIB),
        Aim(
            "import and client: within 1.2× of raw jaxlib",
            begins["pjrt"].ratio_to(begins["raw jaxlib"]),
            1.2,
            reason=_OVER_JAXLIB,
        ),
        Aim(
            "pjrt run: within 1.15× of a process with raw jaxlib",
            processes["pjrt run"].ratio_to(processes["raw jaxlib"]),
            1.15,
            reason=_OVER_SCRIPT,
        ),
    ]
    for name in ("jax, exported", "jax, from source"):
        reason = (
            f"jaxlib without anything on top takes {duration(floor.median)}, {totals[name].ratio_to(floor):.1f} times "
            "as fast: importing numpy and jaxlib, compiling and the first run, which both do, leave no room for more."
        )
        ratio = totals[name].ratio_to(totals["pjrt"])
        aims.append(Aim(f"5 times as fast as {name}", ratio, 5, at_least=True, reason=reason))
    return aims


def _beyond(processes: Mapping[str, Timing], name: str, other: str) -> float:
    """Return the median of the seconds that a process takes longer than the other one of its round."""
    pairs = zip(processes[name].rounds, processes[other].rounds, strict=True)
    return statistics.median(seconds - others for seconds, others in pairs)


def _phase(rounds: list[Mapping[str, float]], number: int) -> Timing:
    before = PHASES[number - 1] if number else None
    return Timing(tuple(noted[PHASES[number]] - (noted[before] if before else 0) for noted in rounds))


def _marks(start: Start) -> Mapping[str, float]:
    """Return the phases of a script, whose predictions must be right."""
    result = json.loads(start.output)
    if result["accuracy"] < 0.97:
        raise RuntimeError(f"a contestant is wrong: accuracy {result['accuracy']}")
    marks: Mapping[str, float] = result["marks"]
    return marks


def _start(arguments: Sequence[str]) -> Start:
    """Run Python with arguments in a fresh process, and measure it."""
    # Installed packages bring compiled Python files; a checkout may not have been allowed to keep them so far.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        begin = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, *arguments], stdout=output, stderr=errors, cwd=Path(__file__).parents[1], env=environment
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        if process.returncode:
            raise RuntimeError(f"a contestant failed:\n{errors.read()}")
        return Start(seconds, usage.ru_utime + usage.ru_stime, output.read())


def _write_jax_export(path: Path) -> None:
    """Write the example's function as `jax.export` saves it, in a subprocess."""
    script = JAX_SOURCE.partition("compiled =")[0] + (
        "import jax.export\n"
        "open(sys.argv[2], 'wb').write(jax.export.export(jax.jit(classify))(weights, images).serialize())"
    )
    subprocess.run([sys.executable, "-c", BEGIN + script, str(DIGITS), str(path)], check=True)


if __name__ == "__main__":
    main(measure)
