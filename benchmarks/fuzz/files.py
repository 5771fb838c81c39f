"""The fuzz target ``files``: mutated files of all formats, given to the commands that read them, in this process.

Of a number, the remainder names the format, so that each gets as many. A finding is a command that ends otherwise than
with its result or with an error on one line, that takes too long, that prints what a terminal would obey, or that
leaves a file behind. As a program:

    python -m benchmarks.fuzz.files      # record the samples anew
"""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import traceback
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fuzz.mutations import Mutator, mutate_bytes

ROOT = Path(__file__).parents[2]
SAMPLES = Path(__file__).with_name("samples.zip")
FORMATS = (
    *("text.mlir", "code.mlirbc", "artifact.mlirbc", "proto.pb", "text.hlo", "jax.bin", "saved.pjrt"),
    *("model.pjrt", "array.npy", "arrays.npz", "arrays.safetensors", "calls.rec", "calls.trace"),
)
"""The formats by the names of their samples; MLIR in all its forms comes from the corpus of programs."""

ADD = """func.func @main(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
  %0 = stablehlo.add %x, %x : tensor<2x3xf32>
  return %0 : tensor<2x3xf32>
}"""

TAKEN, REFUSED, BARE = b"o", b"r", b"b"
_ENDS = {0: TAKEN, 1: TAKEN, 2: REFUSED}
"""The letters of exit statuses: 1 is that of a result that is not as it was to be."""

_OBEYED = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_OUTLINE = struct.Struct("<II")  # before each record of a recording: its size and its checksum


class FilesTarget:
    """The target: the samples, and a folder for mutated files.

    Args:
        seed: the seed of all mutations.
        apart: whether each command is a process of its own, as users start it.
    """

    def __init__(self, seed: int, *, apart: bool = False) -> None:
        self._seed = seed
        self._apart = apart
        self._text, self._binary = Mutator(seed, 0.0), Mutator(seed, 1.0)
        with zipfile.ZipFile(SAMPLES) as archive:
            self._samples = {name: archive.read(name) for name in archive.namelist()}
        self._folder = Path(tempfile.mkdtemp(prefix="fuzz-files-"))
        atexit.register(shutil.rmtree, self._folder, ignore_errors=True)
        os.chdir(self._folder)
        (self._folder / "add.mlir").write_text(ADD)

    def attempt(self, number: int) -> bytes:
        """Give the mutated file of a number to a command; return the letter of what came of it."""
        name, content = self.file(number)
        path = self._folder / name
        path.write_bytes(content)
        chance = random.Random(f"{self._seed}:command:{number}")
        try:
            return self._run(_command(name, chance))
        finally:
            path.unlink()
            for each in self._folder.iterdir():
                if each.name != "add.mlir":
                    each.unlink()

    def file(self, number: int) -> tuple[str, bytes]:
        """Return the name and the content of the mutated file of a number."""
        name, part = FORMATS[number % len(FORMATS)], number // len(FORMATS)
        if name == "text.mlir":
            return name, self._text.program(part)
        chance = random.Random(f"{self._seed}:{name}:{part}")
        if name in ("code.mlirbc", "artifact.mlirbc", "proto.pb"):
            return name, self._binary.binary_program(part, FORMATS.index(name) - 1)
        content = self._samples[name]
        if name == "text.hlo":
            return name, _mutated_text(content, chance)
        return name, _SEALED.get(name, mutate_bytes)(content, chance)

    def _run(self, arguments: list[str]) -> bytes:
        status, output = _run_apart(arguments) if self._apart else _run_here(arguments)
        found = _OBEYED.search(output)
        left = {each.name for each in self._folder.iterdir()} - {"add.mlir", arguments[-1]}
        if status in _ENDS and found is None and not left:
            return _ENDS[status]
        print(f"{arguments}: status {status}, {left or ''} {found or ''}: {output[-2000:]!r}", file=sys.stderr)
        return BARE


def _command(name: str, chance: random.Random) -> list[str]:
    """Return the arguments of a command that reads a file of a format; the file is the last one."""
    if name == "calls.rec":
        return ["replay", "--list", name]
    if name == "calls.trace":
        return ["trace", chance.choice(("--log", "--summary", "--json")), name]
    if name in ("array.npy", "arrays.npz", "arrays.safetensors"):
        return ["run", "--device", "reference", "add.mlir", "--input", name]
    return ["inspect", *chance.choice(((), (), ("--json",), ("--text",), ("--text", "--locations"), ("--dot",))), name]


