"""Servers: the devices of a client, offered at an address.

The reception of a server admits or refuses sessions, counts them and logs them. Its time limits end sessions that are
not used, and those that wait for host buffers that never come.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pjrt.api.client
from pjrt.api.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    NotFoundError,
    PjrtError,
    ResourceExhaustedError,
)
from pjrt.ifrt.client import Client
from pjrt.remote.connection_log import ConnectionLog
from pjrt.remote.protocol.values import attributes_of
from pjrt.remote.protocol.versions import BATCHES, NEWEST, Version
from pjrt.remote.security.credentials import TOKEN_ATTRIBUTE, Admission, ServerSecurity, certificate_name
from pjrt.remote.security.limits import Limits
from pjrt.remote.security.strangers import Strangers, host_of
from pjrt.remote.server.isolation import Isolated, IsolatedSession
from pjrt.remote.server.service import health_methods, ifrt_methods
from pjrt.remote.server.session import ServeOptions, Session, Workers
from pjrt.remote.transport.addresses import Address, parse_address, server_keepalive
from pjrt.remote.transport.grpc_server import CallContext, GrpcServer
from pjrt.remote.transport.host_buffers import SUBDIRECTORY_ATTRIBUTE, TransferDirectory
from pjrt.system import most_open_files, release_freed_memory

if TYPE_CHECKING:
    from pjrt.remote.metrics import ServerMetrics


AnySession = Session | IsolatedSession


class Reception:
    """The reception of one server; its methods may be called by any thread.

    Args:
        admission: the check of clients that open a session.
        strangers: learns who is none.
        limits: how many sessions may be open.
        device: the name of the device, for the log.
        metrics: counts the sessions; ``None`` where nothing is counted.
    """

    def __init__(
        self,
        admission: Admission,
        strangers: Strangers,
        limits: Limits,
        device: str,
        metrics: ServerMetrics | None,
    ) -> None:
        self._admission = admission
        self._strangers = strangers
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
            ResourceExhaustedError: too many that are not came from the caller's address.
        """
        try:
            by_token = self._admission.check_call(context.metadata, context.peer)
        except PjrtError as error:
            self._refuse(context, error)
            raise
        if not by_token and not self._has_session_from(host_of(context.peer)):
            return False
        self._strangers.is_known(context.peer, by_token=by_token)
        return True

    def admit(self, metadata: Any, context: CallContext) -> tuple[int, str]:
        """Return the number, among those of the server, of the session that a client opens, and the client's name.

        Args:
            metadata: the metadata of the session (``GrpcIfrtSessionMetadata``).
            context: the call.

        Raises:
            UnauthenticatedError: the access token is missing or not valid.
            ResourceExhaustedError: as many sessions are open as may be, or as one client may have; or too many wrong
                tokens came from the client's address.
        """
        try:
            token = attributes_of(metadata.initialization_data).get(TOKEN_ATTRIBUTE)
            shown = token if isinstance(token, str) else None
            name = self._admission.check_session(context.metadata, shown, context.peer)
            self._strangers.is_known(context.peer, by_token=True)
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
                self._hosts[number] = host_of(context.peer)
        if self._metrics is not None:
            self._metrics.session_opened()
        self._log.opened(number, context.peer, client, metadata.version.protocol_version)
        return number, client

    def leave(self, session: AnySession, reason: str) -> None:
        """Note the end of a session; a second call does nothing.

        While work of it goes on that cannot be stopped, the session counts: a client must not leave and come back to
        get further threads.
        """
        with self._lock:
            if session.number not in self._open or session.number in self._left:
                return
            self._left.add(session.number)
            self._hosts.pop(session.number, None)
        session.when_idle(lambda: self.forget(session.number))
        self._log.ended(session.number, reason, time.monotonic() - session.opened, session.requests)

    def forget(self, number: int) -> None:
        """Count a session no more."""
        with self._lock:
            self._open.pop(number, None)
            self._hosts.pop(number, None)
            self._left.discard(number)

    def _has_session_from(self, host: str) -> bool:
        with self._lock:
            return host in self._hosts.values()

    def _refuse(self, context: CallContext, error: PjrtError) -> None:
        if self._metrics is not None:
            self._metrics.session_refused(error.code.name)
        self._log.refused(context.peer, error.code.name, error.message)


