"""Calls of functions between a controller and its workers, as bytes, both ways.

A controller calls functions on its hosts, and workers call FFI handlers that only the process of their controller can
run.
"""

from __future__ import annotations

import base64
import importlib
import io
import itertools
import pickle
import threading
import traceback
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np

from pjrt.api.buffer import Buffer
from pjrt.api.client import LocalHandler
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, PjrtError, StatusCode, UnimplementedError, from_author
from pjrt.api.future import Promise
from pjrt.distributed.messages import MAX_BYTES, Message
from pjrt.host_memory.array import array_dtype

# From the controller: a call runs any code in the worker, and its result may run code in the controller, because it is
# any object that the user's function returns, and what makes that is pickle. Both have shown before that they belong to
# the cluster, and trust each other so; the page on clusters says it.

HostArray = np.ndarray[Any, Any]

Function = Callable[..., Any] | str
"""A function, or its place as ``module:function``, which every worker can import."""


def written(call: Function | Sequence[Any], arguments: Any, number_of: Callable[[Buffer], int | None]) -> bytes:
    """Return a call for one worker.

    Args:
        call: the function.
        arguments: its arguments.
        number_of: returns the number of a buffer among the values that go with the call; ``None`` for a buffer of
            another host.

    Raises:
        InvalidArgumentError: the function or an argument cannot be sent.
    """
    stream = io.BytesIO()
    try:
        _pickler(stream, number_of).dump((call, arguments))
    except Exception as error:
        raise InvalidArgumentError(
            f"{call!r} and its arguments cannot be sent to the workers ({type(error).__name__}: {error}); give a "
            "function of a module that the workers can import, or install the package cloudpickle"
        ) from error
    return stream.getvalue()


def result_of(answer: bytes) -> Any:
    """Return the value in the answer of a worker."""
    return pickle.loads(answer)


def call_function(call: bytes, values: Sequence[HostArray]) -> tuple[bytes, Sequence[Any]]:
    """Make a call in this process, and return its result as bytes and its arrays; the server of a worker calls it.

    Raises:
        PjrtError: the function cannot be loaded, raises an exception, or its result cannot be sent.
    """
    try:
        function, (arguments, numbers) = _Unpickler(io.BytesIO(call), values).load()
        if isinstance(function, str):
            function = _imported(function)
        if numbers is not None:  # a call for each of several arrays, some of which are the same
            arrays = [np.asarray(function(*each)) for each in arguments]
            return b"", [arrays[number] for number in numbers]
        stream = io.BytesIO()
        _pickler(stream, _refuse).dump(function(*arguments))
        return stream.getvalue(), ()
    except PjrtError:
        raise
    except Exception as error:
        traceback.print_exc()  # the worker's output comes with the host's name
        raise PjrtError.wrap(error, "in a function on this host; its traceback is in the worker's output") from error


def _imported(place: str) -> Any:
    module, separator, name = place.partition(":")
    if not separator:
        raise InvalidArgumentError(f"expected a function, or its place as 'module:function', found {place!r}")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InvalidArgumentError(f"the function {place!r} cannot be loaded on this host: {error}") from error


def _refuse(buffer: Buffer) -> int | None:
    raise InvalidArgumentError("expected a result without buffers; return a numpy array, which is copied")


def _pickler(stream: io.BytesIO, number_of: Callable[[Buffer], int | None]) -> pickle.Pickler:
    """Return a pickler for which buffers are numbers; functions of scripts need the package cloudpickle."""
    try:
        base = importlib.import_module("cloudpickle").Pickler
    except ImportError:
        base = pickle.Pickler

    class Pickler(base):  # type: ignore[misc, valid-type]  # chosen above
        def persistent_id(self, value: Any) -> Any:
            return ("buffer", number_of(value)) if isinstance(value, Buffer) else None

    return Pickler(stream, protocol=pickle.HIGHEST_PROTOCOL)


class _Unpickler(pickle.Unpickler):
    """Reads a call; the buffers are the values that came with it."""

    def __init__(self, stream: io.BytesIO, values: Sequence[HostArray]) -> None:
        super().__init__(stream)
        self._values = values

    def persistent_load(self, reference: Any) -> Any:
        _, number = reference
        return None if number is None else self._values[number]


# From the workers: calls and answers are plain data (``pjrt.host.processes``). A worker says which function it calls,
# and runs no code of its own in the controller. They go as pieces in the messages of the link, which are short lines.

_PIECE_BYTES = MAX_BYTES // 2  # base64 and the rest of the line need less than the other half


def messages_with(kind: str, number: int, value: bytes) -> Iterator[Message]:
    """Yield the messages that carry a value.

    Args:
        kind: the type of the messages.
        number: the number that the values of one sender differ in.
        value: the value.
    """
    for begin in range(0, len(value) or 1, _PIECE_BYTES):
        end = begin + _PIECE_BYTES
        piece = base64.b64encode(value[begin:end]).decode()
        yield {"type": kind, "number": number, "piece": piece, "is_last": end >= len(value)}


class LongValues:
    """The values of which some messages have come."""

    def __init__(self) -> None:
        self._pieces: dict[tuple[Hashable, int], list[bytes]] = {}

    def add(self, sender: Hashable, message: Message) -> bytes | None:
        """Take a message, and return the value if it is whole now."""
        key = sender, message["number"]
        pieces = self._pieces.setdefault(key, [])
        pieces.append(base64.b64decode(message["piece"]))
        return b"".join(self._pieces.pop(key)) if message["is_last"] else None

    def forget(self, sender: Hashable) -> None:
        """Drop the pieces of a sender that is gone."""
        self._pieces = {key: pieces for key, pieces in self._pieces.items() if key[0] != sender}


class ControllerCalls:
    """The calls of a worker that have no answer yet.

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
        from pjrt.host.processes import pack, unpack  # here: few workers need it

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


class ControllerFunctions:
    """The functions of a controller, by number, and the calls of them that come from workers.

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
        from pjrt.host.processes import pack  # here: few clusters need the host runtime

        try:
            answer = pack((None, self._results(call)))
        except BaseException as error:
            failure = from_author(error)
            answer = pack(((failure.code.name, failure.message), ()))
        for message in messages_with("answer", number, answer.tobytes()):
            self._send(index, message)

    def _results(self, call: bytes) -> list[np.ndarray[Any, Any]]:
        from pjrt.host.processes import unpack

        number, buffers, attributes = unpack(np.frombuffer(call, np.uint8))
        results = []
        for position, buffer in enumerate(buffers):
            if isinstance(buffer, tuple):
                element, shape = buffer
                buffers[position] = np.zeros(shape, array_dtype(ElementType[element]))
                results.append(buffers[position])
        self._functions[number](*buffers, **attributes)
        return results
