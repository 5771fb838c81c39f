"""The security of a client: its trust in a server's certificate, and its own certificate or token."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pjrt.api.errors import InvalidArgumentError, NotFoundError, PermissionDeniedError
from pjrt.remote.security.access_tokens import check_secret, read_token
from pjrt.remote.security.server_security import load_authorities
from pjrt.remote.transport.addresses import Address

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

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata of every call: the access token; the file is read now.

        Raises:
            PjrtError: the file cannot be used, see ``read_token``.
        """
        return () if self.token_file is None else ((AUTHORIZATION, f"Bearer {read_token(self.token_file)}"),)

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
