"""The handshake of a worker and its controller: each proves to the other that it knows the cluster's token.

The token itself is never sent. The proofs also cover the controller's TLS certificate as each side has it: somebody in
the middle has another certificate, so that the proofs of the two sides differ. That is why the certificate needs no
authority that the worker would have to know.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from typing import Any

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
