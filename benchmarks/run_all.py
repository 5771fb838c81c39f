"""Run every benchmark, each in a subprocess, and write `RESULTS.md` with a description of the machine."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
BENCHMARKS = [
    "startup",
    "dispatch",
    "dispatch_without_jax",
    "host_runtime",
    "memory",
    "plugin_boundary",
    "transfers",
    "big_models",
    "ifrt",
    "offload",
    "export",
    "native",
    "distributed",
    "remote",
    "serve_model",
    "cluster",
    "cluster_simulation",
    "layers",
    "soak",
    "exits",
    "reference",
    "reference_operations",
    "author",
    "collectives",
    "join",
    "encoder",
    "compilers",
    "iree",
]
PACKAGES = ["pjrt", "jaxlib", "jax", "numpy", "iree-base-runtime"]


def main() -> None:
    """Run the named benchmarks, or all, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=BENCHMARKS, help=f"of {', '.join(BENCHMARKS)}; default: all")
    parser.add_argument(
        "--quick", action="store_true", help="fewer rounds and smaller sizes, to see that everything works"
    )
    parser.add_argument("--output", type=Path, default=HERE / "RESULTS.md")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")

    busy = [os.getloadavg()[0]]
    reports = [run(name, arguments.quick) for name in arguments.names]
    busy.append(os.getloadavg()[0])
    arguments.output.write_text(document(reports, busy) + recorded(arguments.output))
    print(f"wrote {arguments.output}")


def run(name: str, quick: bool) -> dict:
    """Run one benchmark and return the report that `side_by_side.main` wrote; its output goes to the terminal."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        command = [sys.executable, "-m", f"benchmarks.{name}", "--json", str(path), *(["--quick"] if quick else [])]
        subprocess.run(command, check=True, cwd=HERE.parent)
        return json.loads(path.read_text())


def document(reports: list[dict], busy: list[float]) -> str:
    """Return the text of `RESULTS.md`: the machine, the aims in short, and each report."""
    aims = [f"- {report['title']}: {aim['text']}" for report in reports for aim in report["aims"]]
    met = sum(aim["met"] for report in reports for aim in report["aims"])
    head = [
        "# Benchmark results",
        "Written by `python -m benchmarks.run_all`; how it is measured is in [README.md](README.md).",
        "\n".join(
            f"- {fact}" for fact in [*machine(), f"load average before the run {busy[0]:.1f}, after it {busy[1]:.1f}"]
        ),
        f"## Aims: {met} of {len(aims)} met",
        "\n".join(aims),
    ]
    return "\n\n".join([*head, *(report["markdown"].rstrip() for report in reports)]) + "\n"


def recorded(results: Path) -> str:
    """Return the sections of jobs that are recorded by hand, so that they stay in the results."""
    _, heading, section = (results.read_text() if results.exists() else "").partition("\n## Fuzzing\n")
    return heading + section


def machine() -> list[str]:
    """Describe the machine and the versions, without anything that names the machine."""
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor() or "unknown",
    )
    memory = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in PACKAGES)
    today = datetime.datetime.now(tz=datetime.UTC).date()
    return [
        f"{today}, {platform.system()} {platform.release().partition('-')[0]} on {platform.machine()}",
        f"processor: {model}, {len(os.sched_getaffinity(0))} cores; memory {memory / 2**20:.0f} GiB",
        f"Python {platform.python_version()}, {versions}",
    ]


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


if __name__ == "__main__":
    main()
