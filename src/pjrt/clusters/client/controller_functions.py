"""Functions of the controller that its workers call: FFI handlers that only this process can run."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from pjrt.api.author_errors import from_author
from pjrt.api.local_handler import LocalHandler
from pjrt.clusters.workers.long_values import LongValues, messages_with
from pjrt.distributed.messages import Message


class ControllerFunctions:
    """The functions, by number, and the calls of them that come from workers.

    Args:
        send: sends a message to a worker, given its number.
    """

    def __init__(self, send: Callable[[int, Message], object]) -> None:
        self._send = send
        self._values = LongValues()
        self._functions: list[LocalHandler] = []

    def number_of(self, function: LocalHandler) -> int:
        """Return the number by which workers call a function."""
        if function not in self._functions:
            self._functions.append(function)
        return self._functions.index(function)

    def receive(self, index: int, message: Message) -> None:
        """Take a message of a worker: one with a call, or a part of one, or the last one of a worker that is gone."""
        if message["type"] == "gone":
            self._values.forget(index)
            return
        call = self._values.add(index, message)
        if call is not None:
            # A call may take as long as its author likes; a device makes one at a time.
            arguments = index, message["number"], call
            threading.Thread(target=self._answer, args=arguments, name="pjrt-cluster-call", daemon=True).start()

    def _answer(self, index: int, number: int, call: bytes) -> None:
        try:
            answer = pickle.dumps((None, self._results(call)), protocol=pickle.HIGHEST_PROTOCOL)
        except BaseException as error:
            failure = from_author(error)
            answer = pickle.dumps(((failure.code.name, failure.message), ()))
        for message in messages_with("answer", number, answer):
            self._send(index, message)

    def _results(self, call: bytes) -> list[np.ndarray[Any, Any]]:
        number, buffers, attributes = pickle.loads(call)
        results = []
        for position, buffer in enumerate(buffers):
            if isinstance(buffer, tuple):
                buffers[position] = np.zeros(*buffer)
                results.append(buffers[position])
            else:
                buffer.flags.writeable = False
        self._functions[number](*buffers, **attributes)
        return results
