"""Mutants as libraries: one C file compiled again, linked with the objects of the others."""

from __future__ import annotations

import hashlib
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tiny import build

from mutants.mutant import Mutant

# Warnings are off: a fault may leave a function or an argument without a use.
FLAGS = (build.OTHER_NAME, "-std=c11", "-D_GNU_SOURCE", "-O0", "-g0", "-w", "-pthread", "-fPIC", "-fvisibility=hidden")


class MutantLibraries:
    """A folder of compiled mutants; what was compiled before is used again."""

    def __init__(self, cache: Path) -> None:
        """Compile the files of the right plugin into the folder."""
        self._folder = cache / f"mutants-{_digest()}"
        self._folder.mkdir(parents=True, exist_ok=True)
        sources = build.tiny_sources()
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = pool.map(lambda source: self._object(source, source.read_text()), sources)
            self._objects = {source.name: path for source, path in zip(sources, objects, strict=True)}

    def right(self) -> Path:
        """Return the path of the plugin without a fault, compiled like the mutants."""
        return self._link("right", self._objects)

    def mutant(self, mutant: Mutant) -> Path:
        """Return the path of a mutant's library."""
        changed = self._object(Path(mutant.file), mutant.source())
        return self._link(mutant.name, {**self._objects, mutant.file: changed})

    def _object(self, source: Path, text: str) -> Path:
        target = self._folder / f"{source.stem}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.o"
        command = [*build.compiler(), *FLAGS, *(f"-I{each}" for each in build.FOLDERS), "-x", "c", "-c", "-"]
        return _made(target, command, text)

    def _link(self, name: str, objects: dict[str, Path]) -> Path:
        digest = hashlib.sha256("".join(path.name for path in objects.values()).encode()).hexdigest()[:16]
        target = self._folder / f"lib{name.replace('.', '-')}-{digest}.so"
        return _made(target, [*build.compiler(), "-shared", "-pthread", *map(str, objects.values())])


def _made(target: Path, command: list[str], text: str | None = None) -> Path:
    if not target.exists():
        partial = target.with_name(f"{target.name}.{os.getpid()}")  # several sessions may compile at once
        result = subprocess.run(
            [*command, "-o", str(partial)], input=text, capture_output=True, text=True, timeout=240, check=False
        )
        if result.returncode:
            raise RuntimeError(f"{target.name} does not compile:\n{result.stderr}")
        partial.replace(target)
    return target


def _digest() -> str:
    hasher = hashlib.sha256(" ".join((*build.compiler(), *FLAGS)).encode())
    for path in build.headers():
        hasher.update(path.read_bytes())
    return hasher.hexdigest()[:16]
