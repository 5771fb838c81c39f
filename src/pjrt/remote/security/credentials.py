"""Certificates of TLS and access tokens, by which a server and its clients know each other.

An access token is a secret in a file, which a client shows to a server; it is never an argument of a command. Each line
of the file is a name and a token, or a token alone. Empty lines and lines that begin with ``#`` are skipped.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pjrt import system
from pjrt.api.errors import InvalidArgumentError, NotFoundError, PermissionDeniedError, PjrtError, UnauthenticatedError
from pjrt.remote.connection_log import log_event
from pjrt.remote.security.strangers import Strangers
from pjrt.remote.transport.addresses import Address

_SHORTEST_TOKEN, _LONGEST_TOKEN = 16, 1024
_FEWEST_DIFFERENT = 8
_MAKE_A_TOKEN = "make one with: openssl rand -hex 32"


class AccessTokens:
    """The tokens that a server accepts; the file is read again when it changes.

    While a changed file cannot be read, no token is accepted: a token that was removed must not stay valid because of
    a mistake in another line. The error is logged.

    Args:
        path: the file.

    Raises:
        PjrtError: the file cannot be used, see ``read_tokens``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._stamp = system.file_stamp(path)
        self._digests = _digests(read_tokens(path))

    def name_of(self, token: str) -> str | None:
        """Return the name of a token; ``None`` if the token is not valid.

        The time does not depend on the letters of the valid tokens, and not on which of them it is.
        """
        digest = _digest(token)
        match = None
        for name, valid in self._current().items():
            if hmac.compare_digest(digest, valid):
                match = name
        return match

    def _current(self) -> dict[str, bytes]:
        stamp = system.file_stamp(self._path)
        with self._lock:
            if stamp != self._stamp:
                self._stamp = stamp
                try:
                    self._digests = _digests(read_tokens(self._path))
                    log_event(logging.INFO, "access tokens read again", tokens=len(self._digests))
                except PjrtError as error:
                    self._digests = {}
                    log_event(logging.ERROR, "no access token is valid", reason=error.message)
            return self._digests


def read_tokens(path: Path) -> dict[str, str]:
    """Return the tokens of a file by their names; a token without a name has that of its line, such as ``line 1``.

    Raises:
        NotFoundError: the file cannot be read.
        PermissionDeniedError: every user of this machine may read or replace the file.
        InvalidArgumentError: a line is not a token, a token or name is there twice, or the file has no token.
    """
    check_secret(path, "the file of access tokens")
    tokens: dict[str, str] = {}
    for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) > 2:
            raise InvalidArgumentError(f"{path}:{number}: expected a name and a token, found {len(words)} words")
        name, token = words if len(words) == 2 else (f"line {number}", words[0])
        _check_token(token, f"{path}:{number}")
        if name in tokens or token in tokens.values():
            raise InvalidArgumentError(f"{path}:{number}: the name or the token is there already")
        tokens[name] = token
    if not tokens:
        raise InvalidArgumentError(f"{path} has no token; write one with: openssl rand -hex 32 > {path}")
    return tokens


def read_token(path: Path) -> str:
    """Return the token of a client's file, which has exactly one.

    Raises:
        PjrtError: the file cannot be used, see ``read_tokens``.
        InvalidArgumentError: the file has several tokens.
    """
    tokens = list(read_tokens(path).values())
    if len(tokens) != 1:
        raise InvalidArgumentError(f"expected one access token in {path}, found {len(tokens)}")
    return tokens[0]


def check_secret(path: Path, title: str) -> None:
    """Raise an error unless a file with a secret is protected from the other users of this machine.

    Raises:
        NotFoundError: the file cannot be read.
        PermissionDeniedError: every user of this machine may read or replace the file.
    """
    try:
        with path.open("rb"):
            danger = system.readable_by_everyone(path)
            if not danger and system.writable_by_everyone(path):
                danger = system.writable_by_everyone(path)
    except OSError as error:
        raise NotFoundError(f"cannot read {title} {path}: {error.strerror}") from error
    if danger:
        raise PermissionDeniedError(f"{title} {path} is not secret: {danger}; protect it: chmod 600 {path}")


