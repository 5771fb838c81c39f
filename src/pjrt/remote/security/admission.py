"""The admission of calls to a server: the check of the caller's access token, and the caller's name.

A token comes in the metadata of each call. The client of a stock jaxlib cannot send it there: it sends the token as
``pjrt.token`` in the protocol's ``initialization_data``, when it opens its session. Its other calls carry the number of
the session, which is a secret that only this client knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pjrt.api.errors import UnauthenticatedError
from pjrt.remote.security.access_tokens import AccessTokens
from pjrt.remote.security.client_security import AUTHORIZATION

TOKEN_ATTRIBUTE = "pjrt.token"
"""The attribute of the protocol's ``initialization_data`` with the access token."""

_SCHEME = "bearer "
_ADVICE = (
    f"give its file as token_file; other clients send it as 'Bearer TOKEN' in the metadata {AUTHORIZATION!r}, or as "
    f"{TOKEN_ATTRIBUTE!r} in initialization_data"
)

Metadata = Mapping[str, "str | bytes"]


class Admission:
    """The admission of the calls to one server.

    Args:
        tokens: the valid access tokens; ``None`` if clients need none.
    """

    def __init__(self, tokens: AccessTokens | None) -> None:
        self._tokens = tokens

    def check_call(self, metadata: Metadata) -> bool:
        """Return whether a call has a token, where clients need one; it may be a stranger's otherwise.

        Raises:
            UnauthenticatedError: the token is not valid.
        """
        if self._tokens is None:
            return True
        token = _header_token(metadata)
        return token is not None and bool(self._name_of(token))

    def asks_later(self, metadata: Metadata) -> bool:
        """Return whether a session has its token in ``initialization_data``: its client's other calls have none."""
        return self._tokens is not None and _header_token(metadata) is None

    def check_session(self, metadata: Metadata, session_token: str | None) -> str:
        """Return the name of the token with which a session is opened; empty if clients need none.

        Args:
            metadata: the metadata of the call.
            session_token: the token in the protocol's ``initialization_data``; ``None`` if it has none.

        Raises:
            UnauthenticatedError: the token is missing or not valid.
        """
        if self._tokens is None:
            return ""
        token = _header_token(metadata)
        if token is None:
            token = session_token
        if token is None:
            raise UnauthenticatedError(f"this server asks for an access token, and the client sent none; {_ADVICE}")
        return self._name_of(token)

    def _name_of(self, token: str) -> str:
        assert self._tokens is not None
        name = self._tokens.name_of(token)
        if name is None:
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
    return text[len(_SCHEME) :].strip() if text.lower().startswith(_SCHEME) else text
