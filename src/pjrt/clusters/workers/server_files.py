"""The files of the servers of a cluster: certificates and keys that came over the link to the controller."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def server_files(certificate: str, key: str, client_ca: str) -> Iterator[dict[str, Any]]:
    """Yield the files of a server's security, by the names that ``pjrt.remote.serve`` has, in a folder of this user.

    Args:
        certificate: the certificate, in PEM; empty in the clear.
        key: its key.
        client_ca: the certificate of the authority of the clients.
    """
    contents = {"tls_certificate": certificate, "tls_key": key, "client_ca": client_ca}
    with tempfile.TemporaryDirectory(prefix="pjrt-worker-") as name:
        files = {title: Path(name, title) for title, content in contents.items() if content}
        for title, path in files.items():
            path.touch(mode=0o600)
            path.write_text(contents[title])
        yield files


def bracketed(host: str) -> str:
    """Return a host as an address has it: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host else host
