"""Certificates for tests, made with the ``openssl`` command."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc")


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority in a folder."""

    server: Pair
    client: Pair

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self._name = name
        self.certificate = folder / f"{name}.pem"
        self._key = folder / f"{name}.key"
        openssl(
            "req", "-x509", *_KEY, "-days", "2", "-subj", f"/CN={name}", "-keyout", self._key, "-out", self.certificate
        )

    def issue(self, name: str, *subjects: str, expired: bool = False) -> Pair:
        """Return a new certificate; subjects such as ``DNS:localhost`` or ``IP:127.0.0.1`` are for servers."""
        pair = Pair(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        request = self.folder / f"{name}.csr"
        names = ("-addext", f"subjectAltName={','.join(subjects)}") if subjects else ()
        openssl("req", *_KEY, "-subj", f"/CN={name}", *names, "-keyout", pair.key, "-out", request)
        issuer = ("-CA", self.certificate, "-CAkey", self._key, "-copy_extensions", "copy")
        days = "-1" if expired else "2"
        openssl("x509", "-req", "-in", request, *issuer, "-days", days, "-out", pair.certificate)
        return pair


def openssl(*arguments: str | Path) -> None:
    """Run a command of openssl."""
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def write_secret(path: Path, text: str) -> Path:
    """Write a file that only this user may read."""
    path.touch(mode=0o600)
    path.write_text(text)
    return path
