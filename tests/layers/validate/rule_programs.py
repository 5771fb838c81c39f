"""The C program that breaks the rules of the layer ``validate``, compiled and run."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tiny import build

from pjrt.capi.environment import library_path
from pjrt.layers import Finding, read_findings

PROGRAMS = Path(__file__).parent / "programs"
FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O1", "-g1", "-Wall", "-Wextra", "-Werror", "-Wno-cast-function-type")


def cases(*but: str) -> list[str]:
    """Return the names of the cases in the C files, in order, but for those of some files."""
    files = [path for path in sorted(PROGRAMS.glob("*.c")) if path.stem not in but]
    return [name for path in files for name in re.findall(r'^    \{"([a-z-]+)", ', path.read_text(), re.M)]


@functools.cache
def compiled(cache: Path) -> Path:
    """Compile the program into the cache folder, once for each state of its files, and return its path."""
    sources = sorted(PROGRAMS.glob("*.c"))
    command = [*build.compiler(), *FLAGS, f"-I{build.INCLUDE}", *map(str, sources), "-ldl", "-pthread"]
    hasher = hashlib.sha256(shlex.join(command).encode())
    for path in [*sources, *PROGRAMS.glob("*.h"), *build.INCLUDE.rglob("*.h")]:
        hasher.update(path.read_bytes())
    target = cache / hasher.hexdigest()[:16] / "break_rules"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f"partial{os.getpid()}")  # several sessions may compile at once
        subprocess.run([*command, "-o", str(partial)], check=True, timeout=240)
        partial.replace(target)
    return target


@dataclass
class BrokenRule:
    """The end of a case: its exit status, its output, and the findings."""

    returncode: int
    output: str
    errors: str
    findings: list[Finding]


def run_case(case: str, cache: Path, tiny: Path, folder: Path, options: str) -> BrokenRule:
    """Run one case on the tiny plugin with these options of the layer."""
    file = folder / "findings.jsonl"
    text = f"{options},file={file}"
    command = [str(compiled(cache)), str(library_path()), str(tiny), text, case]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return BrokenRule(done.returncode, done.stdout, done.stderr, read_findings(file) if file.exists() else [])