def _run_here(arguments: list[str]) -> tuple[object, str]:
    """Return the exit status of a command and what it printed; a traceback in place of the status of a mistake."""
    from pjrt.cli import main

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            main(arguments, prog_name="pjrt")
        except SystemExit as end:
            return end.code or 0, printed.getvalue()
        except BaseException:
            return traceback.format_exc(), printed.getvalue()
    return 0, printed.getvalue()


def _run_apart(arguments: list[str]) -> tuple[object, str]:
    command = [sys.executable, "-P", "-m", "pjrt", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    output = done.stdout.decode(errors="replace")
    return output if "Traceback (most recent call last)" in output else done.returncode, output


_NUMBER = re.compile(rb"-?\d+")
_WORD = re.compile(rb"\w+|[^\w\s]")
_NUMBERS = (b"0", b"-1", b"1", b"2", b"255", b"65536", b"4294967295", b"9223372036854775807", b"1e400", b"")
_WORDS = (b"", b"null", b"true", b"[]", b"{}", b'"\\u001b[2J"', b"\xff", b'"', b"[" * 2000, b"(" * 2000, b"F64")


def _mutated_text(content: bytes, chance: random.Random) -> bytes:
    """Return a text in which one to four numbers, words or letters are others."""
    for _ in range(chance.choice((1, 1, 2, 4))):
        pattern, others = chance.choice(((_NUMBER, _NUMBERS), (_WORD, _WORDS), (_WORD, ())))
        places = list(pattern.finditer(content))
        if not places:
            return mutate_bytes(content, chance)
        place = chance.choice(places)
        new = chance.choice(others) if others else chance.choice(places)[0]
        content = content[: place.start()] + new + content[place.end() :]
    return mutate_bytes(content, chance) if chance.random() < 0.2 else content


# Formats with checksums, and with parts of their own: a mutated part has a right checksum most times.

_SEALED_SHARE = 0.7


def _mutated_npy(content: bytes, chance: random.Random) -> bytes:
    """Mutate the header, which is a text, or any bytes."""
    end = 10 + int.from_bytes(content[8:10], "little")
    if chance.random() > _SEALED_SHARE:
        return mutate_bytes(content, chance)
    header = _mutated_text(content[10:end], chance)
    return content[:8] + len(header).to_bytes(2, "little") + header + content[end:]


def _mutated_npz(content: bytes, chance: random.Random) -> bytes:
    if chance.random() > _SEALED_SHARE:
        return mutate_bytes(content, chance)
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as archive, zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as other:
        for member in archive.namelist():
            name = member if chance.random() < 0.8 else chance.choice(("../x.npy", "/x.npy", "\x1b[2J.npy", ".npy"))
            other.writestr(name, _mutated_npy(archive.read(member), chance))
    return written.getvalue()


def _mutated_safetensors(content: bytes, chance: random.Random) -> bytes:
    end = 8 + int.from_bytes(content[:8], "little")
    if chance.random() > _SEALED_SHARE:
        return mutate_bytes(content, chance)
    header = _mutated_text(content[8:end], chance)
    return len(header).to_bytes(8, "little") + header + content[end:]


def _mutated_saved(content: bytes, chance: random.Random) -> bytes:
    """Mutate the header or the code, and seal the file with the checksum that belongs to it."""
    if chance.random() > _SEALED_SHARE:
        return mutate_bytes(content, chance)
    import hashlib

    begin = len(b"pjrt executable\n")
    end = begin + 4 + int.from_bytes(content[begin : begin + 4], "little")
    header, code = content[begin + 4 : end], content[end:-32]
    if chance.random() < 0.8:
        header = _mutated_text(header, chance)
    else:
        code = mutate_bytes(code, chance)
    whole = content[:begin] + len(header).to_bytes(4, "little") + header + code
    return whole + hashlib.sha256(whole).digest()


def _mutated_model(content: bytes, chance: random.Random) -> bytes:
    """Mutate one member, and seal the archive with the checksum that belongs to it."""
    if chance.random() > _SEALED_SHARE:
        return mutate_bytes(content, chance)
    mutate = {"pjrt_model.json": _mutated_text, "weights.safetensors": _mutated_safetensors}
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as archive, zipfile.ZipFile(written, "w") as other:
        chosen = chance.choice(("pjrt_model.json", "pjrt_model.json", "weights.safetensors", "program.mlirbc"))
        for member in archive.namelist():
            data = archive.read(member)
            other.writestr(member, mutate.get(member, mutate_bytes)(data, chance) if member == chosen else data)
    return written.getvalue()


def _mutated_recording(content: bytes, chance: random.Random) -> bytes:
    from pjrt.layers.recording import MAGIC

    content = mutate_bytes(content, chance)
    if chance.random() > _SEALED_SHARE:
        return content
    copy, at = bytearray(content), len(MAGIC)
    while at + _OUTLINE.size <= len(copy):
        size, _ = _OUTLINE.unpack_from(copy, at)
        body = copy[at + _OUTLINE.size : at + _OUTLINE.size + size]
        if len(body) < size:
            break
        _OUTLINE.pack_into(copy, at, size, zlib.crc32(body))
        at += _OUTLINE.size + size
    return bytes(copy)


_SEALED: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "array.npy": _mutated_npy,
    "arrays.npz": _mutated_npz,
    "arrays.safetensors": _mutated_safetensors,
    "saved.pjrt": _mutated_saved,
    "model.pjrt": _mutated_model,
    "calls.rec": _mutated_recording,
}


