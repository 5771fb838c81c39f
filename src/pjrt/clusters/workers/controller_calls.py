"""The calls that a worker makes of functions of its controller: FFI handlers that only that process can run."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import PjrtError, StatusCode, UnimplementedError
from pjrt.api.future import Promise
from pjrt.clusters.workers.long_values import LongValues, messages_with
from pjrt.distributed.messages import Message


class ControllerCalls:
    """The calls that have no answer yet.

    Args:
        report: sends a message to the controller, as ``ControllerLink.report`` does.
    """

    def __init__(self, report: Callable[..., object]) -> None:
        self._report = report
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._values = LongValues()
        self._answers: dict[int, Promise[bytes]] = {}
        self._handlers: dict[int, Callable[..., None]] = {}
        self._error: PjrtError | None = None

    def handler(self, function: int) -> Callable[..., None]:
        """Return the FFI handler that calls a function of the controller, the same one each time.

        Args:
            function: the number that the function has in the controller.
        """

        def handler(*buffers: Any, **attributes: Any) -> None:
            self._call(function, buffers, attributes)

        return self._handlers.setdefault(function, handler)

    def receive(self, message: Message) -> None:
        """Take a message with an answer, or with a part of one."""
        value = self._values.add(None, message)
        if value is not None:
            with self._lock:
                promise = self._answers.pop(message["number"], None)
            if promise is not None:
                promise.set_result(value)

    def close(self, error: PjrtError) -> None:
        """Give an error to the calls that wait, and to later ones: no more answers come."""
        with self._lock:
            self._error = error
            answers, self._answers = self._answers, {}
        for promise in answers.values():
            promise.set_error(error)

    def _call(self, function: int, buffers: Sequence[Any], attributes: dict[str, Any]) -> None:
        from pjrt.host.message import pack, unpack  # here: few workers need it

        if not all(isinstance(buffer, np.ndarray) for buffer in buffers):
            raise UnimplementedError(
                "functions of the controller get values in the memory of the host, and this device's are in its own"
            )
        # The results go there as their types.
        results = [buffer for buffer in buffers if buffer.flags.writeable]
        sent = [(ElementType.of(b.dtype).name, b.shape) if b.flags.writeable else b for b in buffers]
        call = pack((function, sent, attributes)).tobytes()
        failure, values = unpack(np.frombuffer(self._answer(call).result(), np.uint8))
        if failure is not None:
            raise PjrtError.of(StatusCode[failure[0]], failure[1])
        for result, value in zip(results, values, strict=True):
            result[...] = value

    def _answer(self, call: bytes) -> Any:
        promise: Promise[bytes] = Promise()
        with self._lock:
            if self._error is not None:
                raise self._error
            number = next(self._numbers)
            self._answers[number] = promise
        for message in messages_with("call", number, call):
            self._report(message.pop("type"), **message)
        return promise.future
