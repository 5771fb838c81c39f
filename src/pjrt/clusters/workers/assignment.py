"""The assignment of a worker: its place in the job, its device, and how it serves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pjrt.distributed.settings import Settings


@dataclass(frozen=True, slots=True)
class Assignment:
    """The work of a worker.

    Attributes:
        index: its number.
        host: its name in messages.
        job: the settings with which it joins the job.
        device: the device, as ``pjrt.client`` takes it.
        options: the device's options.
        address: where to serve, as ``pjrt.remote.serve`` takes it; empty for the address by which the worker reaches
            the controller.
        certificate: the worker's TLS certificate, in PEM; empty in the clear.
        key: the certificate's key.
        client_ca: the certificate of the authority of the controller's certificate.
        transfer_directory: the directory for large arrays of a controller on the same machine; empty for none.
    """

    index: int
    host: str
    job: Settings = field(repr=False)
    device: str
    options: Mapping[str, Any]
    address: str = ""
    certificate: str = ""
    key: str = field(default="", repr=False)
    client_ca: str = ""
    transfer_directory: str = ""

    def fields(self) -> dict[str, Any]:
        """Return the assignment as values that JSON has."""
        return asdict(self)

    @staticmethod
    def read(fields: Mapping[str, Any]) -> Assignment:
        """Return the assignment that ``fields`` describes."""
        job = dict(fields["job"])
        job["addresses"] = [(host, port) for host, port in job["addresses"]]
        return Assignment(**{**fields, "job": Settings(**job)})
