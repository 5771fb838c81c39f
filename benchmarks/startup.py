"""Time the way from the first import to the first result of the digits example, each contestant in fresh processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

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


def measure(quick: bool) -> Report:
    """Compare ours with jax: import, client and first result of the digits example in fresh processes."""
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder) / "digits.jax_export"
        _write_jax_export(exported)
        marks: dict[str, list[Mapping[str, float]]] = {name: [] for name in SCRIPTS}
        for number in range(1 + (3 if quick else 21)):
            for name, script in SCRIPTS.items():
                noted = _run(script, exported)
                if number > 0:  # the first round fills the caches of compiled Python files and of the disk
                    marks[name].append(noted)
    return _report(marks)


def _report(marks: Mapping[str, list[Mapping[str, float]]]) -> Report:
    totals = {name: Timing(tuple(noted["run"] for noted in rounds)) for name, rounds in marks.items()}
    phases = {name: [_phase(rounds, number) for number in range(len(PHASES))] for name, rounds in marks.items()}
    rows = [
        (name, total, f"{total.ratio_to(totals['pjrt']):.2f}×", *(duration(phase.median) for phase in phases[name]))
        for name, total in totals.items()
    ]
    report = Report(
        "Start-up",
        "The time from a script's first line to the predictions of the digits example, in fresh processes that take "
        "turns: in all, and by phase (medians). *jax, exported* runs a file written by `jax.export`; *jax, from "
        "source* traces the model.",
        [table(["", "in all (quartiles)", "× pjrt", *PHASES], rows)],
    )
    floor = totals["raw jaxlib"]
    for name in ("jax, exported", "jax, from source"):
        reason = (
            f"jaxlib without anything on top takes {duration(floor.median)}, {totals[name].ratio_to(floor):.1f} times "
            "as fast: importing numpy and jaxlib, compiling and the first run, which both do, leave no room for more."
        )
        ratio = totals[name].ratio_to(totals["pjrt"])
        report.aims.append(Aim(f"5 times as fast as {name}", ratio, 5, at_least=True, reason=reason))
    return report


def _phase(rounds: list[Mapping[str, float]], number: int) -> Timing:
    before = PHASES[number - 1] if number else None
    return Timing(tuple(noted[PHASES[number]] - (noted[before] if before else 0) for noted in rounds))


def _run(script: str, exported: Path) -> Mapping[str, float]:
    command = [sys.executable, "-c", BEGIN + script + END, str(DIGITS), str(exported)]
    # Installed packages bring compiled Python files; a checkout may not have been allowed to keep them so far.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1], env=environment
    )
    if done.returncode:
        raise RuntimeError(f"a contestant failed:\n{done.stderr}")
    result = json.loads(done.stdout)
    if result["accuracy"] < 0.97:
        raise RuntimeError(f"a contestant is wrong: accuracy {result['accuracy']}")
    return result["marks"]


def _write_jax_export(path: Path) -> None:
    """Write the example's function as `jax.export` saves it, in a subprocess."""
    script = JAX_SOURCE.partition("compiled =")[0] + (
        "import jax.export\n"
        "open(sys.argv[2], 'wb').write(jax.export.export(jax.jit(classify))(weights, images).serialize())"
    )
    subprocess.run([sys.executable, "-c", BEGIN + script, str(DIGITS), str(path)], check=True)


if __name__ == "__main__":
    main(measure)
