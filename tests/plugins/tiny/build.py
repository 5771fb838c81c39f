"""Compile the tiny plugin, and the broken and empty ones beside it, with the system's C compiler.

The result is cached by the hash of everything that goes into it, so that a session (or several at once) compiles once.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
INCLUDE = HERE.parents[2] / "src" / "pjrt" / "abi"
WARNINGS = ("-Wall", "-Wextra", "-Werror")
FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-g1", "-pthread", "-fPIC", "-shared", "-fvisibility=hidden")


def compiler() -> list[str]:
    """Return the command of the C compiler: $CC, or gcc."""
    return shlex.split(os.environ.get("CC", "gcc"))


def tiny_sources() -> list[Path]:
    """Return the C files of the tiny plugin."""
    return sorted(HERE.glob("*.c"))


def other_source(name: str) -> Path:
    """Return the one C file of a broken or empty plugin: "noop", "no_symbol"."""
    return HERE / "others" / f"{name}.c"


def build(sources: Sequence[Path], cache: Path, name: str, extra: Sequence[str] = ()) -> Path:
    """Compile the sources into cache/<hash>/<name> and return that path; what is there already is used again.

    Raises RuntimeError with the compiler's words where it fails.
    """
    command = [*compiler(), *FLAGS, *WARNINGS, *extra, f"-I{INCLUDE}", f"-I{HERE}", *map(str, sources)]
    target = cache / _digest(command, sources) / name
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(dir=target.parent, suffix=".so")
    os.close(handle)
    done = subprocess.run([*command, "-o", partial], capture_output=True, text=True, timeout=240, check=False)
    if done.returncode != 0:
        os.unlink(partial)
        raise RuntimeError(f"the tiny plugin does not compile: {shlex.join(command)}\n{done.stderr}")
    # A library that another session has put there meanwhile stays: who has opened it would take ours for a newer one.
    with contextlib.suppress(FileExistsError):
        os.link(partial, target)
    os.unlink(partial)
    return target


def build_tiny(cache: Path, extra: Sequence[str] = ()) -> Path:
    """Compile the tiny plugin into the cache folder and return the path of the library."""
    return build(tiny_sources(), cache, "libtiny.so", extra)


def build_other(name: str, cache: Path) -> Path:
    """Compile a broken or empty plugin into the cache folder and return the path of the library."""
    return build([other_source(name)], cache, f"lib{name}.so")


def _digest(command: Sequence[str], sources: Sequence[Path]) -> str:
    hasher = hashlib.sha256(shlex.join(command).encode())
    headers = [*HERE.glob("*.h"), *INCLUDE.rglob("*.h")]
    for path in sorted([*sources, *headers]):
        hasher.update(path.name.encode())
        hasher.update(path.read_bytes())
    return hasher.hexdigest()[:16]
