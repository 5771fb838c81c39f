"""The assignment of an inner node: the workers and inner nodes below it, and how it serves their devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Child:
    """A worker below an inner node, or another inner node.

    Attributes:
        address: where it serves.
        server_name: the name in its certificate; empty in the clear.
        workers: the host and the number of each worker there.
        is_inner_node: whether it is another inner node.
    """

    address: str
    server_name: str
    workers: list[tuple[str, int]]
    is_inner_node: bool


@dataclass(frozen=True, slots=True)
class InnerNodeAssignment:
    """The work of an inner node.

    Attributes:
        index: its number.
        children: the workers and inner nodes below it.
        heartbeat_timeout: the seconds without a sign of life after which one of them is lost.
        address: as that of ``Assignment``.
        certificate: as that of ``Assignment``; the inner node also shows it to its children.
        key: the certificate's key.
        client_ca: the certificate of the cluster's authority.
    """

    index: int
    children: list[Child]
    heartbeat_timeout: float
    address: str = ""
    certificate: str = ""
    key: str = field(default="", repr=False)
    client_ca: str = ""

    def fields(self) -> dict[str, Any]:
        """Return the assignment as values that JSON has."""
        return asdict(self)

    @staticmethod
    def read(fields: Mapping[str, Any]) -> InnerNodeAssignment:
        """Return the assignment that ``fields`` describes."""
        children = [
            Child(**{**child, "workers": [(host, index) for host, index in child["workers"]]})
            for child in fields["children"]
        ]
        return InnerNodeAssignment(**{**fields, "children": children})
