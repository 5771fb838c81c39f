"""The cache of compiled modules: a folder that any number of processes share."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from pathlib import Path

from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError
from pjrt.devices.iree import packages
from pjrt.system import make_protected_folder, processor_features, writable_by_everyone, write_whole

_DIGEST_BYTES = 32
"""The bytes of the digest at the beginning of each file, by which a damaged one is noticed."""


class ModuleCache:
    """Compiled modules in a folder, by their program, the compiler's flags and version, and this machine's processor.

    Args:
        folder: the folder; it is made if it is missing. Loading a module runs its code, so only trusted users may write
            there.

    Raises:
        InvalidArgumentError: the folder cannot be made.
        FailedPreconditionError: every user of the machine may write to the folder, or replace it.
    """

    def __init__(self, folder: Path) -> None:
        try:
            make_protected_folder(folder)
            danger = writable_by_everyone(folder)
        except OSError as error:
            raise InvalidArgumentError(f"{folder} cannot be the folder of a cache: {error.strerror}") from error
        if danger:
            raise FailedPreconditionError(
                f"{folder} is not safe as a cache, whose modules are code: {danger}; remove that permission "
                "(chmod o-w), or give a folder of your own"
            )
        self._folder = folder

    def get(self, code: bytes, flags: Sequence[str]) -> bytes | None:
        """Return the module of a program; ``None`` if it is not there, damaged, or everyone may write to it."""
        path = self._path(code, flags)
        try:
            if writable_by_everyone(path):
                return None
            entry = path.read_bytes()
        except OSError:
            return None
        digest, module = entry[:_DIGEST_BYTES], entry[_DIGEST_BYTES:]
        return module if hashlib.sha256(module).digest() == digest else None

    def put(self, code: bytes, flags: Sequence[str], module: bytes) -> None:
        """Add the module of a program. Other processes see it complete or not at all."""
        with contextlib.suppress(OSError):  # a full disk: the module is compiled again
            write_whole(self._path(code, flags), hashlib.sha256(module).digest() + module)

    def _path(self, code: bytes, flags: Sequence[str]) -> Path:
        facts = (packages.version(), *flags, *processor_features())
        digest = hashlib.sha256("\0".join(facts).encode() + b"\0" + code)
        return self._folder / f"{digest.hexdigest()}.vmfb"
