"""A persistent compilation cache: what was compiled once, by any process of this machine, is not compiled again.

A folder with one file an entry, named by its key. Writers put whole files in place, so readers need no lock; an entry
that is damaged or cannot be loaded is compiled anew and replaced.
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

from pjrt.api.client import Client
from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, PjrtError
from pjrt.api.executable import Executable
from pjrt.api.loaded_executable import LoadedExecutable
from pjrt.api.program import Program, ProgramFormat
from pjrt.api.topology import TopologyDescription
from pjrt.artifacts.file_format import FORMAT_VERSION
from pjrt.artifacts.saved_executable import SavedExecutable
from pjrt.artifacts.whole_file import PARTIAL, write_whole
from pjrt.system import processor_features, writable_by_everyone

_SUFFIX = ".executable"
_PARTIAL_LIFETIME_SECONDS = 3600.0

# Compilers read these besides their options.
_ENVIRONMENT = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


class CompilationCache:
    """Executables on disk by what they were compiled from, for any client or topology that can serialize them.

    The key is the program (of MLIR text only what it means, not how it is spelled), the options, the plugin's library,
    the platform with its version and attributes, the devices, the host's processor and the environment variables that
    compilers read. A plugin that cannot serialize executables works as without a cache.

    The folder may be shared by any number of processes. Loading an entry runs what is in it: let nobody write there
    whom you would not let run code. A folder that everyone may write to is refused, an entry that everyone may write to
    is compiled anew.

    Attributes:
        folder: where the entries are.
        max_bytes: how much they may take; the least recently used go first. ``None`` for no limit.
        hits: how many programs were found here, by this object.
        misses: how many were not, and were compiled.
    """

    def __init__(self, folder: str | os.PathLike[str], *, max_bytes: int | None = 1 << 30) -> None:
        """Opens a cache; the folder is made if it is not there.

        Raises:
            InvalidArgumentError: the folder cannot be made, or the limit is no number of bytes.
            FailedPreconditionError: everyone may put something into the folder, or another folder in its place.
        """
        if max_bytes is not None and max_bytes < 0:
            raise InvalidArgumentError(f"max_bytes must be a number of bytes or None, found {max_bytes}")
        self.folder = Path(folder).expanduser()
        self.max_bytes = max_bytes
        self.hits = 0
        self.misses = 0
        try:
            for folder in (*reversed(self.folder.parents), self.folder):
                if not folder.is_dir():
                    folder.mkdir(mode=0o775, exist_ok=True)  # others may not write, whatever this process lets them do
            danger = writable_by_everyone(self.folder)
        except OSError as error:
            raise InvalidArgumentError(f"{self.folder}: cannot be a cache's folder: {error.strerror}") from error
        if danger:
            raise FailedPreconditionError(
                f"{self.folder} is not safe as a cache, whose entries are run when they are loaded: {danger}; "
                "take that right away (chmod o-w), or give a folder of your own"
            )

    @overload
    def compile(
        self, target: Client, program: Program | str | bytes, options: CompileOptions | None = None
    ) -> LoadedExecutable: ...

    @overload
    def compile(
        self, target: TopologyDescription, program: Program | str | bytes, options: CompileOptions | None = None
    ) -> Executable: ...

    def compile(
        self,
        target: Client | TopologyDescription,
        program: Program | str | bytes,
        options: CompileOptions | None = None,
    ) -> Executable:
        """As ``target.compile(program, options)``, or what that gave before.

        Args:
            target: the client to run on, or the topology to compile for.
            program: the program.
            options: how to compile it.

        Returns:
            For a client a ``LoadedExecutable``; for a topology an ``Executable``, which, when it was found here, is a
            ``SavedExecutable``.
        """
        program = Program.of(program)
        path = self.folder / (self.key(target, program, options) + _SUFFIX)
        found = _revive(path, target, options)
        if found is not None:
            self.hits += 1
            return found
        self.misses += 1
        compiled: Executable = target.compile(program, options)
        self._keep(path, compiled, target)
        return compiled

    def key(
        self,
        target: Client | TopologyDescription,
        program: Program | str | bytes,
        options: CompileOptions | None = None,
    ) -> str:
        """The name that an executable goes by: 64 hexadecimal digits, the same in every process."""
        from pjrt.stablehlo import with_partitioning

        program = Program.of(program)
        facts = {
            "format": FORMAT_VERSION,
            "program": [str(program.format), hashlib.sha256(_canonical(program)).hexdigest()],
            "options": with_partitioning(program, options).to_proto().hex(),
            "target": _identity(target),
            "host": _host(),
            "environment": {name: os.environ.get(name, "") for name in _ENVIRONMENT},
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()

    @property
    def size_in_bytes(self) -> int:
        """The bytes that the entries take together."""
        return sum(size for _, size, _ in self._entries())

    def __len__(self) -> int:
        """The number of entries."""
        return sum(1 for _ in self._entries())

    def clear(self) -> None:
        """Removes all entries."""
        for _, _, path in self._entries():
            path.unlink(missing_ok=True)

    def __repr__(self) -> str:
        return f"<CompilationCache {str(self.folder)!r}, {self.hits} hits, {self.misses} misses>"

    def _keep(self, path: Path, compiled: Executable, target: Client | TopologyDescription) -> None:
        """Writes an entry. Whoever asked has the executable anyway, so a full disk is a warning."""
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
        """Removes the least recently used entries until the rest is within the limit, and what writers that died left
        behind.
        """
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
        """When each entry was last used, its size and path; another process may remove it at any time."""
        for path in self.folder.glob(f"*{_SUFFIX}"):
            status = _plain_status(path)
            if status is not None:
                yield status.st_mtime_ns, status.st_size, path


def _revive(path: Path, target: Client | TopologyDescription, options: CompileOptions | None) -> Executable | None:
    """The executable of an entry; ``None`` if there is none, or none that can be used."""
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
    """What of a client or topology an executable may depend on."""
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
    """Which file a plugin is. The versions that plugins state are not always new with each release."""
    status = _status(Path(path)) if path else None
    return [path] if status is None else [path, status.st_size, status.st_mtime_ns]


def _canonical(program: Program) -> bytes:
    """MLIR text without its comments, locations and blanks; everything else, and what cannot be read here, as it is."""
    from pjrt import stablehlo

    try:
        if program.format == ProgramFormat.MLIR and stablehlo.encoding_of(program) is stablehlo.Encoding.TEXT:
            return stablehlo.to_text(program).encode()
    except PjrtError:
        pass  # the compiler will say what is wrong with it, or know a dialect that is unknown here
    return program.code


@functools.cache
def _host() -> list[str]:
    """The processor of this machine and what it can do, for the parts of executables that run on the host."""
    return [platform.machine(), " ".join(processor_features() or (platform.processor(),))]


def _plain_status(path: Path) -> os.stat_result | None:
    """The status of a file; ``None`` for what is none, such as a folder, which is left alone."""
    status = _status(path)
    return status if status is not None and stat.S_ISREG(status.st_mode) else None


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None
