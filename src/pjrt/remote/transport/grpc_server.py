"""A gRPC server of functions of bytes: a few threads for all short calls, and one for each bidirectional call."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pjrt.api.errors import InvalidArgumentError, UnavailableError, UnimplementedError
from pjrt.remote.transport.calls import Bidirectional, CallContext, Method, ServedCall, context_of
from pjrt.remote.transport.conversation import Conversation
from pjrt.remote.transport.first_messages import FirstMessages
from pjrt.remote.transport.grpc_core import NO_LIMIT, arguments, cygrpc, raw_credentials

_log = logging.getLogger("pjrt.remote")

_WAITING_CALLS = (
    ("grpc.server.max_pending_requests", 1_000_000),
    ("grpc.server.max_pending_requests_hard_limit", 1_000_000),
)
"""The calls that may wait until the server takes them.

gRPC cancels some of more than 1,000 by default, and all of more than 3,000. A client that sends that many small arrays
at once would lose its session: jaxlib's client does not send an array again. A limit of the streams of a connection
does not help, because gRPC refuses those that come before the client knows the limit.
"""

_UNCOMPRESSED = ("grpc.compression_enabled_algorithms_bitset", 1)
"""Only messages that are not compressed: gRPC would take a gigabyte of memory for a message of a megabyte."""

Authorize = Callable[[CallContext], bool | None]
"""A function that checks a call before its method; an exception refuses the call.

