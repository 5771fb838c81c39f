"""Make the recordings of programs with frameworks that ``pjrt conform`` replays.

    python tools/gen_framework_recordings.py jax                                 # those of JAX
    python tools/gen_framework_recordings.py torch_xla=torchxla/bin/python tensorflow=tensorflow/bin/python

The programs are in ``tools/framework_programs/``. The other frameworks need a Python of their own, with the extra
``xla`` and the packages that their jobs name, such as ``tests/frameworks/torch_tpu_job.py``.
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
FRAMEWORKS = {
    "jax": ("JAX", "jax"),
    "torch_tpu": ("TorchTPU", "torch_tpu"),
    "torch_xla": ("PyTorch/XLA", "torch_xla"),
    "tensorflow": ("TensorFlow", "tensorflow_cpu"),
}
"""The title and the package of each framework."""
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
    """Run a program under the layer ``record``; return the recording without what differs from run to run.

    These are times, and paths of this machine: the plugin's, and those of source files in programs.
    """
    path = folder / f"{name}.rec"
    environment = os.environ | {
        "PJRT_LAYERS": "record",
        "PJRT_RECORD": f"file={path}",
        "PYTHONPATH": str(ROOT / "src"),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    subprocess.run([python, file.name, name], cwd=PROGRAMS, env=environment, check=True, timeout=600)
    data = bytearray(path.read_bytes())
    recording = Recording.parse(data, name)  # which reads programs from the bytes when they are written
    data[:] = _PATH.sub(lambda found: found[0].rpartition(b"/")[2].rjust(len(found[0]), b"/"), data)
    recording.header = {**recording.header, "plugin": Path(recording.header["plugin"]).name}
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
    parser.add_argument(
        "frameworks",
        nargs="+",
        metavar="FRAMEWORK[=PYTHON]",
        help=f"{', '.join(FRAMEWORKS)}, and the Python that has it; the default is this one",
    )
    asked = [text.partition("=") for text in parser.parse_args().frameworks]
    if unknown := {prefix for prefix, _, _ in asked} - set(FRAMEWORKS):
        parser.error(f"expected {', '.join(FRAMEWORKS)}, found {', '.join(sorted(unknown))}")
    RECORDINGS.mkdir(exist_ok=True)
    index = json.loads(INDEX.read_text()) if INDEX.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for prefix, _, stated in asked:
            title, package = FRAMEWORKS[prefix]
            python = stated or sys.executable
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
