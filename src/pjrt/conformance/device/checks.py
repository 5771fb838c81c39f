"""Checks: the single questions that a device is asked, each with a name and an outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pjrt.api.client import Client
from pjrt.conformance.device.finding import Finding


@dataclass(frozen=True, slots=True)
class Skipped:
    """The outcome of a check that does not apply to the device.

    Attributes:
        reason: why.
    """

    reason: str


Outcome = Finding | Skipped | None
"""The outcome of a check; None where the device passed it."""


class Check(Protocol):
    """A check; its group is ``operations``, ``behaviour``, ``devices`` or ``jax``."""

    @property
    def name(self) -> str:
        """The name of the check in reports and filters."""

    @property
    def group(self) -> str:
        """The group of the check."""

    def run(self, session: Session) -> Outcome:
        """Return the outcome of the check."""


class Session:
    """The device under test: its clients, which are made when a check first needs them.

    Args:
        make: makes a client of the device from options.
        options: the options that the user gave.
        device: the name of the device, as of ``pjrt.client``.
    """

    def __init__(self, make: Callable[..., Client], options: Mapping[str, Any], device: str) -> None:
        self._make = make
        self.device = device
        self.options = dict(options)
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """The client that all checks share."""
        if self._client is None:
            self._client = self.new_client()
        return self._client

    def new_client(self, **options: Any) -> Client:
        """Return a client that the caller closes; the options of the user win."""
        return self._make(**{**options, **self.options})

    def close(self) -> None:
        """Close the shared client, if there is one."""
        if self._client is not None:
            self._client.close()
            self._client = None
