"""The control server: where the workers of a cluster reach their controller, and how connections are protected."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import os
import socket
import ssl
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pjrt
from pjrt import system
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, StatusCode, UnavailableError
from pjrt.clusters.launchers import Launcher
from pjrt.clusters.workers import handshake
from pjrt.distributed import messages
from pjrt.distributed.initialization import own_hosts
from pjrt.distributed.messages import EventLoop, Message
from pjrt.distributed.settings import Protection, split_address
from pjrt.system.processes import loopback_host

_VALID = datetime.timedelta(days=365)
_EARLIER = datetime.timedelta(days=1)  # clocks of other hosts may be behind


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its key, both in PEM."""

    certificate: str
    key: str = field(repr=False)


class Authority:
    """A certificate authority for one cluster. Its own key is never written anywhere.

    Attributes:
        certificate: its certificate, in PEM.

    Raises:
        FailedPreconditionError: the package cryptography is missing.
    """

    def __init__(self) -> None:
        try:
            from cryptography.hazmat.primitives.asymmetric import ec
        except ImportError as error:
            raise FailedPreconditionError(
                f"workers on other machines need TLS certificates, which the package cryptography makes ({error}): "
                "pip install 'pjrt[cluster]'"
            ) from None
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("pjrt cluster")
        self.certificate = self._signed("pjrt cluster", self._key, is_authority=True)

    def issue(self, name: str) -> Certificate:
        """Return a new certificate with a host name, for servers and clients."""
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        text = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return Certificate(self._signed(name, key, is_authority=False), text.decode())

    def _signed(self, name: str, key: Any, *, is_authority: bool) -> str:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization

        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _EARLIER)
            .not_valid_after(now + _VALID)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False)
        )
        if not is_authority:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), False)
        text = builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        return text.decode()


def server_context(certificate: Certificate, folder: Path) -> tuple[ssl.SSLContext, bytes]:
    """Return the TLS context of a server with a certificate, and the certificate in DER.

    Args:
        certificate: the certificate.
        folder: a folder of this user alone: Python's TLS reads keys from files only.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with tempfile.NamedTemporaryFile("w", dir=folder) as file:
        file.write(certificate.key + certificate.certificate)
        file.flush()
        context.load_cert_chain(file.name)
    return context, ssl.PEM_cert_to_DER_cert(certificate.certificate)


def _name(name: str) -> Any:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


_CONTROLLER = "controller"


class Place:
    """The addresses of a controller and its workers, and the protection of their connections.

    On one machine, controllers listen on the loopback interface and workers on local sockets of this user alone. Across
    machines all connections have TLS with certificates of the cluster's own authority, and a controller listens at the
    address that it was given.

    Args:
        hosts: the names or addresses of this host for the workers.
        bind_host: the address on which the controller listens; ``None`` for all of this host.
        port: the controller's port; 0 for any free one.
        folder: a folder of this user alone.
        authority: the cluster's authority; ``None`` on one machine.

    Attributes:
        context: the controller's TLS context; ``None`` in the clear.
        certificate: the controller's certificate, in DER; empty in the clear.
    """

    def __init__(
        self, hosts: list[str], bind_host: str | None, port: int, folder: Path, authority: Authority | None
    ) -> None:
        self.hosts = hosts
        self.bind_host = bind_host
        self.port = port
        self._folder = folder
        self._authority = authority
        self.context: ssl.SSLContext | None = None
        self.certificate = b""
        if authority is not None:
            own = authority.issue(_CONTROLLER)
            self.context, self.certificate = server_context(own, folder)
            for name, text in (("ca", authority.certificate), ("certificate", own.certificate), ("key", own.key)):
                _write_secret(folder / name, text)

    @staticmethod
    def of(launcher: Launcher, controller_address: str, folder: Path) -> Place:
        """Return the place of a cluster.

        Args:
            launcher: starts the workers.
            controller_address: as ``ClusterSettings.controller_address``.
            folder: a folder of this user alone.

        Raises:
            InvalidArgumentError: the address is not one.
            FailedPreconditionError: a package for TLS certificates is missing.
        """
        if launcher.is_local:
            if controller_address:
                raise InvalidArgumentError(
                    "the option controller_address is for workers on other machines; found "
                    f"{controller_address!r} for workers on this one"
                )
            host = loopback_host()
            return Place([host], host, 0, folder, None)
        hosts, port, bind_host = own_hosts(), 0, None
        if controller_address:
            host, _, text = controller_address.rpartition(":")
            if text.isdecimal() and (":" not in host or host.startswith("[")):
                host, port = split_address(controller_address)
            else:
                host = controller_address
            hosts, bind_host = [host], _own_address(host)
        if not port and not launcher.starts_workers:
            raise InvalidArgumentError(
                f"the workers of the launcher {launcher.name!r} must know where the controller is: give "
                f"controller_address='HOST:PORT' with a port, found {controller_address!r}"
            )
        return Place(hosts, bind_host, port, folder, Authority())

    @property
    def is_encrypted(self) -> bool:
        """Whether connections have TLS."""
        return self._authority is not None

    @property
    def protection(self) -> Protection | None:
        """The protection of the job's connections; ``None`` in the clear."""
        if self._authority is None or self.context is None:
            return None
        return Protection(self.context, self._authority.certificate, _CONTROLLER)

    def serving(self, index: int) -> dict[str, str]:
        """Return the fields of a worker's assignment about its server."""
        if self._authority is None:
            return {"address": f"unix:{self._folder}/{index}"}
        own = self._authority.issue(_worker_name(index))
        return {"certificate": own.certificate, "key": own.key, "client_ca": self._authority.certificate}

    def connecting(self, index: int) -> dict[str, str]:
        """Return the options of the device ``remote`` for a worker; empty ones replace those of the environment."""
        files = dict.fromkeys(("ca_file", "certificate_file", "key_file", "token_file"), "")
        if self._authority is None:
            return files
        own = {f"{name}_file": str(self._folder / name) for name in ("ca", "certificate", "key")}
        return {**files, **own, "server_name": _worker_name(index)}