def _check_token(token: str, place: str) -> None:
    """Raise an error, which does not show the token, if it can be guessed or cannot be in a header.

    A server answers few guesses of one address, but there may be thousands of addresses.
    """
    if not _SHORTEST_TOKEN <= len(token) <= _LONGEST_TOKEN:
        raise InvalidArgumentError(
            f"{place}: expected a token of {_SHORTEST_TOKEN} to {_LONGEST_TOKEN} letters, found {len(token)}; "
            f"{_MAKE_A_TOKEN}"
        )
    if not all("!" <= letter <= "~" for letter in token):
        raise InvalidArgumentError(f"{place}: expected a token of printable ASCII letters")
    if len(set(token)) < _FEWEST_DIFFERENT:
        raise InvalidArgumentError(
            f"{place}: expected a token with at least {_FEWEST_DIFFERENT} different letters, found {len(set(token))}; "
            f"{_MAKE_A_TOKEN}"
        )


def _digests(tokens: dict[str, str]) -> dict[str, bytes]:
    return {name: _digest(token) for name, token in tokens.items()}


def _digest(token: str) -> bytes:
    """Return a digest of a token: digests have one length, and a comparison shows nothing about the token."""
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


@dataclass(frozen=True, slots=True)
class ServerSecurity:
    """The files of a server's security; all are read again when they change.

    Args:
        tls_certificate: the server's certificate and those of its issuers, in PEM.
        tls_key: the private key of the certificate, in PEM, without a password.
        client_ca: the certificates of the authorities whose clients may connect, in PEM.
        token_file: the access tokens of the clients that may connect, see ``read_tokens``.
    """

    tls_certificate: Path | None = None
    tls_key: Path | None = None
    client_ca: Path | None = None
    token_file: Path | None = None

    @property
    def is_encrypted(self) -> bool:
        """Whether connections are encrypted with TLS."""
        return self.tls_certificate is not None

    def check(self, address: Address) -> Address:
        """Return the address with its scheme, if a server with these files may listen there.

        On the loopback interface and on local sockets a connection may be in the clear. Elsewhere it is encrypted, and
        clients show a certificate or an access token.

        Raises:
            InvalidArgumentError: an option is missing, or does not fit the address.
            PermissionDeniedError: other machines could reach the address, and nothing protects it; or a file with a
                secret is not protected.
            NotFoundError: a file cannot be read.
        """
        if (self.tls_certificate is None) != (self.tls_key is None):
            given, missing = ("certificate", "key") if self.tls_key is None else ("key", "certificate")
            raise InvalidArgumentError(f"a TLS {given} was given without its {missing}; give both files")
        if self.client_ca is not None and not self.is_encrypted:
            raise InvalidArgumentError("client certificates need TLS: give the server's certificate and key too")
        if address.path and self.is_encrypted:
            raise InvalidArgumentError(f"a local socket is not encrypted: serve {address} without a TLS certificate")
        if address.is_encrypted and not self.is_encrypted:
            raise InvalidArgumentError(f"{address} is encrypted: give a TLS certificate and its key")
        if not address.is_local:
            self._check_reachable(address)
        if self.is_encrypted:
            self._check_files()
        return address.with_scheme(encrypted=self.is_encrypted)

    def tokens(self) -> AccessTokens | None:
        """Return the access tokens of the clients; ``None`` if clients need none."""
        return None if self.token_file is None else AccessTokens(self.token_file)

    def credentials(self) -> Any:
        """Return the credentials of the server as gRPC has them; ``None`` in the clear.

        The files are read again at the first connection after a change. If the new ones cannot be used, the error is
        logged and the old ones stay in use.
        """
        if not self.is_encrypted:
            return None
        import grpc

        # Each connection asks for the configuration; None means that the last one is still right.
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(), self._changes(), require_client_authentication=self.client_ca is not None
        )

    def _check_reachable(self, address: Address) -> None:
        if not self.is_encrypted:
            raise PermissionDeniedError(
                f"other machines can reach {address.target}, so it is not served in the clear: give a TLS certificate "
                "and its key, and the CA of the clients' certificates or a file of access tokens; or serve 127.0.0.1"
            )
        if self.client_ca is None and self.token_file is None:
            raise PermissionDeniedError(
                f"other machines can reach {address.target}, and TLS alone lets all of them use the devices: give the "
                "CA of the clients' certificates, or a file of access tokens"
            )

    def _check_files(self) -> None:
        """Raise an error that names the wrong file: gRPC reports wrong files in its log alone, without their names."""
        assert self.tls_certificate is not None
        assert self.tls_key is not None
        check_secret(self.tls_key, "the TLS key")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.tls_certificate, self.tls_key, password=_refuse_password)
        except OSError as error:
            raise _unusable(f"the TLS certificate {self.tls_certificate} with the key {self.tls_key}", error) from error
        if self.client_ca is not None:
            load_authorities(context, self.client_ca)

    def _files(self) -> tuple[Path, ...]:
        return tuple(path for path in (self.tls_certificate, self.tls_key, self.client_ca) if path is not None)

    def _stamps(self) -> tuple[system.FileStamp | None, ...]:
        return tuple(system.file_stamp(path) for path in self._files())

    def _configuration(self) -> Any:
        import grpc

        certificate, key, *authorities = (path.read_bytes() for path in self._files())
        return grpc.ssl_server_certificate_configuration([(key, certificate)], *authorities)

    def _changes(self) -> Callable[[], Any]:
        stamps = self._stamps()

        def configuration_after_change() -> Any:
            nonlocal stamps
            if (current := self._stamps()) == stamps:
                return None
            stamps = current
            try:
                self._check_files()
                configuration = self._configuration()
            except Exception as error:  # a connection must not fail while a file is being written
                log_event(logging.ERROR, "changed TLS files are not used", reason=str(error))
                return None
            log_event(logging.INFO, "TLS files read again", certificate=self.tls_certificate)
            return configuration

        return configuration_after_change


