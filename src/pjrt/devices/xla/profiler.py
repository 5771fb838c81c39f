"""Profiling sessions of XLA's runtime."""

from __future__ import annotations

from typing import Any

from pjrt.api.errors import FailedPreconditionError, unimplemented
from pjrt.api.plugin import Profiler
from pjrt.stablehlo.jaxlib import load


class XlaProfiler(Profiler):
    """One session of jaxlib's profiler, which records all clients of the process."""

    def __init__(self, options: bytes = b"") -> None:
        if options:
            raise unimplemented("cpu", "profiler with options", "pass none: jaxlib takes no serialized ProfileOptions")
        self._session: Any = None
        self._collected: bytes | None = None

    def start(self) -> None:
        if self._session is not None:
            raise FailedPreconditionError("the profiling session was started already; make another one")
        self._session = load("_profiler", "profile XLA's CPU runtime").ProfilerSession()

    def stop(self) -> None:
        if self._session is None:
            raise FailedPreconditionError("the profiling session was not started; start it first")
        if self._collected is None:
            self._collected = self._session.stop()

    def collect(self) -> bytes:
        if self._collected is None:
            raise FailedPreconditionError("the profiling session was not stopped; stop it before collecting")
        return self._collected
