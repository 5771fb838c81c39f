"""Ask the framework's process, from a worker: for calls of handlers that were registered there, for the functions that
an execution was given, how custom calls are divided, and for its store.

A question is a message on a socket of its own, and so is what comes back; native/library/ffi.c, partitioner.c and
process.c have their form. Several questions may be open at a time, for example one of each device.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from pjrt.api.buffer import CopyToDeviceStream
from pjrt.api.client import LocalHandler
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, PjrtError, UnavailableError
from pjrt.api.key_value_store import KeyValueStore
from pjrt.api.loaded_executable import HloOutputCallback, RecvCallback, SendCallback
from pjrt.api.protobuf import message_classes
from pjrt.api.shape_spec import ShapeSpec
from pjrt.host_memory.array import HostArray, is_packed, packed, packed_size, unpacked
from pjrt.stablehlo.encodings.hlo_parameters import ELEMENT_TYPES

_CLASSES = message_classes(
    "pjrt_native_questions",
    {
        "Call": {
            "target": (1, "string"),
            "arguments": (2, "[Array]"),
            "results": (3, "[Array]"),
            "attributes": (4, "[Attribute]"),
            "number": (5, "uint64"),
            "store": (6, "Store"),
            "transfer": (7, "Transfer"),
            "partitioner": (8, "Partitioner"),
        },
        "Partitioner": {
            "name": (1, "string"),
            "function": (2, "uint64"),
            "operands": (3, "[Value]"),
            "result": (4, "Value"),
            "config": (5, "bytes"),
        },
        "Value": {"shape": (1, "bytes"), "sharding": (2, "optional bytes")},
        "Divided": {"module": (1, "bytes"), "operands": (2, "[bytes]"), "result": (3, "optional bytes")},
        "Transfer": {
            "token": (1, "uint64"),
            "kind": (2, "int64"),
            "channel": (3, "int64"),
            "data": (4, "bytes"),
            "total": (5, "int64"),
            "is_last": (6, "bool"),
            "granule": (7, "int64"),
            "replica": (8, "int64"),
            "partition": (9, "int64"),
            "operand": (10, "int64"),
            "type": (11, "int64"),
            "dims": (12, "[int64]"),
        },
        "Store": {"key": (1, "optional bytes"), "value": (2, "optional bytes"), "milliseconds": (3, "int64")},
        "Array": {"type": (1, "int64"), "dims": (2, "[int64]"), "data": (3, "bytes")},
        "Attribute": {
            "name": (1, "string"),
            "kind": (2, "int64"),
            "type": (3, "int64"),
            "data": (4, "bytes"),
            "size": (5, "int64"),
            "attributes": (6, "[Attribute]"),
        },
        "Returned": {"code": (1, "uint64"), "message": (2, "bytes"), "data": (3, "bytes"), "number": (4, "uint64")},
    },
)
_Call, _Transfer, _Store, _Array, _Attribute, _Returned = (
    _CLASSES[name] for name in ("Call", "Transfer", "Store", "Array", "Attribute", "Returned")
)
_Partitioner, _Value, _Divided = (_CLASSES[name] for name in ("Partitioner", "Value", "Divided"))

_TOKEN = 17
_ARRAY, _DICTIONARY, _SCALAR, _STRING = 1, 2, 3, 4
_SEND, _RECEIVE, _VALUE = 1, 2, 3
_NUMBERS = {element_type: number for number, element_type in ELEMENT_TYPES.items()}


class Questions:
    """The questions of a worker.

    Args:
        connection: the socket.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()  # guards what follows, and the sending
        self._numbers = itertools.count(1)
        self._open: dict[int, Callable[[Any], object]] = {}
        self._is_over = False
        self._listener = threading.Thread(target=self._listen, name="pjrt-questions", daemon=True)
        self._listener.start()

    def close(self) -> None:
        """Ask nothing any more: what is open ends as if the framework's process were gone."""
        with contextlib.suppress(OSError):  # the other side may have done so
            self._connection.shutdown(socket.SHUT_RDWR)
        self._listener.join()
        self._connection.close()

    def handler(self, target: str) -> LocalHandler:
        """Return the function that a client of the worker registers as the handler of a custom call."""
        return LocalHandler(partial(self.call, target))

    def call(self, target: str, *buffers: HostArray, **attributes: Any) -> None:
        """Call a handler of the framework's process, as a client does that runs a custom call."""
        # Results are writable, and so are tokens, empty arrays that may stand before the first argument.
        first = 1 + max((n for n, each in enumerate(buffers) if not each.flags.writeable), default=-1)
        number = next(self._numbers)
        call = encoded(target, buffers[:first], buffers[first:], attributes, number)
        _fill(buffers[first:], self._ask(number, call, f"the function {target!r}"))

    def send_callback(self, token: int, channel: int) -> SendCallback:
        """Return the function of an execution that takes what the program sends on a channel."""

        def send(data: bytes, total: int, is_last: bool) -> None:
            self._transfer(token=token, kind=_SEND, channel=channel, data=data, total=total, is_last=is_last)

        return SendCallback(channel, send)

    def recv_callback(self, token: int, channel: int) -> RecvCallback:
        """Return the function of an execution that gives what the program receives on a channel, now or later."""

        def receive(stream: CopyToDeviceStream) -> None:
            def bring(returned: Any) -> None:
                # A stream that gets no data fails the execution, with the reason that it knows.
                if returned is not None and not returned.code:
                    stream.add_chunk(returned.data)

            wanted = _Transfer(
                token=token, kind=_RECEIVE, channel=channel, total=stream.total_bytes, granule=stream.granule_size
            )
            number = next(self._numbers)
            self._send(number, _Call(number=number, transfer=wanted).SerializeToString(), bring)

        return RecvCallback(channel, receive)

    def hlo_output_callback(self, token: int, callback: int, num_operands: int) -> HloOutputCallback:
        """Return the function of an execution that takes intermediate values."""

        def tell(replica: int, partition: int, value: HostArray, operand: int) -> None:
            self._transfer(
                token=token,
                kind=_VALUE,
                channel=callback,
                replica=replica,
                partition=partition,
                operand=operand,
                type=int(ElementType.of(value.dtype)),
                dims=value.shape,
                data=np.ascontiguousarray(value).tobytes(),
            )

        return HloOutputCallback(callback, num_operands, tell)

    def _transfer(self, **what: Any) -> None:
        number = next(self._numbers)
        question = _Call(number=number, transfer=_Transfer(**what)).SerializeToString()
        self._ask(number, question, "a callback of the execution")

    def ask_partitioner(
        self,
        name: str,
        function: int,
        operands: Sequence[tuple[bytes, bytes | None]],
        result: tuple[bytes, bytes | None],
        config: bytes,
    ) -> Any:
        """Return what a function says about a custom call that is divided: ``module``, ``operands`` and ``result``.

        Args:
            name: the target of the call.
            function: the number of the function.
            operands: the shape and the sharding of each operand, serialized.
            result: those of the result.
            config: the configuration of the call.

        Raises:
            PjrtError: as the function does.
            UnavailableError: the framework's process is gone.
        """
        (*values, of_result) = (_Value(shape=shape, sharding=sharding) for shape, sharding in (*operands, result))
        asked = _Partitioner(name=name, function=function, operands=values, result=of_result, config=config)
        number = next(self._numbers)
        question = bytes(_Call(number=number, partitioner=asked).SerializeToString())
        return _Divided.FromString(self._ask(number, question, f"the functions that divide {name!r}"))

    def key_value_store(self) -> KeyValueStore:
        """Return the key-value store of the framework's job."""
        return _FrameworkStore(self)

    def ask_store(self, key: str, milliseconds: int = 0, value: bytes | None = None) -> bytes:
        """Return a value of the framework's store, or put one and return nothing.

        Args:
            key: the name.
            milliseconds: the longest time to wait for the value; 0 only looks for it.
            value: what to put.

        Raises:
            PjrtError: as the framework's store does.
            UnavailableError: the framework's process is gone.
        """
        number = next(self._numbers)
        question = _Call(number=number, store=_Store(key=key.encode(), value=value, milliseconds=milliseconds))
        return self._ask(number, bytes(question.SerializeToString()), "the key-value store")

    def _ask(self, number: int, question: bytes, what: str) -> bytes:
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._send(number, question, answers.put)
        returned = answers.get()
        if returned is None:
            raise UnavailableError(f"the framework's process is gone, which has {what}")
        if returned.code:
            raise PjrtError.of(returned.code, returned.message.decode(errors="replace"))
        return bytes(returned.data)

    def _send(self, number: int, question: bytes, answer: Callable[[Any], object]) -> None:
        """Ask, and have the answer called with what comes back; with ``None`` where the framework's process is gone."""
        with self._lock:
            if not self._is_over:
                self._open[number] = answer
                send(self._connection, question)
                return
        answer(None)

    def _listen(self) -> None:
        try:
            while (message := receive(self._connection)) is not None:
                returned = _Returned.FromString(message)
                with self._lock:
                    answer = self._open.pop(returned.number, None)
                if answer is not None:
                    answer(returned)
                del answer, returned  # not held until the next message: whoever gave a stream waits for its end
        finally:
            with self._lock:
                self._is_over = True
                left = list(self._open.values())
            for answer in left:
                answer(None)