It returns false for a caller that has not shown who it is: its method decides, but no long message of it is taken in.
"""


class GrpcServer:
    """A gRPC server.

    Args:
        address: the address and port, such as ``127.0.0.1:0``, or ``unix:PATH``; port 0 is a free one.
        methods: the methods by their paths.
        credentials: grpcio's credentials of a server; ``None`` serves in the clear.
        authorize: refuses calls, by an error.
        max_message_bytes: the longest message that is taken in; -1 is no limit. Host buffers come in pieces.
        threads: the threads for calls that are not bidirectional.
        options: further arguments of gRPC's core.

    Raises:
        UnavailableError: the address cannot be served.
    """

    def __init__(
        self,
        address: str,
        methods: Mapping[str, Method],
        *,
        credentials: Any = None,
        authorize: Authorize | None = None,
        max_message_bytes: int = NO_LIMIT,
        threads: int = 2,
        options: tuple[tuple[str, Any], ...] = (),
    ) -> None:
        self._methods = dict(methods)
        self._authorize = authorize
        self._lock = threading.Lock()
        self._stopping = False
        self._shut = False
        self._active = 0
        self._stopped = threading.Event()
        self._conversations: set[threading.Thread] = set()
        self._first_messages = FirstMessages()
        self._queue = cygrpc.CompletionQueue()
        # Without this option a second server could share the port, and clients would reach the one or the other.
        options = (("grpc.so_reuseport", 0), _UNCOMPRESSED, *_WAITING_CALLS, *options)
        self._server = cygrpc.Server(arguments(max_message_bytes, options), False)
        self._server.register_completion_queue(self._queue)
        self._bidirectional = [path for path, method in self._methods.items() if isinstance(method, Bidirectional)]
        for path in self._bidirectional:
            self._server.register_method(path)
        self._address = self._bind(address, raw_credentials(credentials))
        self._threads = [
            threading.Thread(target=self._serve, name=f"pjrt-remote-calls-{number}", daemon=True)
            for number in range(threads)
        ]

    def _bind(self, address: str, credentials: Any) -> str:
        arguments = () if credentials is None else (credentials,)
        if address.startswith("unix:"):
            _check_socket(Path(address.removeprefix("unix:")))
        try:
            port = self._server.add_http2_port(address.encode(), *arguments)
        except RuntimeError as error:
            raise InvalidArgumentError(f"expected an address such as 127.0.0.1:0, found {address!r}: {error}") from None
        if not port:
            raise UnavailableError(f"cannot serve at {address}: the address is not of this machine, or it is in use")
        return address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"

    @property
    def address(self) -> str:
        """The address with its port."""
        return self._address

    def start(self) -> None:
        """Begin to take calls."""
        self._server.start()
        for path in self._bidirectional:
            self._accept_conversation(path)
        self._accept_call()
        for thread in self._threads:
            thread.start()

    def stop(self, grace: float | None = None) -> None:
        """End all calls, and wait until they are gone. May be called again.

        Args:
            grace: the seconds that calls have to end by themselves; ``None`` ends them at once.
        """
        with self._lock:
            first, self._stopping = not self._stopping, True
            if first:
                self._server.shutdown(self._queue, _STOPPED)
        if first:
            self._stopped.wait(grace or 0)
            with self._lock:
                if not self._stopped.is_set():
                    self._server.cancel_all_calls()
        self._stopped.wait()
        for thread in [*self._conversations, *self._threads]:
            if thread is not threading.current_thread():
                thread.join()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the server has stopped, and return whether it has.

        Args:
            timeout: the limit in seconds; ``None`` waits forever.
        """
        return self._stopped.wait(timeout)

    def _serve(self) -> None:
        """Handle the events of all calls, until the queue is shut down."""
        while True:
            # A message that has come is handled before its time is looked at.
            event = self._queue.poll(self._first_messages.deadline())
            if event.completion_type == cygrpc.CompletionType.queue_shutdown:
                return
            try:
                if event.completion_type == cygrpc.CompletionType.queue_timeout:
                    self._first_messages.expire()
                else:
                    self._handle(event)
            except Exception:  # one call's trouble must not end the service of the others
                _log.exception("a call failed in an unexpected way")
            del event  # it may hold the last reference to a call, which the server's end waits for

    def _handle(self, event: Any) -> None:
        tag = event.tag
        if tag is _STOPPED:
            with self._lock:
                self._shut = True
            self._count(0)
        elif (tag is _CALL or isinstance(tag, _Accept)) and not event.success:
            self._count(-1)  # no call came before the end of the server
        elif tag is _CALL:
            self._accept_call()
            self._begin(event)
        elif isinstance(tag, _Accept):
            self._accept_conversation(tag.path)
            self._converse(event, tag)
        else:
            tag(event)

    # A call counts from the moment that it is asked for. If it counted only when its event is handled, another thread
    # could see the end of the server between the two, and shut the queue down: the next operation of the call would
    # then make gRPC's core end the process.

    def _accept_call(self) -> None:
        """Ask for the next call, unless the server stops."""
        with self._lock:
            if not self._stopping:
                self._server.request_call(self._queue, self._queue, _CALL)
                self._active += 1

    def _accept_conversation(self, path: str) -> None:
        """Ask for the next call of a bidirectional method, unless the server stops."""
        with self._lock:
            if not self._stopping:
                accept = _Accept(path)
                self._server.request_registered_call(accept.queue, self._queue, path, accept)
                self._active += 1

    @contextmanager
    def _until_begun(self) -> Iterator[None]:
        """Count a call as ended if an error keeps it from beginning."""
        try:
            yield
        except BaseException:
            self._count(-1)
            raise

    def _begin(self, event: Any) -> None:
        with self._until_begun():
            path = event.call_details.method.decode()
            context = context_of(event, path)
            method = self._methods.get(path)
            call = ServedCall(event.call, context, method, lambda: self._count(-1), self._first_messages)
        try:
            if method is None:
                raise UnimplementedError(f"this server has no method {path}")
            is_known = self._authorize is None or self._authorize(context) is not False
        except Exception as error:
            call.refuse(error)
        else:
            call.begin(is_known=is_known)

    def _count(self, change: int) -> None:
        """Count the calls; after the last one of a stopped server, free their resources."""
        with self._lock:
            self._active += change
            if self._shut and not self._active and not self._stopped.is_set():
                self._server.destroy()
                self._queue.shutdown()
                self._stopped.set()

    def _converse(self, event: Any, accept: _Accept) -> None:
        with self._until_begun():
            method = self._methods[accept.path]
            assert isinstance(method, Bidirectional)
            context = context_of(event, accept.path)
            conversation = Conversation(event.call, accept.queue, context, self._authorized(method))

            def run() -> None:
                nonlocal conversation
                try:
                    conversation.run()
                finally:
                    del conversation  # and with it the call, before the server may be freed
                    with self._lock:
                        self._conversations.discard(thread)
                    self._count(-1)

            thread = threading.Thread(target=run, name=f"pjrt-remote-{context.peer}", daemon=True)
            with self._lock:  # the thread may end at once, and leaves the set only after this has added it
                thread.start()
                self._conversations.add(thread)

    def _authorized(self, method: Bidirectional) -> Bidirectional:
        authorize = self._authorize
        if authorize is None:
            return method

        def open_authorized(context: CallContext, send: Callable[[bytes], None]) -> Any:
            authorize(context)
            return method.open(context, send)

        return Bidirectional(open_authorized)


class _Accept:
    """The request for the next bidirectional call of a method, with the completion queue of that call."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.queue = cygrpc.CompletionQueue()


_CALL, _STOPPED = "call", "stopped"


def _check_socket(path: Path) -> None:
    """Raise an error if a local socket is in use: gRPC would take the path from the server that listens there.

    Raises:
        UnavailableError: a server listens there, or something else than a socket is there.
    """
    if not path.exists():
        return
    if not path.is_socket():
        raise UnavailableError(
            f"cannot serve at unix:{path}: something else than a socket is there; choose another path"
        )
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return  # its server ended without removing it, and gRPC replaces it
        except OSError:
            pass  # it is another user's, or many clients wait there
    raise UnavailableError(f"cannot serve at unix:{path}: another server uses the path; choose another one")