def load_authorities(context: ssl.SSLContext, path: Path) -> None:
    """Make a TLS context trust the certificates of a file.

    Raises:
        NotFoundError: the file cannot be read.
        InvalidArgumentError: the file has no certificates.
    """
    try:
        context.load_verify_locations(path)
    except OSError as error:
        raise _unusable(f"the CA certificates {path}", error) from error


def _refuse_password() -> str:
    raise InvalidArgumentError("the TLS key has a password: give a key without one, readable by this user alone")


def _unusable(title: str, error: OSError) -> InvalidArgumentError | NotFoundError:
    if isinstance(error, ssl.SSLError):  # an SSLError is an OSError
        return InvalidArgumentError(f"cannot use {title}: {error.reason or error}")
    return NotFoundError(f"cannot read {title}: {error.strerror}")


AUTHORIZATION = "authorization"
"""The name of the metadata, or header field, with the access token."""

VARIABLES = {
    "ca_file": "PJRT_REMOTE_CA_FILE",
    "certificate_file": "PJRT_REMOTE_CERTIFICATE_FILE",
    "key_file": "PJRT_REMOTE_KEY_FILE",
    "token_file": "PJRT_REMOTE_TOKEN_FILE",
}
"""The environment variables that are the defaults of a client's files."""


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """The files of a client's security.

    Args:
        ca_file: the certificates of the authorities that the server's certificate may come from, in PEM; the default
            is the system's authorities.
        certificate_file: the client's certificate, in PEM, where the server asks for one.
        key_file: the private key of the certificate, in PEM, without a password.
        token_file: a file with one access token, where the server asks for one.
        server_name: the name in the server's certificate, if it differs from the host in the address.
    """

    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    token_file: Path | None = None
    server_name: str = ""

    @staticmethod
    def of(
        ca_file: str | os.PathLike[str] | None = None,
        certificate_file: str | os.PathLike[str] | None = None,
        key_file: str | os.PathLike[str] | None = None,
        token_file: str | os.PathLike[str] | None = None,
        server_name: str = "",
    ) -> ClientSecurity:
        """Return the security of a client; environment variables name the files that are not given.

        The variables are those of ``VARIABLES``. An option that is an empty string counts as given: no file.
        """
        options = {"ca_file": ca_file, "certificate_file": certificate_file, "key_file": key_file}
        options["token_file"] = token_file
        paths = {
            name: os.environ.get(VARIABLES[name], "") if option is None else os.fspath(option)
            for name, option in options.items()
        }
        return ClientSecurity(
            **{name: Path(path) if path else None for name, path in paths.items()}, server_name=server_name
        )

    def check(self, address: Address) -> Address:
        """Return the address with its scheme, if a client with these files may connect to it.

        An address without a scheme is in the clear where only this machine can reach it, and encrypted elsewhere.

        Raises:
            InvalidArgumentError: an option is missing, or does not fit the address.
            PermissionDeniedError: the connection would leave this machine in the clear; or a file with a secret is not
                protected.
            NotFoundError: a file cannot be read.
        """
        if not address.scheme:
            address = address.with_scheme(encrypted=not address.is_local)
        if (self.certificate_file is None) != (self.key_file is None):
            raise InvalidArgumentError("certificate_file and key_file belong together; give both, or none")
        if not address.is_encrypted:
            if not address.is_local:
                raise PermissionDeniedError(
                    f"{address} would send everything in the clear to another machine; use TLS: "
                    f"{address.with_scheme(encrypted=True)}"
                )
            needless = [item.name for item in fields(self) if item.name != "token_file" and getattr(self, item.name)]
            if needless and not self._are_defaults(needless):
                raise InvalidArgumentError(
                    f"{address} is in the clear, and {', '.join(needless)} is for TLS; use "
                    f"{address.with_scheme(encrypted=True)}, or leave the option out"
                )
        else:
            self.ssl_context()
        self.metadata()
        return address

    def metadata(self, *, without: str | None = None) -> tuple[tuple[str, str], ...]:
        """Return the metadata of every call: the access token; the file is read now.

        Args:
            without: the token to send where there is none; ``None`` sends no metadata.

        Raises:
            PjrtError: the file cannot be used, see ``read_token``.
        """
        token = without if self.token_file is None else read_token(self.token_file)
        return () if token is None else ((AUTHORIZATION, f"Bearer {token}"),)

    def credentials(self, address: Address) -> Any:
        """Return the credentials of the client as gRPC has them; ``None`` in the clear."""
        if not address.is_encrypted:
            return None
        import grpc

        files = (self.ca_file, self.key_file, self.certificate_file)
        authorities, key, certificate = (None if path is None else path.read_bytes() for path in files)
        if authorities is None:  # gRPC has authorities of its own; users expect those of their system
            authorities = _system_authorities()
        return grpc.ssl_channel_credentials(authorities, key, certificate)

    def channel_options(self) -> list[tuple[str, str]]:
        """Return the options of a gRPC channel that belong to the credentials."""
        return [("grpc.ssl_target_name_override", self.server_name)] if self.server_name else []

    def ssl_context(self) -> ssl.SSLContext:
        """Return a TLS context with these files, for HTTP/2 without gRPC.

        Raises:
            InvalidArgumentError: a file does not hold certificates or a key.
            PermissionDeniedError: every user of this machine may read the key.
            NotFoundError: a file cannot be read.
        """
        context = ssl.create_default_context()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["h2"])
        if self.ca_file is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.set_alpn_protocols(["h2"])
            load_authorities(context, self.ca_file)
        if self.certificate_file is not None and self.key_file is not None:
            check_secret(self.key_file, "the TLS key")
            try:
                context.load_cert_chain(self.certificate_file, self.key_file, password=lambda: "")
            except ssl.SSLError as error:
                pair = f"the certificate {self.certificate_file} with the key {self.key_file}"
                raise InvalidArgumentError(f"cannot use {pair}: {error.reason or error}") from error
            except OSError as error:
                raise NotFoundError(f"cannot read {self.certificate_file}: {error.strerror}") from error
        return context

    def _are_defaults(self, names: list[str]) -> bool:
        """Whether options come from environment variables, which also serve connections to other servers."""
        return all(
            name in VARIABLES and str(getattr(self, name)) == os.environ.get(VARIABLES[name], "") for name in names
        )


