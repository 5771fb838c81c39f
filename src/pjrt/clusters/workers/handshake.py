"""The beginning of a worker: its bootstrap, the handshake with its controller, and its assignment.

The two sides of the connection are in ``worker`` and ``control_server``.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pjrt.api.errors import InvalidArgumentError
from pjrt.distributed.settings import Settings
from pjrt.remote.transport.addresses import DEFAULT_KEEPALIVE
from pjrt.system import TemporaryFolder


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """The first facts of a worker; the others come from the controller.

    Attributes:
        addresses: the controller's addresses, ``HOST:PORT``, of which the first one that answers is taken.
        token: the secret.
        index: the worker's number; ``None`` for any that is free.
        encrypted: whether the connection to the controller has TLS.
        timeout: the seconds in which the controller must answer.
        parent: the process with which the worker ends, on the same machine; 0 for none.
        environment: environment variables to set.
        working_directory: the directory to change to; empty for none.
    """

    addresses: Sequence[str]
    token: str = field(repr=False)
    index: int | None = None
    encrypted: bool = True
    timeout: float = 300.0
    parent: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    working_directory: str = ""

    def to_json(self) -> bytes:
        """Return the bootstrap as one line of JSON."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def of_json(line: bytes) -> Bootstrap:
        """Return the bootstrap that a line of JSON is.

        Raises:
            InvalidArgumentError: the line is no bootstrap.
        """
        try:
            return Bootstrap(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise InvalidArgumentError(
                "expected the bootstrap of a worker as one line of JSON on the standard input, which a launcher of "
                f"pjrt.cluster() writes ({type(error).__name__})"
            ) from None


# Each side proves to the other that it knows the cluster's token, which itself is never sent. The proofs also cover the
# controller's TLS certificate as each side has it: somebody in the middle has another certificate, so that the proofs
# of the two sides differ. That is why the certificate needs no authority that the worker would have to know.

_NONCE_BYTES = 32


def new_nonce() -> str:
    """Return a random text, so that no proof is valid twice."""
    return secrets.token_hex(_NONCE_BYTES)


def proof(token: str, side: str, nonces: tuple[str, str], certificate: bytes, facts: dict[str, Any]) -> str:
    """Return the proof that one side knows the token.

    Args:
        token: the cluster's token.
        side: ``controller`` or ``worker``, so that no proof can be sent back.
        nonces: the worker's and the controller's.
        certificate: the controller's certificate, in DER; empty in the clear.
        facts: what the worker has reported about itself.
    """
    certificate_digest = hashlib.sha256(certificate).hexdigest()
    message = json.dumps(["pjrt cluster 1", side, *nonces, certificate_digest, facts], sort_keys=True)
    return hmac.new(token.encode(), message.encode(), hashlib.sha256).hexdigest()


def is_valid(candidate: object, expected: str) -> bool:
    """Whether a proof is the expected one; the time does not depend on it."""
    return isinstance(candidate, str) and hmac.compare_digest(candidate.encode(errors="replace"), expected.encode())


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
        heartbeat_timeout: the seconds of silence after which the controller's connection is lost.
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
    heartbeat_timeout: float = DEFAULT_KEEPALIVE

    def fields(self) -> dict[str, Any]:
        """Return the assignment as values that JSON has."""
        return asdict(self)

    @staticmethod
    def read(fields: Mapping[str, Any]) -> Assignment:
        """Return the assignment that ``fields`` describes."""
        job = dict(fields["job"])
        job["addresses"] = [(host, port) for host, port in job["addresses"]]
        return Assignment(**{**fields, "job": Settings(**job)})


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


@contextlib.contextmanager
def server_files(certificate: str, key: str, client_ca: str) -> Iterator[dict[str, Any]]:
    """Yield the files of a server's security, by the names that ``pjrt.remote.serve`` has, in a folder of this user.

    Args:
        certificate: the certificate, in PEM; empty in the clear.
        key: its key.
        client_ca: the certificate of the authority of the clients.
    """
    contents = {"tls_certificate": certificate, "tls_key": key, "client_ca": client_ca}
    with TemporaryFolder("worker") as folder:
        files = {title: folder / title for title, content in contents.items() if content}
        for title, path in files.items():
            path.touch(mode=0o600)
            path.write_text(contents[title])
        yield files


def bracketed(host: str) -> str:
    """Return a host as an address has it: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host else host
