"""A persistent compilation cache: a program that any process of this machine has compiled is not compiled again.

It is a folder with one file for each entry, named by its key. Writers put complete files in place, so readers need no
lock; an entry that is damaged or cannot be loaded is compiled again and replaced.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import stat
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, overload

from pjrt import stablehlo
from pjrt.api.client import Client
from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, PjrtError
from pjrt.api.executable import Executable
from pjrt.api.loaded_executable import LoadedExecutable
from pjrt.api.program import AnyProgram, Program, ProgramFormat
from pjrt.api.shape_spec import Shapes
from pjrt.api.topology import TopologyDescription
from pjrt.artifacts.file_format import FORMAT_VERSION
from pjrt.artifacts.saved_executable import SavedExecutable
from pjrt.system import PARTIAL, make_protected_folder, processor_features, writable_by_everyone, write_whole

_SUFFIX = ".executable"
_PARTIAL_LIFETIME_SECONDS = 3600.0

# The environment variables that compilers read.
_ENVIRONMENT = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


class CompilationCache:
    """Executables on disk, for any client or topology that can serialize them.

    The key is the program (MLIR text without comments, locations and blanks), the options, the plugin's library,
    the platform with its version and attributes, the devices, the host's processor and the environment variables that
    compilers read. A plugin that cannot serialize executables works as without a cache.

    Any number of processes may share the folder. Loading an entry runs its code: only trusted users may write there. A
    folder that everyone may write to is an error, and an entry that everyone may write to is compiled again.

    Attributes:
        folder: where the entries are.
        max_bytes: the most bytes of all entries; the least recently used are evicted. ``None`` for no limit.
        hits: how many programs this object found.
        misses: how many it compiled.
    """

    def __init__(self, folder: str | os.PathLike[str], *, max_bytes: int | None = 1 << 30) -> None:
        """Open a cache; a missing folder is made.

        Raises:
            InvalidArgumentError: the folder cannot be made, or the limit is negative.
            FailedPreconditionError: every user of the machine may write to the folder, or replace it.
        """
        if max_bytes is not None and max_bytes < 0:
            raise InvalidArgumentError(f"max_bytes must be a number of bytes or None, found {max_bytes}")
        self.folder = Path(folder).expanduser()
        self.max_bytes = max_bytes
        self.hits = 0
        self.misses = 0
        try:
            make_protected_folder(self.folder)
            danger = writable_by_everyone(self.folder)
        except OSError as error:
            raise InvalidArgumentError(f"{self.folder}: cannot be a cache's folder: {error.strerror}") from error
        if danger:
            raise FailedPreconditionError(
                f"{self.folder} is not safe as a cache, whose entries are code: {danger}; "
                "remove that permission (chmod o-w), or give a folder of your own"
            )

    @overload
    def compile(
        self,
        target: Client,
        program: AnyProgram,
        options: CompileOptions | None = None,
        *,
        shapes: Shapes | None = None,
    ) -> LoadedExecutable: ...

    @overload
    def compile(
        self,
        target: TopologyDescription,
        program: AnyProgram,
        options: CompileOptions | None = None,
        *,
        shapes: Shapes | None = None,
    ) -> Executable: ...

    def compile(
        self,
        target: Client | TopologyDescription,
        program: AnyProgram,
        options: CompileOptions | None = None,
        *,
        shapes: Shapes | None = None,
    ) -> Executable:
        """Return the executable of ``target.compile(program, options)``, compiled now or before.

        Args:
            target: the client to run on, or the topology to compile for.
            program: the program.
            options: the compile options.
            shapes: as for ``Client.compile``.

        Returns:
            For a client a ``LoadedExecutable``; for a topology an ``Executable``, which, when it was found here, is a
            ``SavedExecutable``.
        """
        program = Program.of(program)
        if shapes is not None:
            program = stablehlo.refine(program, shapes)
        path = self.folder / (self.key(target, program, options) + _SUFFIX)
        cached = _revive(path, target, options)
        if cached is not None:
            self.hits += 1
            return cached
        self.misses += 1
        compiled: Executable = target.compile(program, options)
        self._keep(path, compiled, target)
        return compiled

    def key(
        self,
        target: Client | TopologyDescription,
        program: AnyProgram,
        options: CompileOptions | None = None,
    ) -> str:
        """Return the key of an executable: 64 hexadecimal digits, the same in every process."""
        program = Program.of(program)
        facts = {
            "format": FORMAT_VERSION,
            "program": [str(program.format), hashlib.sha256(_canonical(program)).hexdigest()],
            "options": stablehlo.with_partitioning(program, options).to_proto().hex(),
            "target": _identity(target),
            "host": _host(),
            "environment": {name: os.environ.get(name, "") for name in _ENVIRONMENT},
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()

    @property
    def size_in_bytes(self) -> int:
        """The size of all entries together."""
        return sum(size for _, size, _ in self._entries())

    def __len__(self) -> int:
        """Return the number of entries."""
        return sum(1 for _ in self._entries())

    def clear(self) -> None:
        """Remove all entries."""
        for _, _, path in self._entries():
            path.unlink(missing_ok=True)

    def __repr__(self) -> str:
        return f"<CompilationCache {str(self.folder)!r}, {self.hits} hits, {self.misses} misses>"

    def _keep(self, path: Path, compiled: Executable, target: Client | TopologyDescription) -> None:
        """Write an entry. The caller has the executable anyway, so a full disk is only a warning."""
        try:
            data = SavedExecutable.of(compiled, compiled_for=target).to_bytes()
        except PjrtError:
            return
        if self.max_bytes is not None and len(data) > self.max_bytes:
            return
        try:
            write_whole(path, data)
            self._evict(keep=path)
        except OSError as error:
            warnings.warn(f"{self.folder}: the compilation cache cannot be written: {error}", stacklevel=3)

    def _evict(self, keep: Path) -> None:
        """Remove the least recently used entries down to the limit, and partial files of writers that died."""
        for partial in self.folder.glob(f".*{PARTIAL}"):
            status = _plain_status(partial)
            if status is not None and time.time() - status.st_mtime > _PARTIAL_LIFETIME_SECONDS:
                partial.unlink(missing_ok=True)
        if self.max_bytes is None:
            return
        entries = sorted(self._entries())
        total = sum(size for _, size, _ in entries)
        for _, size, path in entries:
            if total <= self.max_bytes:
                break
            if path != keep:
                path.unlink(missing_ok=True)
                total -= size

    def _entries(self) -> Iterator[tuple[int, int, Path]]:
        """Yield the time of last use, the size and the path of each entry; other processes may remove entries."""
        for path in self.folder.glob(f"*{_SUFFIX}"):
            status = _plain_status(path)
            if status is not None:
                yield status.st_mtime_ns, status.st_size, path


def _revive(path: Path, target: Client | TopologyDescription, options: CompileOptions | None) -> Executable | None:
    """Return the executable of an entry; ``None`` if the entry is missing or cannot be used."""
    try:
        if writable_by_everyone(path):
            return None
        saved = SavedExecutable.read(path)
        revived = saved.load(target, options) if isinstance(target, Client) else saved
    except (OSError, PjrtError):
        return None
    # Entries are evicted by the time of their last use. The folder may be read-only, or the entry gone already.
    with contextlib.suppress(OSError):
        os.utime(path)
    return revived


def _identity(target: Client | TopologyDescription) -> dict[str, Any]:
    """Return the facts of a client or topology that an executable may depend on."""
    if isinstance(target, Client):
        devices: list[Any] = [[device.id, device.kind, device.is_addressable] for device in target.devices]
        attributes = {**target.attributes, "process_index": target.process_index}
    else:
        devices = [[device.id, device.kind, dict(device.attributes)] for device in target.device_descriptions]
        attributes = dict(target.attributes)
    return {
        "of": "client" if isinstance(target, Client) else "topology",
        "platform": [target.platform_name, target.platform_version],
        "attributes": attributes,
        "devices": devices,
        "library": _library(target.library),
    }


def _library(path: str) -> list[Any]:
    """Return the stamp of a plugin's file: the versions that plugins report do not always change with a release."""
    status = _status(Path(path)) if path else None
    return [path] if status is None else [path, status.st_size, status.st_mtime_ns]


def _canonical(program: Program) -> bytes:
    """Return MLIR text without comments, locations and blanks; other formats, and text that cannot be parsed, as is."""
    try:
        if program.format == ProgramFormat.MLIR and stablehlo.encoding_of(program) is stablehlo.Encoding.TEXT:
            return stablehlo.to_text(program).encode()
    except PjrtError:
        pass  # the compiler will report the error, or it knows a dialect that is unknown here
    return program.code


@functools.cache
def _host() -> list[str]:
    """Return the processor of this machine and its features, for the parts of executables that run on the host."""
    return [platform.machine(), " ".join(processor_features() or (platform.processor(),))]


def _plain_status(path: Path) -> os.stat_result | None:
    """Return the status of a regular file; ``None`` for anything else, such as a folder, which is left alone."""
    status = _status(path)
    return status if status is not None and stat.S_ISREG(status.st_mode) else None


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None
