"""The cache of compiled modules: a folder that any number of processes share."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError
from pjrt.devices.iree import packages
from pjrt.system import processor_features, writable_by_everyone

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
            folder.mkdir(mode=0o775, parents=True, exist_ok=True)
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
        """Return the module of a program; ``None`` if it is not there, or damaged."""
        try:
            entry = self._path(code, flags).read_bytes()
        except OSError:
            return None
        digest, module = entry[:_DIGEST_BYTES], entry[_DIGEST_BYTES:]
        return module if hashlib.sha256(module).digest() == digest else None

    def put(self, code: bytes, flags: Sequence[str], module: bytes) -> None:
        """Add the module of a program. Other processes see it complete or not at all."""
        path = self._path(code, flags)
        partial = path.with_suffix(f".{secrets.token_hex(8)}.partial")
        try:
            partial.write_bytes(hashlib.sha256(module).digest() + module)
            os.replace(partial, path)
        except OSError:  # a full disk: the module is compiled again
            partial.unlink(missing_ok=True)

    def _path(self, code: bytes, flags: Sequence[str]) -> Path:
        facts = (packages.version(), *flags, *processor_features())
        digest = hashlib.sha256("\0".join(facts).encode() + b"\0" + code)
        return self._folder / f"{digest.hexdigest()}.vmfb"