_LONGEST_PAUSE = 1.0
_PAUSE_OF_FLOODS = 0.05


class TimeLimits:
    """A thread that looks at the open sessions of a server, about once in a second, until ``stop``.

    Args:
        limits: the limits.
        sessions: returns the open sessions.
        refused: returns the calls of clients that were refused a session and are still there, and since when.
        drop_strangers: ends connections of strangers, at a moment of the clock of ``time.monotonic``; returns whether
            more may be coming.
    """

    def __init__(
        self,
        limits: Limits,
        sessions: Callable[[], Iterable[AnySession]],
        refused: Callable[[], Iterable[tuple[CallContext, float]]],
        drop_strangers: Callable[[float], bool] = lambda now: False,
    ) -> None:
        self._limits = limits
        self._sessions = sessions
        self._refused = refused
        self._drop_strangers = drop_strangers
        idle = _LONGEST_PAUSE if limits.idle_seconds is None else limits.idle_seconds / 4
        self._pause = min(_LONGEST_PAUSE, limits.open_seconds / 4, limits.host_buffer_seconds / 4, idle)
        self._stopped = threading.Event()
        threading.Thread(target=self._watch, name="pjrt time limits", daemon=True).start()

    def stop(self) -> None:
        """End the thread. May be called again."""
        self._stopped.set()

    def _watch(self) -> None:
        pause = self._pause
        while not self._stopped.wait(pause):
            self.check(time.monotonic())
            pause = min(self._pause, _PAUSE_OF_FLOODS) if self._drop_strangers(time.monotonic()) else self._pause

    def check(self, now: float) -> None:
        """End the sessions that have used up their time at a moment of the clock of ``time.monotonic``."""
        error = DeadlineExceededError(f"the client sent no request within {self._limits.open_seconds:g} s")
        latest, idle = now - self._limits.open_seconds, self._limits.idle_seconds
        for session in self._sessions():
            session.host_buffers.give_up_after(self._limits.host_buffer_seconds)
            if not session.requests:
                if session.opened < latest:
                    session.hang_up(error)
            elif idle is not None and session.idle_seconds(now) > idle:
                session.hang_up(DeadlineExceededError(f"the session was idle for more than {idle:g} s"))
        for context, since in self._refused():
            if since < latest:
                context.hang_up(error)


_MOST_REFUSED = 8
_MOST_ENDED = 1024
_DEFAULT_OPTIONS = ServeOptions()

_log = logging.getLogger("pjrt.remote")


