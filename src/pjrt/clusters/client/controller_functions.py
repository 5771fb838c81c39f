"""Functions of the controller that its workers call: FFI handlers that only this process can run.

Calls and answers are plain data (``pjrt.host.message``): a worker says which function it calls, and runs no code of its
own here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from pjrt.api.client import LocalHandler
from pjrt.api.element_type import ElementType
from pjrt.api.errors import from_author
from pjrt.clusters.workers.long_values import LongValues, messages_with
from pjrt.distributed.messages import Message
from pjrt.host_memory.array import array_dtype


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
        from pjrt.host.message import pack  # here: few clusters need the host runtime

        try:
            answer = pack((None, self._results(call)))
        except BaseException as error:
            failure = from_author(error)
            answer = pack(((failure.code.name, failure.message), ()))
        for message in messages_with("answer", number, answer.tobytes()):
            self._send(index, message)

    def _results(self, call: bytes) -> list[np.ndarray[Any, Any]]:
        from pjrt.host.message import unpack

        number, buffers, attributes = unpack(np.frombuffer(call, np.uint8))
        results = []
        for position, buffer in enumerate(buffers):
            if isinstance(buffer, tuple):
                element, shape = buffer
                buffers[position] = np.zeros(shape, array_dtype(ElementType[element]))
                results.append(buffers[position])
        self._functions[number](*buffers, **attributes)
        return results
