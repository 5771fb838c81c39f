"""Calls of functions of the controller by workers, without processes: what each side sends arrives at the other."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pjrt.api.client import LocalHandler
from pjrt.api.errors import InvalidArgumentError, NotFoundError, UnavailableError, UnimplementedError
from pjrt.clusters.calls import ControllerCalls, ControllerFunctions, LongValues, messages_with
from pjrt.distributed.messages import MAX_BYTES, Message, line

LIMIT = 60


def carried(message: Message) -> Message:
    """Return a message as the other side reads it."""
    text = line(**message)
    assert len(text) <= MAX_BYTES
    result: Message = json.loads(text)
    return result


class Pair:
    """The two sides, with a worker of the number 5."""

    def __init__(self) -> None:
        self.functions = ControllerFunctions(lambda index, message: self.calls.receive(carried(message)))
        self.calls = ControllerCalls(
            lambda kind, **fields: self.functions.receive(5, carried({"type": kind, **fields}))
        )

    def handler(self, function: Callable[..., Any]) -> Callable[..., None]:
        """Return what a worker calls for a function of the controller."""
        return self.calls.handler(self.functions.number_of(LocalHandler(function)))


def read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


def test_operands_go_there_and_results_come_back() -> None:
    seen: list[Any] = []

    def add(a: Any, b: Any, out: Any, rest: Any, *, factor: int) -> None:
        seen.extend([a.flags.writeable, out.flags.writeable, rest.tolist(), threading.current_thread().name])
        out[...] = (a + b) * factor

    out, rest = np.full((2, 3), 9, np.float32), np.full(2, 7, ml_dtypes.bfloat16)
    a = read_only(np.arange(6, dtype=np.float32).reshape(2, 3).T.copy().T)
    Pair().handler(add)(a, read_only(np.float32([[1], [2]])), out, rest, factor=np.int64(2))
    np.testing.assert_array_equal(out, [[2, 4, 6], [10, 12, 14]])
    assert rest.tolist() == [0, 0]
    assert seen == [False, True, [0, 0], "pjrt-cluster-call"]


def test_long_values_are_carried_in_pieces() -> None:
    large = np.arange(500_000, dtype=np.float64)
    out = np.zeros_like(large)
    Pair().handler(lambda a, out: np.copyto(out, -a))(read_only(large), out)
    np.testing.assert_array_equal(out, -large)


def test_an_error_has_the_code_and_the_place() -> None:
    def fail(*buffers: Any) -> None:
        raise NotFoundError("expected the key") if buffers else ValueError("no buffers")

    handler = Pair().handler(fail)
    with pytest.raises(NotFoundError, match="expected the key"):
        handler(read_only(np.zeros(1)))
    with pytest.raises(InvalidArgumentError, match=r"ValueError: no buffers \(test_controller_calls.py:\d+ in fail\)"):
        handler()


class Code:
    """A value that runs a function where it is unpickled."""

    def __reduce__(self) -> Any:
        return _runs, ()


RAN: list[str] = []


def _runs() -> tuple[int, list[Any], dict[str, Any]]:
    RAN.append("code of the worker")
    return 0, [], {}


def test_a_worker_runs_no_code_in_the_controller() -> None:
    answered = threading.Event()
    answers = LongValues()
    failures: list[bytes] = []

    def receive(index: int, message: Message) -> None:
        if (answer := answers.add(None, carried(message))) is not None:
            failures.append(answer)
            answered.set()

    functions = ControllerFunctions(receive)
    functions.number_of(LocalHandler(lambda: None))
    for message in messages_with("call", 1, pickle.dumps(Code())):
        functions.receive(5, carried(message))
    assert answered.wait(LIMIT)
    assert b"DATA_LOSS" in failures[0]
    assert not RAN


def test_a_function_has_one_number_and_one_handler() -> None:
    pair, first, second = Pair(), LocalHandler(print), LocalHandler(print)
    numbers = [pair.functions.number_of(each) for each in (first, second, first)]
    assert numbers == [0, 1, 0]
    assert pair.calls.handler(0) is pair.calls.handler(0)
    assert pair.calls.handler(0) is not pair.calls.handler(1)


def test_values_on_a_device_are_refused() -> None:
    with pytest.raises(UnimplementedError, match="memory of the host"):
        Pair().handler(print)(object())


def test_the_end_fails_calls_that_wait_and_later_ones() -> None:
    pair, begun, gate = Pair(), threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def wait() -> None:
        begun.set()
        gate.wait(LIMIT)

    def call() -> None:
        try:
            pair.handler(wait)()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    assert begun.wait(LIMIT)
    pair.calls.close(UnavailableError("it is over"))
    thread.join(LIMIT)
    assert [str(error) for error in errors] == ["UNAVAILABLE: it is over"]
    gate.set()  # the late answer is dropped
    with pytest.raises(UnavailableError, match="it is over"):
        pair.handler(wait)()


@given(st.lists(st.binary(max_size=3 * MAX_BYTES // 2), min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_values_of_several_senders_may_come_mixed(values: list[bytes], random: Any) -> None:
    queues = [[(sender, each) for each in messages_with("call", 3, value)] for sender, value in enumerate(values)]
    found: dict[int, bytes] = {}
    received = LongValues()
    while any(queues):
        sender, message = random.choice([queue for queue in queues if queue]).pop(0)
        value = received.add(sender, carried(message))
        if value is not None:
            assert sender not in found
            found[sender] = value
    assert [found[sender] for sender in range(len(values))] == values


def test_the_pieces_of_a_worker_that_is_gone_are_dropped() -> None:
    received = LongValues()
    first, second = messages_with("call", 0, bytes(MAX_BYTES // 2 + 1))
    assert received.add(1, first) is None
    received.forget(1)
    assert received.add(1, second) == b"\0"
