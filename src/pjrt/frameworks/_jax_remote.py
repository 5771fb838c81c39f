"""JAX on the devices of a server, through jaxlib's own client of the IFRT proxy protocol."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pjrt.api.errors import InvalidArgumentError, NotFoundError, PjrtError, StatusCode, UnavailableError

if TYPE_CHECKING:
    from pjrt.remote.security.credentials import ClientSecurity
    from pjrt.remote.security.tunnel import TunnelProcess
    from pjrt.remote.transport.addresses import Address

_INSECURE = "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"
"""The environment variable without which jaxlib speaks ALTS, the encryption inside of Google's clouds, and no other."""

_REFUSALS = ("UNAUTHENTICATED", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED")
"""The status codes with which a server refuses a session."""

_environment_lock = threading.Lock()


class Place:
    """A server as jaxlib's client reaches it: directly in the clear, or through a tunnel with TLS.

    Args:
        address: the server's address, such as ``grpc://HOST:PORT`` or ``grpcs://HOST:PORT``.
        files: the files of the client's security, as ``pjrt.remote.security.credentials`` has them.

    Raises:
        InvalidArgumentError: the address is not one, or a file does not fit to it.
        PermissionDeniedError: the connection would leave this machine in the clear; or a file with a secret is not
            protected.
        NotFoundError: a file cannot be read.
    """

    def __init__(self, address: str, files: dict[str, Any]) -> None:
        from pjrt.remote.security.credentials import ClientSecurity
        from pjrt.remote.transport.addresses import parse_address

        if not isinstance(address, str) or "://" not in address:
            raise InvalidArgumentError(
                f"expected the address of a server as grpc://HOST:PORT, as `pjrt serve` prints it, found {address!r}"
            )
        self._security: ClientSecurity = ClientSecurity.of(**files)
        self._address: Address = self._security.check(parse_address(address))
        self._tunnel: TunnelProcess | None = None

    def __str__(self) -> str:
        return str(self._address)

    def target(self) -> str:
        """Return the address for jaxlib's client; that of a tunnel, which lives as long as this object."""
        if not self._address.is_encrypted:
            return str(self._address)
        if self._tunnel is None:
            from pjrt.remote.security.tunnel import TunnelProcess

            self._tunnel = TunnelProcess(str(self._address), self._security)
        return self._tunnel.address

    def initialization_data(self) -> dict[str, bytes] | None:
        """Return the attributes that open a session: the access token, where no tunnel adds it."""
        if self._address.is_encrypted or self._security.token_file is None:
            return None
        from pjrt.remote.security.credentials import TOKEN_ATTRIBUTE, read_token

        return {TOKEN_ATTRIBUTE: read_token(self._security.token_file).encode()}

    def check_token(self, timeout: float) -> None:
        """Check the access token: where it is wrong or missing, jaxlib's client tries again and again.

        Raises:
            UnauthenticatedError: the token is not valid, or the server asks for one.
        """
        from pjrt.remote.client.plugin import check_token

        check_token(self._address, self._security, timeout)

    def why_unreachable(self) -> str:
        """Return why there is no connection, in words that help; empty if that is unknown."""
        from pjrt.remote.security.credentials import why_unreachable

        return why_unreachable(self._address, self._security)


def make_client(place: Place, timeout: float, on_disconnect: Callable[[str], object] | None) -> Any:
    """Return jaxlib's client of a server, connected.

    Raises:
        NotFoundError: jaxlib has no such client.
        UnavailableError: there is no server at the address, or it speaks no version of the protocol that jaxlib speaks.
        UnauthenticatedError: the server asks for an access token, or for another one.
        ResourceExhaustedError: the server has as many sessions as it may have.
    """
    # jaxlib's client crashes in a process that has not imported JAX.
    import jax  # noqa: F401

    try:
        from jaxlib import _ifrt_proxy
    except ImportError as error:
        raise NotFoundError(
            "this jaxlib has no client for remote devices (jaxlib._ifrt_proxy): pip install -U jaxlib"
        ) from error
    place.check_token(timeout)
    options = _ifrt_proxy.ClientConnectionOptions()
    options.connection_timeout_in_seconds = max(1, round(timeout))
    if data := place.initialization_data():
        options.initialization_data = data
    if on_disconnect is not None:
        options.on_disconnect = on_disconnect
    try:
        with _insecure_credentials():
            client = _ifrt_proxy.get_client(place.target(), options)
    except RuntimeError as error:
        code, _, message = str(error).partition(": ")
        if code in _REFUSALS:
            detail = message.rpartition("detailed error: ")[2]
            raise PjrtError.of(StatusCode[code], f"the server at {place} refuses the client: {detail}") from error
        reason = place.why_unreachable() or "start one with `pjrt serve`"
        raise UnavailableError(
            f"expected a server of devices at {place} within {timeout:g} s, found none: {reason}; jaxlib reports: "
            f"{error}"
        ) from error
    if on_disconnect is not None:
        # The end of a client is a disconnection too. It would call the function from a thread of jaxlib's while Python
        # exits, which ends the process with an abort. So the client lives as long as the process.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))
    return client


@contextlib.contextmanager
def _insecure_credentials() -> Iterator[None]:
    """Have jaxlib connect in the clear while the context lasts; it reads the variable when it opens a channel."""
    with _environment_lock:
        before = os.environ.get(_INSECURE)
        os.environ[_INSECURE] = "true"
        try:
            yield
        finally:
            if before is None:
                del os.environ[_INSECURE]
            else:
                os.environ[_INSECURE] = before
