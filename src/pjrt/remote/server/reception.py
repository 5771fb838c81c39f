"""The reception of a server: it admits or refuses sessions, counts them and logs them."""

from __future__ import annotations

import itertools
import threading
import time
from typing import TYPE_CHECKING, Any

from pjrt.api.errors import PjrtError, ResourceExhaustedError
from pjrt.remote.connection_log import ConnectionLog
from pjrt.remote.protocol.values import attributes_of
from pjrt.remote.security.credentials import TOKEN_ATTRIBUTE, Admission, ServerSecurity, certificate_name
from pjrt.remote.security.limits import Limits
from pjrt.remote.server.session import Session
from pjrt.remote.transport.grpc_server import CallContext

if TYPE_CHECKING:
    from pjrt.remote.metrics import ServerMetrics


class Reception:
    """The reception of one server; its methods may be called by any thread.

    Args:
        security: the check of clients that open a session.
        limits: how many sessions may be open.
        device: the name of the device, for the log.
        metrics: counts the sessions; ``None`` where nothing is counted.
    """

    def __init__(self, security: ServerSecurity, limits: Limits, device: str, metrics: ServerMetrics | None) -> None:
        self._admission = Admission(security.tokens())
        self._most, self._most_of_client = limits.sessions, limits.sessions_per_client
        self._metrics = metrics
        self._log = ConnectionLog(device)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._open: dict[int, str] = {}  # by session: the name of its client; empty where clients have none
        self._left: set[int] = set()  # those of them whose work goes on
        self._hosts: dict[int, str] = {}  # by session: the host of a client that shows its token there alone

    def authorize(self, context: CallContext) -> bool:
        """Return whether a call has shown who makes it; a session's own token is checked as it opens.

        The client of a stock jaxlib does not show it with its calls beside the session. They come from the host of the
        session.

        Raises:
            UnauthenticatedError: the access token of the call is not valid.
        """
        try:
            return self._admission.check_call(context.metadata) or self._has_session_from(_host_of(context.peer))
        except PjrtError as error:
            self._refuse(context, error)
            raise

    def admit(self, metadata: Any, context: CallContext) -> int:
        """Return the number, among those of the server, of the session that a client opens.

        Args:
            metadata: the metadata of the session (``GrpcIfrtSessionMetadata``).
            context: the call.

        Raises:
            UnauthenticatedError: the access token is missing or not valid.
            ResourceExhaustedError: as many sessions are open as may be, or as one client may have.
        """
        try:
            token = attributes_of(metadata.initialization_data).get(TOKEN_ATTRIBUTE)
            name = self._admission.check_session(context.metadata, token if isinstance(token, str) else None)
            client = name or certificate_name(context.identity.get("x509_common_name"))
            number = next(self._numbers)
            with self._lock:
                if len(self._open) >= self._most:
                    raise ResourceExhaustedError(
                        f"{self._most} sessions are open or still at work, and the server allows no more; end one, or "
                        "start the server with a larger limit"
                    )
                if client and list(self._open.values()).count(client) >= self._most_of_client:
                    raise ResourceExhaustedError(
                        f"{self._most_of_client} sessions of the client {client!r} are open or still at work, and the "
                        "server allows one client no more; end one, or start the server with a larger limit"
                    )
                self._open[number] = client
        except PjrtError as error:
            self._refuse(context, error)
            raise
        if self._admission.asks_later(context.metadata):
            with self._lock:
                self._hosts[number] = _host_of(context.peer)
        if self._metrics is not None:
            self._metrics.session_opened()
        self._log.opened(number, context.peer, client, metadata.version.protocol_version)
        return number

    def leave(self, session: Session, reason: str) -> None:
        """Note the end of a session; a second call does nothing.

        While work of it goes on that cannot be stopped, the session counts: a client must not leave and come back to
        get further threads.
        """
        with self._lock:
            if session.number not in self._open or session.number in self._left:
                return
            self._left.add(session.number)
            self._hosts.pop(session.number, None)
        session.workers.when_idle(lambda: self._forget(session.number))
        self._log.ended(session.number, reason, time.monotonic() - session.opened, session.requests)

    def _forget(self, number: int) -> None:
        with self._lock:
            self._open.pop(number, None)
            self._left.discard(number)

    def _has_session_from(self, host: str) -> bool:
        with self._lock:
            return host in self._hosts.values()

    def _refuse(self, context: CallContext, error: PjrtError) -> None:
        if self._metrics is not None:
            self._metrics.session_refused(error.code.name)
        self._log.refused(context.peer, error.code.name, error.message)


def _host_of(peer: str) -> str:
    """Return the host in a client's address as gRPC spells it, such as ``ipv4:127.0.0.1:4321``."""
    return peer.rpartition(":")[0] if peer.startswith("ip") else peer
