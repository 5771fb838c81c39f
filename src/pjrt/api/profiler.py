"""Profiling sessions (``PLUGIN_Profiler``, the Profiler extension)."""

from __future__ import annotations

import abc
from types import TracebackType


class Profiler(abc.ABC):
    """One profiling session of a plugin; a context manager that starts and stops it."""

    @abc.abstractmethod
    def start(self) -> None:
        """Start recording (``PLUGIN_Profiler_Start``)."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Stop recording (``PLUGIN_Profiler_Stop``)."""

    @abc.abstractmethod
    def collect(self) -> bytes:
        """Return the recording as a serialized ``tensorflow.profiler.XSpace`` (``PLUGIN_Profiler_CollectData``)."""

    def __enter__(self) -> Profiler:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
