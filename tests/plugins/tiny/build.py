"""Compile the tiny plugin with the runtime that it is made of, and the broken and empty ones beside it.

The result is cached by the hash of everything that goes into it, so that a session (or several at once) compiles once.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
PLUGIN = HERE / "plugin"
INCLUDE = HERE.parents[2] / "src" / "pjrt" / "abi"
RUNTIME = INCLUDE.parent / "native" / "library"
REPLACED = {"driver.c", "driver_here.c"}
"""The files of the runtime in whose place the tiny plugin has its own driver."""

FOLDERS = (INCLUDE, RUNTIME.parent / "include", RUNTIME, PLUGIN)
WARNINGS = ("-Wall", "-Wextra", "-Werror")
OTHER_NAME = "-DGetPjrtApi=runtime_table"
"""The name of the runtime's own table: the plugin gives its callers another one."""

FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-g1", "-pthread", "-fPIC", "-shared", "-fvisibility=hidden")


def compiler() -> list[str]:
    """Return the command of the C compiler: $CC, or gcc."""
    return shlex.split(os.environ.get("CC", "gcc"))


def tiny_sources() -> list[Path]:
    """Return the C files of the tiny plugin: its own, and those of the runtime."""
    runtime = (path for path in RUNTIME.glob("*.c") if path.name not in REPLACED)
    return sorted([*PLUGIN.glob("*.c"), *runtime])


def headers() -> list[Path]:
    """Return the headers that the C files may include."""
    return sorted(header for folder in FOLDERS for header in folder.rglob("*.h"))


def other_source(name: str) -> Path:
    """Return the one C file of a broken or empty plugin: "noop", "no_symbol"."""
    return HERE / "others" / f"{name}.c"


def build(sources: Sequence[Path], cache: Path, name: str, extra: Sequence[str] = ()) -> Path:
    """Compile the sources into cache/<hash>/<name> and return that path; what is there already is used again.

    Raises RuntimeError with the compiler's words where it fails.
    """
    options = [*FLAGS, *WARNINGS, *extra, *(f"-I{folder}" for folder in FOLDERS)]
    target = cache / _digest([*compiler(), *options, *map(str, sources)], sources) / name
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.parent), tempfile.TemporaryDirectory(dir=target.parent) as folder:
        if target.exists():
            return target
        partial = Path(folder) / name
        inputs = list(sources)
        if len(inputs) > 1:
            inputs = [Path(folder) / f"{number}.o" for number in range(len(sources))]
            commands = [[*options, "-c", str(s), "-o", str(o)] for s, o in zip(sources, inputs, strict=True)]
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(_compile, commands))
        _compile([*options, *map(str, inputs), "-o", str(partial)])
        os.link(partial, target)
    return target


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process at a time compile into a folder: the others find its library."""
    with open(folder / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(arguments: Sequence[str]) -> None:
    command = [*compiler(), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the tiny plugin does not compile: {shlex.join(command)}\n{done.stderr}")


def build_tiny(cache: Path, extra: Sequence[str] = ()) -> Path:
    """Compile the tiny plugin into the cache folder and return the path of the library."""
    return build(tiny_sources(), cache, "libtiny.so", [*extra, OTHER_NAME])


def build_other(name: str, cache: Path) -> Path:
    """Compile a broken or empty plugin into the cache folder and return the path of the library."""
    return build([other_source(name)], cache, f"lib{name}.so")


def _digest(command: Sequence[str], sources: Sequence[Path]) -> str:
    hasher = hashlib.sha256(shlex.join(command).encode())
    for path in sorted([*sources, *headers()]):
        hasher.update(path.name.encode())
        hasher.update(path.read_bytes())
    return hasher.hexdigest()[:16]
