"""The certificates of a cluster: an authority of its own, whose keys exist as long as the cluster does."""

from __future__ import annotations

import datetime
import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pjrt.api.errors import FailedPreconditionError

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