class Server:
    """The devices of a client, offered over the IFRT proxy protocol. ``serve`` makes it.

    Args:
        devices: the client whose devices are served, which stays the caller's, who closes it after the server; or
            devices of which each client has its own.
        address: where to listen.
        options: what the server does for its clients.
        newest: the newest versions to speak.

    Attributes:
        newest: the newest versions to speak.
        metrics: the counts of this server; ``None`` where nothing is counted.
        transfer_directory: the directory in which clients leave large arrays; ``None`` without one.
    """

    def __init__(
        self,
        devices: pjrt.api.client.Client | Isolated,
        address: str,
        options: ServeOptions = _DEFAULT_OPTIONS,
        newest: Version = NEWEST,
    ) -> None:
        files = (options.tls_certificate, options.tls_key, options.client_ca, options.token_file)
        security = ServerSecurity(*(None if path is None else Path(path) for path in files))
        place = security.check(parse_address(address))
        folder = options.transfer_directory
        self.transfer_directory = None if folder is None else TransferDirectory(folder)
        strangers = Strangers(options.limits)
        admission, credentials = Admission(security.tokens(), strangers), security.credentials()
        is_isolated = isinstance(devices, Isolated)
        vets = not (place.is_local or is_isolated) if options.vet_programs is None else options.vet_programs
        self._devices = devices
        self._client: Client | None = None
        if isinstance(devices, Isolated):
            _check_isolated(options)
            devices.start(replace(options, vet_programs=vets))
        else:
            self._client = Client(devices)
        self._options = replace(options, name=options.name or devices.platform_name, vet_programs=vets)
        self.newest = newest
        name, metrics = self._options.name, options.metrics
        counted = None if isinstance(devices, Isolated) else devices
        self.metrics = None if metrics is None else metrics.of_server(name, counted, self._open_sessions)
        self._reception = Reception(admission, strangers, options.limits, name, self.metrics)
        self._lock = threading.Lock()
        self._sessions: dict[int, AnySession] = {}
        self._ended: dict[int, PjrtError] = {}  # by session: why the server ended it, for calls that come later
        self._on_idle: Callable[[], object] = lambda: None
        self._refused: dict[CallContext, float] = {}
        self._stopping = threading.Event()
        # Compilations wait here, and requests that wait for values.
        self._workers = Workers()
        try:
            with _private_sockets(place):
                self._transport = GrpcServer(
                    place.target,
                    {**ifrt_methods(self), **health_methods(lambda: not self._stopping.is_set())},
                    credentials=credentials,
                    authorize=self._reception.authorize,
                    max_message_bytes=options.limits.message_bytes,
                    options=(*server_keepalive(options.heartbeat_timeout), *_connection_limits(options.limits)),
                )
        except BaseException:
            if isinstance(devices, Isolated):
                devices.close()
            raise
        self._address = parse_address(self._transport.address).with_scheme(encrypted=security.is_encrypted)
        self._time_limits = TimeLimits(
            options.limits, self._open_sessions, self._refused_clients, lambda now: strangers.drop(self._address, now)
        )
        self._transport.start()

    @property
    def address(self) -> str:
        """The address for clients, such as ``grpc://127.0.0.1:41235``; with TLS it begins with ``grpcs``."""
        return str(self._address)

    def open_session(self, metadata: Any, send: Callable[[bytes], object], context: CallContext) -> AnySession:
        """Return the session of a new connection, for the transport.

        Args:
            metadata: the client's metadata of the session (``GrpcIfrtSessionMetadata``).
            send: sends a response (a serialized ``IfrtResponse``) to the client; it is called from several threads.
            context: the call of the client.

        Raises:
            UnauthenticatedError: the client may not open a session.
            ResourceExhaustedError: too many sessions are open.
        """
        number, client = self._reception.admit(metadata, context)
        version = Version.from_proto(metadata.version)
        data = attributes_of(metadata.initialization_data)
        takes_batches = data.get(BATCHES) is True
        session: AnySession
        if isinstance(self._devices, Isolated):
            try:
                limits, metrics = self._options.limits, self.metrics
                session = IsolatedSession(
                    self._devices, client, number, version, takes_batches, send, context, limits, metrics
                )
            except BaseException:
                self._reception.forget(number)
                raise
        else:
            assert self._client is not None
            session = Session(
                self._client,
                lambda response: send(response.SerializeToString()),
                self._workers.for_session(),
                version,
                self._options,
                self.metrics,
            )
            session.number, session.hang_up, session.takes_batches = number, context.hang_up, takes_batches
            session.caller, session.peer = client, context.peer
        subdirectory = data.get(SUBDIRECTORY_ATTRIBUTE, "")
        session.transfer_subdirectory = subdirectory if isinstance(subdirectory, str) else "."
        with self._lock:
            self._sessions[session.id] = session
        return session

    def await_refused(self, context: CallContext) -> bool:
        """Return whether a client that is refused a session may wait for the answer to its first request.

        Only a few may, and not for long: strangers could otherwise fill the server with their connections.
        """
        with self._lock:
            if len(self._refused) >= _MOST_REFUSED:
                return False
            self._refused[context] = time.monotonic()
        return True

    def forget_refused(self, context: CallContext) -> None:
        """Note that the connection of a client that was refused a session has ended."""
        with self._lock:
            self._refused.pop(context, None)

    def session(self, number: int) -> AnySession:
        """Return the session with a number, for the transport.

        Raises:
            NotFoundError: there is no such session, or its client has ended it.
            PjrtError: the server has ended it; this is the error that its client gets for all that it has asked.
        """
        with self._lock:
            session, error = self._sessions.get(number), self._ended.get(number)
        if session is not None:
            return session
        if error is not None:
            raise PjrtError.of(error.code, error.message)
        raise NotFoundError("expected the number of an open session, found another one")

    def close_session(self, session: AnySession, reason: str, failure: PjrtError | None = None) -> None:
        """End a session whose connection has ended, for the transport.

        Args:
            session: the session.
            reason: the reason, for the log.
            failure: the error with which this server has ended the connection, if it has.
        """
        with self._lock:
            self._sessions.pop(session.id, None)
            is_last = not self._sessions
            if failure is not None:
                self._ended[session.id] = failure
                if len(self._ended) > _MOST_ENDED:
                    del self._ended[next(iter(self._ended))]
        session.close(reason)
        self._reception.leave(session, reason)
        if is_last:
            release_freed_memory()  # that of its arrays
            self._on_idle()

    def on_idle(self, callback: Callable[[], object]) -> None:
        """Have a function called each time that the last session has ended."""
        self._on_idle = callback

    def status(self) -> dict[str, Any]:
        """Return the open sessions of this moment, as ``pjrt top --json`` prints them; they have no secrets."""
        now = time.monotonic()
        sessions = [
            {
                "number": each.number,
                "client": each.caller,
                "peer": each.peer,
                "process": each.process,
                "seconds": round(now - each.opened, 3),
                "requests": each.requests,
                "arrays": len(each.arrays),
                "executables": len(each.executables),
                "bytes": each.usage.bytes,
            }
            for each in self._open_sessions()
        ]
        return {"device": self._options.name, "address": self.address, "sessions": sessions}

    def _refused_clients(self) -> list[tuple[CallContext, float]]:
        with self._lock:
            return list(self._refused.items())

    def _open_sessions(self) -> list[AnySession]:
        with self._lock:
            return list(self._sessions.values())

    def wait(self) -> None:
        """Wait until the server is stopped."""
        self._transport.wait()

    def stop(self, patience: float | None = 10.0) -> None:
        """End all sessions and stop to listen. May be called again.

        Args:
            patience: the seconds that compilations under way may take to end, ``None`` for any time. They are left
                alone then: XLA's compiler cannot be stopped.
        """
        self._stopping.set()
        self._time_limits.stop()
        for session in self._open_sessions():
            session.close("the server was stopped")  # first, because its thread may wait for a device
        self._transport.stop()
        for session in self._open_sessions():
            self.close_session(session, "the server was stopped")
        if isinstance(self._devices, Isolated):
            self._devices.close()
        if not self._workers.close(patience):
            _log.warning("the server has stopped, and compilations of its clients go on: they cannot be stopped")

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Server of {self._devices!r} at {self.address}>"


