"""Make the recordings of programs with JAX and PyTorch/XLA that ``pjrt conform`` replays.

    python tools/gen_framework_recordings.py                                     # those of JAX
    python tools/gen_framework_recordings.py --torch-xla torchxla/bin/python     # those of PyTorch/XLA, too

The programs are in ``tools/framework_programs/``. PyTorch/XLA needs a Python of its own, with the packages that
``tests/frameworks/torch_xla_job.py`` names and the extra ``xla``.
"""

from __future__ import annotations

import argparse
import ast
import json
import lzma
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from pjrt.layers.recording import Recording, write_recording

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ROOT / "tools" / "framework_programs"
RECORDINGS = ROOT / "src" / "pjrt" / "conformance" / "plugin" / "framework" / "recordings"
INDEX = RECORDINGS / "recordings.json"
_PATH = re.compile(rb"/(?:home|root|tmp|usr|Users)/[\w./-]{4,}")


def programs(file: Path) -> dict[str, tuple[str, int]]:
    """Return the programs of a file: what each is about, and the number of devices that it needs."""
    found = {}
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef) and any("program" in ast.unparse(each) for each in node.decorator_list):
            about = " ".join((ast.get_docstring(node) or "").split())
            found[node.name] = about, 2 if "devices=2" in ast.unparse(node.decorator_list[0]) else 1
    return found


def record(python: str, file: Path, name: str, folder: Path) -> Path:
    """Run a program under the layer ``record``; return the recording without times, which differ from run to run."""
    path = folder / f"{name}.rec"
    environment = os.environ | {
        "PJRT_LAYERS": "record",
        "PJRT_RECORD": f"file={path}",
        "PYTHONPATH": str(ROOT / "src"),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    subprocess.run([python, file.name, name], cwd=PROGRAMS, env=environment, check=True, timeout=600)
    recording = Recording.open(path)
    for call in recording.calls:
        call.time = 0
        call.duration = None if call.duration is None else 0
    smaller = folder / f"{name}.small.rec"
    write_recording(recording, smaller, recording.calls)
    return smaller


def version_of(python: str, package: str) -> str:
    """Return the version of a package of a Python."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    """Make the recordings, and the index of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch-xla", metavar="PYTHON", help="the Python that has PyTorch/XLA")
    options = parser.parse_args()
    frameworks = [("jax", "JAX", "jax", sys.executable)]
    if options.torch_xla:
        frameworks.append(("torch_xla", "PyTorch/XLA", "torch_xla", options.torch_xla))
    RECORDINGS.mkdir(exist_ok=True)
    index = json.loads(INDEX.read_text()) if INDEX.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for prefix, title, package, python in frameworks:
            index = {name: facts for name, facts in index.items() if not name.startswith(f"{prefix}.")}
            file = PROGRAMS / f"{prefix}_programs.py"
            for program, (about, devices) in programs(file).items():
                name = f"{prefix}.{program}"
                data = record(python, file, program, Path(folder)).read_bytes()
                if match := _PATH.search(data):
                    raise SystemExit(f"{name}: the recording has a path of this machine: {match.group().decode()}")
                calls = {call.function for call in Recording.parse(data, name).calls}
                index[name] = {
                    "framework": f"{title} {version_of(python, package)}",
                    "about": about,
                    "devices": devices,
                    "calls": sorted(calls),
                }
                packed = lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)
                (RECORDINGS / f"{name}.rec.xz").write_bytes(packed)
                print(f"{name}: {len(packed)} bytes")
    for path in RECORDINGS.glob("*.rec.xz"):
        if path.name.removesuffix(".rec.xz") not in index:
            path.unlink()
    INDEX.write_text(json.dumps(index, indent=1) + "\n")


if __name__ == "__main__":
    main()