# The samples.


def record() -> None:
    """Write the samples of all formats but those of the corpus, with this package, JAX and jaxlib as they are here."""
    with zipfile.ZipFile(SAMPLES, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in _recorded():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
            print(f"{name}: {len(content)} bytes")


def _recorded() -> Iterator[tuple[str, bytes]]:
    import jax
    from jax import export
    from jax import numpy as jnp

    import pjrt
    from pjrt.artifacts.saved_executable import SavedExecutable

    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    files = io.BytesIO(), io.BytesIO()
    np.save(files[0], array)
    yield "array.npy", files[0].getvalue()
    np.savez_compressed(files[1], x=array, y=np.arange(3))
    yield "arrays.npz", files[1].getvalue()
    header = json.dumps({"x": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "__metadata__": {"by": "us"}})
    yield "arrays.safetensors", len(header).to_bytes(8, "little") + header.encode() + array.tobytes()

    def model(x: Any, y: Any) -> Any:
        return {"sum": jnp.sin(x) @ y, "pair": (x.sum(), y * 2)}

    (size,) = export.symbolic_shape("b")
    shapes = jax.ShapeDtypeStruct((size, 3), np.float32), jax.ShapeDtypeStruct((3, 2), np.float32)
    yield "jax.bin", bytes(export.export(jax.jit(model), platforms=["cpu", "cuda"])(*shapes).serialize())
    with tempfile.TemporaryDirectory() as folder:
        pjrt.save_model(model, array, shapes[1], Path(folder, "model.pjrt"), platforms=["cpu", "cuda"])
        yield "model.pjrt", Path(folder, "model.pjrt").read_bytes()
    lowered = jax.jit(model).lower(*(jax.ShapeDtypeStruct(shape, np.float32) for shape in ((4, 3), (3, 2))))
    yield "text.hlo", lowered.as_text(dialect="hlo").encode()
    with pjrt.client("reference") as client:
        yield "saved.pjrt", SavedExecutable.of(client.compile(ADD), compiled_for=client, program=ADD).to_bytes()
    yield "calls.rec", (ROOT / "tests/layers/data/add.rec").read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "add.mlir").write_text(ADD)
        command = [sys.executable, "-P", "-m", "pjrt"]
        traced = ["trace", "--plugin", "reference", "--ring", "1m", "--text", "16", "--output", "calls.trace", "--"]
        subprocess.run([*command, *traced, *command, "run", "add.mlir", "--input", "zeros"], cwd=folder, check=True)
        content = Path(folder, "calls.trace").read_bytes().rstrip(b"\0")
    for path in (sys.executable, folder):
        content = content.replace(path.encode(), b"x" * len(path))
    yield "calls.trace", content


if __name__ == "__main__":
    record()