def _connection_limits(limits: Limits) -> tuple[tuple[str, int], ...]:
    """Return gRPC's own limits: half of the files stay free for all else, and a handshake of TLS has a time limit."""
    return (
        ("grpc.max_allowed_incoming_connections", max(1, most_open_files() // 2)),
        ("grpc.server_handshake_timeout_ms", max(1, int(limits.open_seconds * 1000))),
    )


@contextlib.contextmanager
def _private_sockets(address: Address) -> Iterator[None]:
    """Make a local socket one of this user alone, while it is bound."""
    if not address.path:
        yield
        return
    mask = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(mask)


def _check_isolated(options: ServeOptions) -> None:
    """Raise an error if a server of clients in processes of their own cannot do what the options ask for."""
    if options.call_function is not None or options.pass_on_call is not None:
        raise InvalidArgumentError("functions are called in the server's process: serve a client of the device")


def serve(
    devices: pjrt.api.client.Client | Isolated,
    address: str = "127.0.0.1:0",
    options: ServeOptions = _DEFAULT_OPTIONS,
    **changes: Any,
) -> Server:
    """Offer the devices of a client to programs in other processes.

    On the loopback interface and on local sockets a connection may be in the clear, and every program of this machine
    may use the devices. Other addresses need TLS, and certificates or access tokens of the clients.

    Args:
        devices: the client whose devices are served; it stays the caller's, who closes it after the server. Or devices
            of which each client has its own, in a process of its own.
        address: where to listen, as ``HOST:PORT`` or ``unix:PATH``; the port 0 takes a free one.
        options: what the server does for its clients.
        changes: fields of ``ServeOptions`` that are other than in the options.

    Returns:
        The server, which listens already; it is a context manager that stops it.

    Raises:
        PermissionDeniedError: other machines could reach the address, and nothing protects it; or a file with a secret
            is not protected from other users.
        InvalidArgumentError: the address is not one, or the files do not fit together.
        NotFoundError: a file cannot be read.
        UnavailableError: the address is in use, or not of this machine.
    """
    return Server(devices, address, replace(options, **changes))