def _system_authorities() -> bytes | None:
    """Return the certificates that Python's TLS trusts on this system; ``None`` if it names no file of them."""
    paths = ssl.get_default_verify_paths()
    return None if paths.cafile is None else Path(paths.cafile).read_bytes()


# A token comes in the metadata of each call. The client of a stock jaxlib cannot send it there: it sends the token as
# ``pjrt.token`` in the protocol's ``initialization_data``, when it opens its session. Its other calls carry the number
# of the session, which is a secret that only this client knows.

TOKEN_ATTRIBUTE = "pjrt.token"
"""The attribute of the protocol's ``initialization_data`` with the access token."""

_NO_TOKEN = (
    "this server asks for an access token, and the client sent none; give its file as token_file; other clients send "
    f"it as 'Bearer TOKEN' in the metadata {AUTHORIZATION!r}, or as {TOKEN_ATTRIBUTE!r} in initialization_data"
)

Metadata = Mapping[str, "str | bytes"]


class Admission:
    """The admission of the calls to one server.

    Args:
        tokens: the valid access tokens; ``None`` if clients need none.
        strangers: those who show wrong ones.
    """

    def __init__(self, tokens: AccessTokens | None, strangers: Strangers) -> None:
        self._tokens = tokens
        self._strangers = strangers

    def check_call(self, metadata: Metadata, peer: str) -> bool:
        """Return whether a call has a token, where clients need one; it may be a stranger's otherwise.

        An empty token says that the client has none: it asks whether it needs one.

        Raises:
            UnauthenticatedError: the token is not valid, or empty.
            ResourceExhaustedError: too many wrong ones came from the address of the peer.
        """
        if self._tokens is None:
            return True
        token = _header_token(metadata)
        if token == "":
            raise UnauthenticatedError(_NO_TOKEN)
        return token is not None and bool(self._name_of(token, peer))

    def asks_later(self, metadata: Metadata) -> bool:
        """Return whether a session has its token in ``initialization_data``: its client's other calls have none."""
        return self._tokens is not None and _header_token(metadata) is None

    def check_session(self, metadata: Metadata, session_token: str | None, peer: str) -> str:
        """Return the name of the token with which a session is opened; empty if clients need none.

        Args:
            metadata: the metadata of the call.
            session_token: the token in the protocol's ``initialization_data``; ``None`` if it has none.
            peer: the address of the client.

        Raises:
            UnauthenticatedError: the token is missing or not valid.
            ResourceExhaustedError: too many wrong ones came from the address of the peer.
        """
        if self._tokens is None:
            return ""
        token = _header_token(metadata)
        if token is None:
            token = session_token
        if not token:
            raise UnauthenticatedError(_NO_TOKEN)
        return self._name_of(token, peer)

    def _name_of(self, token: str, peer: str) -> str:
        assert self._tokens is not None
        self._strangers.check_guess(peer)
        name = self._tokens.name_of(token)
        if name is None:
            self._strangers.guessed_wrong(peer)
            raise UnauthenticatedError("the client's access token is not valid on this server; ask for a new one")
        return name


