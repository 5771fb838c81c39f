"""Bidirectional calls: each has a completion queue and a thread of its own, which handles the messages."""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import Any

from pjrt.api.errors import PjrtError, StatusCode
from pjrt.remote.transport import first_messages
from pjrt.remote.transport.calls import Bidirectional, CallContext, Receiver, Refusal, status_of
from pjrt.remote.transport.grpc_core import NO_FLAGS, Outbox, cygrpc

_NOW = 0.0
"""The deadline of a poll that does not wait: it is in the past."""

_PATIENCE = 1.0
"""The seconds that the first message of a refused caller may take to come; the core holds some MiB of it."""

_MAX_HELD = 64
"""The responses that may wait while more requests are there to be handled."""

_REFUSING = threading.Semaphore(first_messages.AT_ONCE)

_RECEIVED, _SENT, _CLOSED, _STARTED, _ENDED = "received", "sent", "closed", "started", "ended"


class Conversation:
    """One bidirectional call, with a completion queue of its own, which one thread polls.

    The thread handles one message after the other. It asks for the next one before it handles one, and for no more: the
    flow control of HTTP/2 holds back a client that sends faster than its requests are handled. Nor does it ask while
    many responses wait for a client that does not read them.

    Responses wait until no further request is there: the requests of one step of a program, which a client sends in a
    row, are answered by one write to the socket, and wake the client once.

    Args:
        call: the call.
        queue: its completion queue.
        context: the facts about the call.
        method: its method.
    """

    MAX_WAITING = 4096
    """The responses that may wait for the client before its further requests are held back."""

    def __init__(self, call: Any, queue: Any, context: CallContext, method: Bidirectional) -> None:
        self._call = call
        self._queue = queue
        self._context = dataclasses.replace(context, hang_up=self._hang_up)
        self._method = method
        self._lock = threading.Lock()
        self._status_sent = False
        self._outbox = Outbox(call.start_server_batch, _SENT)
        self._thread = 0

    def run(self) -> None:
        """Handle the call until its end."""
        self._thread = threading.get_ident()
        start = self._call.start_server_batch
        start((cygrpc.ReceiveCloseOnServerOperation(NO_FLAGS),), _CLOSED)
        start((cygrpc.SendInitialMetadataOperation(None, NO_FLAGS),), _STARTED)
        code, details = int(StatusCode.OK), b""
        try:
            receiver = self._method.open(self._context, self._send)
        except Refusal as refusal:
            code, details = status_of(refusal.error, self._context.method)
            self._refuse(refusal)
        except Exception as error:
            code, details = status_of(error, self._context.method)
        else:
            try:
                self._converse(receiver)
            except Exception as error:
                code, details = status_of(error, self._context.method)
            finally:
                receiver.close("the connection of the client has ended")
        self._end(code, details)

    def _send(self, message: bytes) -> None:
        """Send a message. One that answers the request in hand waits until no request is there to be handled."""
        if threading.get_ident() == self._thread:
            self._outbox.hold(message)
        else:
            self._outbox.send(message)

    def _refuse(self, refusal: Refusal) -> None:
        """Answer the first message of a caller that is refused, if it has come and is short."""
        try:
            self._poll_until(time.time() + _PATIENCE)
            with _REFUSING:
                self._call.start_server_batch((cygrpc.ReceiveMessageOperation(NO_FLAGS),), _RECEIVED)
                message = self._poll_until(time.time() + first_messages.SECONDS)
            if message is not None:
                refusal.answer(message)
        except PjrtError:  # what it sent is no request
            pass
        finally:
            refusal.forget()

    def _poll_until(self, deadline: float) -> bytes | None:
        """Return the message that comes before a time; ``None`` if there is none, or the caller has gone."""
        while (event := self._queue.poll(deadline)).tag is not None:
            if event.tag is _RECEIVED:
                message: bytes | None = event.batch_operations[0].message()
                return message
        return None

    def _converse(self, receiver: Receiver) -> None:
        call, poll, outbox, receive = self._call, self._queue.poll, self._outbox, receiver.receive
        call.start_server_batch((cygrpc.ReceiveMessageOperation(NO_FLAGS),), _RECEIVED)
        is_receiving = True
        holds_messages = False
        while True:
            event = poll(_NOW) if holds_messages else poll()
            tag = event.tag
            if tag is _RECEIVED:
                message = event.batch_operations[0].message()
                if message is None:
                    return
                is_receiving = len(outbox) < self.MAX_WAITING
                if is_receiving:
                    call.start_server_batch((cygrpc.ReceiveMessageOperation(NO_FLAGS),), _RECEIVED)
                receive(message)
                holds_messages = not outbox.idle
                if len(outbox) >= _MAX_HELD:
                    outbox.flush()
            elif tag is _SENT:
                outbox.sent(event.success)
                if not is_receiving and len(outbox) < self.MAX_WAITING // 2:
                    call.start_server_batch((cygrpc.ReceiveMessageOperation(NO_FLAGS),), _RECEIVED)
                    is_receiving = True
            elif tag is None:  # no request is there
                outbox.flush()
                holds_messages = False
            elif tag is _CLOSED and event.batch_operations[0].cancelled() and not is_receiving:
                return

    def _end(self, code: int, details: bytes) -> None:
        """Send the status after the last message, and wait for the end of all operations."""
        self._outbox.close(drop=False)
        self._outbox.flush()
        while not self._outbox.idle:
            event = self._queue.poll()
            if event.tag is _SENT:
                self._outbox.sent(event.success)
        self._outbox.end()
        self._send_status(code, details)
        self._queue.shutdown()
        while self._queue.poll().completion_type != cygrpc.CompletionType.queue_shutdown:
            pass

    def _hang_up(self, error: PjrtError) -> None:
        """End the call from another thread: the client gets the status, and the polling thread the end of the call."""
        self._outbox.close(drop=True)
        self._send_status(*status_of(error, self._context.method))

    def _send_status(self, code: int, details: bytes) -> None:
        with self._lock:  # after the queue's shutdown nothing may start
            if self._status_sent:
                return
            self._status_sent = True
            status = cygrpc.SendStatusFromServerOperation(None, code, details, NO_FLAGS)
            self._call.start_server_batch((status,), _ENDED)