class _FrameworkStore(KeyValueStore):
    """The store of the framework whose process asked for the worker's client."""

    def __init__(self, questions: Questions) -> None:
        self._questions = questions

    def get(self, key: str, timeout: float) -> bytes:
        return self._questions.ask_store(key, max(1, min(round(timeout * 1000), 2**31 - 1)))

    def try_get(self, key: str) -> bytes:
        return self._questions.ask_store(key)

    def put(self, key: str, value: bytes) -> None:
        self._questions.ask_store(key, value=bytes(value))


def receive(connection: socket.socket) -> bytes | None:
    """Return the next message; ``None`` where the other side has closed its end."""
    head = _read(connection, 8)
    return None if head is None else _read(connection, int.from_bytes(head, "little"))


def _read(connection: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)


def send(connection: socket.socket, message: bytes) -> None:
    """Send a message."""
    connection.sendall(len(message).to_bytes(8, "little") + message)


def array_of(spec: ShapeSpec | None) -> bytes:
    """Return an array of a call, to which its bytes are added; ``None`` for a token."""
    if spec is None:
        return bytes(_Array(type=_TOKEN).SerializeToString())
    return bytes(_Array(type=_NUMBERS[spec.element_type], dims=spec.shape).SerializeToString())


def arrays_of(message: bytes) -> list[HostArray]:
    """Return the arguments of a call whose arrays are as they are on the host: a byte or more for each element."""
    return [
        np.frombuffer(each.data, ELEMENT_TYPES[each.type].dtype).reshape(each.dims)
        for each in _Call.FromString(message).arguments
    ]


