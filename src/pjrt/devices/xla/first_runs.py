"""The first runs of programs on devices of several processes, which all of these processes make in the same order.

XLA does not notice that the processes run different programs: it adds up whatever comes. So the process that is first
with its n-th new program on some devices tells the others which one it is. That costs a message for each new program,
and nothing for the runs that follow.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Sequence

from pjrt.api.errors import AlreadyExistsError, FailedPreconditionError, PjrtError
from pjrt.distributed import CoordinationStore


class FirstRuns:
    """The programs that a client has run on devices of several processes.

    Args:
        store: the store of the job.
        directory: the directory in the store.
        process_index: this process.
    """

    def __init__(self, store: CoordinationStore, directory: str, process_index: int) -> None:
        self._store = store
        self._directory = directory
        self._process_index = process_index
        self._lock = threading.Lock()
        # The programs by devices; None where a program of unknown code has run, which cannot be counted.
        self._seen: dict[tuple[int, ...], set[str] | None] = {}

    def check(self, device_ids: Sequence[int], name: str, fingerprint: str) -> None:
        """Compare a program with the one that the other processes run; a program that was compared is not again.

        Args:
            device_ids: the devices of the program.
            name: its name, for messages.
            fingerprint: that of its code; empty if it is unknown.

        Raises:
            FailedPreconditionError: another process runs another program.
        """
        devices = tuple(device_ids)
        with self._lock:
            seen = self._seen.setdefault(devices, set())
            if seen is None or fingerprint in seen:
                return
            seen.add(fingerprint)
            number = len(seen)
            if not fingerprint:
                self._seen[devices] = None
        other = self._first(devices, number, json.dumps([self._process_index, name, fingerprint]).encode())
        if other is None:
            return
        process_index, other_name, other_fingerprint = json.loads(other)
        if not other_fingerprint:
            self._seen[devices] = None
        elif fingerprint and other_fingerprint != fingerprint:
            raise FailedPreconditionError(
                "the processes do not run the same program in the same order: this process runs the program "
                f"{name!r} with the fingerprint {fingerprint}, process {process_index} runs the program "
                f"{other_name!r} with the fingerprint {other_fingerprint}"
            )

    def _first(self, devices: tuple[int, ...], number: int, own: bytes) -> bytes | None:
        """Return what the first process with a number has put; ``None`` if it is this process, or the job has ended."""
        group = hashlib.sha256(repr(devices).encode()).hexdigest()[:16]
        key = f"{self._directory}/{group}/{number}"
        try:
            self._store.put(key, own, overwrite=False)
        except AlreadyExistsError:
            with contextlib.suppress(PjrtError):
                return self._store.try_get(key)
        except PjrtError:
            pass  # a process is lost; the program finds out by itself
        return None
