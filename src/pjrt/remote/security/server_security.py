"""The security of a server: its TLS certificate, and the certificates and tokens of its clients."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pjrt import system
from pjrt.api.errors import InvalidArgumentError, NotFoundError, PermissionDeniedError
from pjrt.remote.monitoring.connection_log import log_event
from pjrt.remote.security.access_tokens import AccessTokens, check_secret
from pjrt.remote.transport.addresses import Address


@dataclass(frozen=True, slots=True)
class ServerSecurity:
    """The files of a server's security; all are read again when they change.

    Args:
        tls_certificate: the server's certificate and those of its issuers, in PEM.
        tls_key: the private key of the certificate, in PEM, without a password.
        client_ca: the certificates of the authorities whose clients may connect, in PEM.
        token_file: the access tokens of the clients that may connect, see ``access_tokens``.
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