def certificate_name(identities: Iterable[bytes] | None) -> str:
    """Return the name in a client's certificate, from gRPC's ``peer_identities``; empty without a certificate."""
    return b", ".join(identities or ()).decode("utf-8", "replace")


def _header_token(metadata: Metadata) -> str | None:
    value = metadata.get(AUTHORIZATION)
    if value is None:
        return None
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    scheme, _, token = text.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else text


# gRPC reports most failed connections in the same words, so the reason is looked for by a connection without gRPC.

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # with empty SETTINGS
_SETTINGS = 4
_TLS_ALERT = 21
_SECONDS = 5.0


def why_unreachable(address: Address, security: ClientSecurity) -> str:
    """Return why a client gets no connection to a server; empty if it gets one now.

    It connects once, without gRPC, and waits at most five seconds for each answer.

    Args:
        address: the server, with its scheme.
        security: the client's files.
    """
    try:
        with contextlib.closing(_connect(address)) as connection:
            return _encrypted(connection, address, security) if address.is_encrypted else _clear(connection, address)
    except PjrtError as error:
        return error.message
    except TimeoutError:
        return f"{address.target} does not answer within {_SECONDS:.0f} s"
    except ConnectionRefusedError:
        return f"nothing listens at {address.target}: is the server running, and is the port right?"
    except FileNotFoundError:
        return f"there is no local socket at {address.path}: is the server running?"
    except socket.gaierror as error:
        return f"the host {address.host} is unknown: {error.strerror}"
    except OSError as error:
        return f"cannot connect to {address.target}: {error.strerror or error}"