def _own_address(host: str) -> str | None:
    """Return the one address of this machine that a host is; ``None`` if it is none, as behind a router, or several.

    Other machines may know another address by a name that this one has for its loopback interface.
    """
    if host == "localhost":
        return loopback_host()
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)}
    except OSError:
        return None
    if len(found) != 1:
        return None
    (address,) = found
    number = ipaddress.ip_address(address.partition("%")[0])
    if number.is_unspecified or (number.is_loopback and address != host):
        return None
    try:
        with socket.socket(socket.AF_INET6 if number.version == 6 else socket.AF_INET) as probe:
            probe.bind((address, 0))
    except OSError:
        return None
    return address


def _worker_name(index: int) -> str:
    return f"worker-{index}"


def _write_secret(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


_HELLO_SECONDS = 30.0
_BACKLOG = 4096  # all workers come at once

Refusal = tuple[StatusCode, str]

_FACTS = (str, int, type(None))


class ControlServer:
    """The connections of the workers to their controller.

    Args:
        token: the secret that the workers know.
        place: where it listens, and how the connections are protected.
        assign: returns the number of a worker that has proven to know the token, and its assignment as values that
            JSON has; or why it is refused. It gets the worker's own facts.
        notice: is called with the number of a worker and each of its messages; with one of the type ``gone`` when its
            connection has ended.

    Attributes:
        port: the port.

    Raises:
        UnavailableError: the port is in use, or the address is not of this host.
    """

    def __init__(
        self,
        token: str,
        place: Place,
        assign: Callable[[Mapping[str, Any]], tuple[int, dict[str, Any]] | Refusal],
        notice: Callable[[int, Message], object],
    ) -> None:
        self._token = token
        self._context = place.context
        self._certificate = place.certificate
        self._assign = assign
        self._notice = notice
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._loop = EventLoop()
        try:
            self.port = self._loop.run(self._listen(place.bind_host, place.port))
        except OSError as error:
            self._loop.stop()
            raise UnavailableError(
                f"the controller cannot listen on port {place.port} of {place.bind_host or 'this host'} "
                f"({error.strerror or error}); choose another controller_address"
            ) from None

    def end(self, index: int) -> None:
        """Ask a worker to end; nothing happens if it is not connected."""
        self.send(index, {"type": "end"})

    def send(self, index: int, message: Message) -> None:
        """Send a message to a worker; nothing happens if it is not connected."""
        self._loop.call(self._send, index, message)

    def forget(self) -> None:
        """Leave the connections to the parent process, in the child of a fork."""
        own = [end.fileno() for end in self._server.sockets]
        system.close_in_child([*own, *(writer.get_extra_info("socket").fileno() for writer in self._writers.values())])

    def close(self) -> None:
        """Close all connections, which ends the workers. May be called again."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.run(self._close())
        self._loop.stop()

    async def _listen(self, host: str | None, port: int) -> int:
        if host is None and socket.has_dualstack_ipv6():
            listener = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG)
        else:
            family = socket.AF_INET6 if ":" in (host or "") else socket.AF_INET
            listener = socket.create_server((host or "", port), family=family, backlog=_BACKLOG)
        self._server = await asyncio.start_server(
            self._accept, sock=listener, limit=messages.MAX_BYTES, ssl=self._context
        )
        return int(listener.getsockname()[1])

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A task that asyncio makes of a coroutine here would be reported, with a traceback, where it is cancelled.
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: writer.transport.abort())  # it may end before its first step

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                index = await self._shake_hands(reader, writer)
            if index is not None:
                await self._follow(index, reader, writer)
        except (TimeoutError, OSError):
            pass
        finally:
            await messages.hang_up(writer)

    async def _shake_hands(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int | None:
        """Return the number of a worker that knows the token and has its assignment; ``None`` for others."""
        hello = await messages.receive(reader)
        if hello is None or hello.get("type") != "worker":
            return None
        facts, own_nonce = hello.get("facts"), handshake.new_nonce()
        if not isinstance(facts, dict) or not all(isinstance(each, _FACTS) for each in facts.values()):
            return None  # a stranger's
        nonces = str(hello.get("nonce")), own_nonce
        # The worker proves itself first: a proof of ours would let strangers try tokens on machines of their own.
        messages.send(writer, type="challenge", nonce=own_nonce)
        answer = await messages.receive(reader)
        expected = handshake.proof(self._token, "worker", nonces, self._certificate, facts)
        if answer is None or not handshake.is_valid(answer.get("proof"), expected):
            reason = "the controller has not the token of this worker; give both the same one"
            self._refuse(writer, StatusCode.UNAUTHENTICATED, reason)
            return None
        if facts.get("version") != pjrt.__version__:
            self._refuse(
                writer,
                StatusCode.FAILED_PRECONDITION,
                f"the worker on {facts.get('host')} has version {facts.get('version')} of pjrt, and the controller has "
                f"version {pjrt.__version__}; install the same version everywhere",
            )
            return None
        number, assignment = self._assign(facts)
        if isinstance(number, StatusCode):
            self._refuse(writer, number, str(assignment))
            return None
        self._writers[number] = writer
        own_proof = handshake.proof(self._token, "controller", nonces, self._certificate, facts)
        messages.send(writer, type="assignment", proof=own_proof, assignment=assignment)
        return number

    def _refuse(self, writer: asyncio.StreamWriter, code: StatusCode, message: str) -> None:
        messages.send(writer, type="refused", code=code.name, message=message)

    async def _follow(self, index: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (message := await messages.receive(reader)) is not None:
            self._notice(index, message)
        if self._writers.get(index) is writer:
            del self._writers[index]
        self._notice(index, {"type": "gone"})

    def _send(self, index: int, message: Message) -> None:
        writer = self._writers.get(index)
        if writer is not None:
            messages.send(writer, **message)

    async def _close(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
