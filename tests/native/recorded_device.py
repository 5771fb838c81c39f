"""A device with a profiler that notes what it was asked."""

from __future__ import annotations

from typing import Any

import pjrt
from pjrt.api.plugin import Profiler


class Recording(Profiler):
    """A session; the options ``deep`` are refused."""

    def __init__(self, options: bytes) -> None:
        if options == b"deep":
            raise ValueError("no counters on this chip")
        self.said = [options]

    def start(self) -> None:
        self.said.append(b"start")

    def stop(self) -> None:
        self.said.append(b"stop")

    def collect(self) -> bytes:
        if len(self.said) < 3:
            raise pjrt.FailedPreconditionError("the session was not stopped")
        return b" ".join(self.said) + b"."


def make(**options: Any) -> pjrt.Client:
    """Return a client."""
    return pjrt.client("reference", **options)


recorded = pjrt.export(make, name="recorded", profiler=Recording)
"""The plugin."""