def _connect(address: Address) -> socket.socket:
    if not address.path:
        return socket.create_connection((address.host, address.port), timeout=_SECONDS)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_SECONDS)
    try:
        connection.connect(address.path)
    except BaseException:
        connection.close()
        raise
    return connection


def _clear(connection: socket.socket, address: Address) -> str:
    try:
        connection.sendall(_PREFACE)
        answer = connection.recv(9)
    except ConnectionError:
        answer = b""
    if answer[3:4] == bytes((_SETTINGS,)) and answer[0] != _TLS_ALERT:
        return ""
    if answer[:1] == bytes((_TLS_ALERT,)) or not answer:
        encrypted = address.with_scheme(encrypted=True)
        return f"{address.target} closed the connection: if the server uses TLS, write {encrypted}"
    return f"{address.target} is no gRPC server: it answered {answer!r}"


def _encrypted(connection: socket.socket, address: Address, security: ClientSecurity) -> str:
    name = security.server_name or address.host
    try:
        with security.ssl_context().wrap_socket(connection, server_hostname=name) as encrypted:
            if encrypted.selected_alpn_protocol() != "h2":
                return f"{address.target} is no gRPC server: it speaks TLS, but not HTTP/2"
            # With TLS 1.3 a server refuses a client's certificate only after the client's handshake.
            encrypted.sendall(_PREFACE)
            return "" if encrypted.recv(9) else _refused(address, security, "it closed the connection")
    except ssl.SSLCertVerificationError as error:
        reason = f"{error.verify_message or error.reason}{_advice(error, name)}"
        return f"the certificate of {address.target} is not valid: {reason}"
    except ssl.SSLError as error:
        reason = error.reason or str(error)
        if "ALERT" in reason:
            return _refused(address, security, reason.replace("_", " ").lower())
        clear = address.with_scheme(encrypted=False)
        return f"{address.target} does not speak TLS ({reason}): if it is a server in the clear, write {clear}"
    except ConnectionError:
        return _refused(address, security, "it closed the connection during the handshake")


def _refused(address: Address, security: ClientSecurity, reason: str) -> str:
    if security.certificate_file is None:
        advice = "does it ask for a certificate? give certificate_file and key_file"
        return f"{address.target} refused the client ({reason}): {advice}"
    advice = "is it valid, and of a CA that the server trusts?"
    return f"{address.target} refused the certificate {security.certificate_file} ({reason}): {advice}"


def _advice(error: ssl.SSLCertVerificationError, name: str) -> str:
    if error.verify_code in (18, 19, 20, 21):  # self-signed, or no way to a trusted certificate
        return "; give the CA of the server's certificate as ca_file"
    if error.verify_code in (62, 64):  # the host or the number of the host
        return f"; it is not for {name}: if that is right, give the certificate's name as server_name"
    return ""