def encoded_call(target: str, attributes: Mapping[str, Any]) -> bytes:
    """Return a call to which its arrays are added."""
    return bytes(_Call(target=target, attributes=_attributes(attributes)).SerializeToString())


def encoded(
    target: str,
    arguments: Sequence[HostArray],
    results: Sequence[HostArray],
    attributes: Mapping[str, Any],
    number: int,
) -> bytes:
    """Return a call as the framework's process reads it; its answer will have the same number."""
    call = _Call(
        target=target,
        arguments=map(_array, arguments),
        results=map(_array, results),
        attributes=_attributes(attributes),
        number=number,
    )
    return bytes(call.SerializeToString())


def _array(values: HostArray) -> Any:
    element_type = ElementType.of(values.dtype)
    data = packed(values, element_type) if is_packed(element_type) else np.ascontiguousarray(values)
    return _Array(type=_NUMBERS[element_type], dims=values.shape, data=data.tobytes())


def _fill(results: Sequence[HostArray], data: bytes) -> None:
    """Write the bytes of all results into them."""
    memory, place = np.frombuffer(data, np.uint8), 0
    for result in results:
        element_type = ElementType.of(result.dtype)
        if is_packed(element_type):
            size = packed_size(result.size, element_type)
            result[...] = unpacked(memory[place : place + size], result.shape, element_type)
        else:
            size = result.nbytes
            result[...] = memory[place : place + size].view(result.dtype).reshape(result.shape)
        place += size


def _attributes(values: Mapping[str, Any]) -> list[Any]:
    """Return attributes in the order of their names' bytes, in which handlers look for them."""
    return [_attribute(name, values[name]) for name in sorted(values, key=str.encode)]


def _attribute(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return _Attribute(name=name, kind=_STRING, data=value.encode())
    if isinstance(value, Mapping):
        return _Attribute(name=name, kind=_DICTIONARY, attributes=_attributes(value))
    values = np.asarray(value)
    try:
        array = _array(values)
    except InvalidArgumentError:
        raise InvalidArgumentError(
            f"expected numbers, text or a dictionary as the attribute {name!r}, found {type(value).__name__}"
        ) from None
    kind = _ARRAY if values.ndim else _SCALAR
    return _Attribute(name=name, kind=kind, type=array.type, data=array.data, size=values.size)
