"""Checks of one device's behaviour: transfers, donation, errors, threads, leaks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pjrt.api.capability import Capabilities, Feature
from pjrt.api.client import Client
from pjrt.api.element_type import ElementType
from pjrt.api.errors import DataLossError, PjrtError, StatusCode, UnimplementedError
from pjrt.api.future import Future, Promise
from pjrt.api.shape_spec import ShapeSpec
from pjrt.conformance import values
from pjrt.conformance.device.checks import Check, Outcome, Session, Skipped
from pjrt.conformance.device.finding import Finding, Kind
from pjrt.conformance.device.operation_check import shown_inputs
from pjrt.conformance.device.sample import Sample, sample_of
from pjrt.system.memory import peak_resident_bytes, reset_peak_resident_bytes

_SHAPE = (3, 5)


@dataclass(frozen=True, slots=True)
class BehaviourCheck:
    """A check with a function that makes it.

    Attributes:
        name: the name of the check.
        function: makes the check on a client; returns the problem and the program that shows it, a reason to skip it,
            or None.
        new_client: whether the check has a client of its own.
    """

    name: str
    function: Callable[[Client, Sample], Outcome]
    new_client: bool = False

    @property
    def group(self) -> str:
        """The group ``behaviour``."""
        return "behaviour"

    def run(self, session: Session) -> Outcome:
        """Make the check."""
        if not self.new_client:
            return self._run(session.client)
        with session.new_client() as client:
            return self._run(client)

    def _run(self, client: Client) -> Outcome:
        sample = sample_of(client)
        try:
            return self.function(client, sample)
        except PjrtError as error:
            program = "" if self.name.startswith("transfers") else sample.program(_SHAPE)
            return Finding(self.name, Kind.ERROR, error.message, program)


def checks(capabilities: Capabilities) -> Iterator[Check]:
    """Return the checks of a device's behaviour."""
    types = capabilities.element_types
    for element_type in values.EVERY:
        if types is None or element_type in types:
            yield BehaviourCheck(f"transfers of {element_type.mlir}", _transfers(element_type))
    yield BehaviourCheck("arguments that stay unchanged", _unchanged)
    yield BehaviourCheck("donation", _donation)
    yield BehaviourCheck("an argument of another shape", _another_shape)
    yield BehaviourCheck("a deleted argument", _deleted)
    yield BehaviourCheck("an argument that failed", _failed)
    yield BehaviourCheck("a program that is no program", _no_program)
    yield BehaviourCheck("an unknown operation", _unknown_operation)
    yield BehaviourCheck("many runs in flight", _in_flight)
    yield BehaviourCheck("copies that a result sets off", _set_off)
    yield BehaviourCheck("runs from many threads", _threads)
    if capabilities.has(Feature.SERIALIZATION):
        yield BehaviourCheck("serialization", _serialization)
    yield BehaviourCheck("memory of results that nobody holds", _leak)
    yield BehaviourCheck("closing with work in flight", _closing, new_client=True)


def _wrong(name: str, message: str, program: str = "", inputs: Any = ()) -> Finding:
    return Finding(name, Kind.WRONG, message, program, shown_inputs(inputs))


def _transfers(element_type: ElementType) -> Callable[[Client, Sample], Outcome]:
    def check(client: Client, _: Sample) -> Outcome:
        name = f"transfers of {element_type.mlir}"
        for shape in ((), (0, 3), (7,), (3, 1, 5), (1031,)):
            array = values.mixed(element_type, shape)
            forms = {"": array}
            if len(shape) > 1:
                forms["transposed "] = array.transpose()
            for form, each in forms.items():
                try:
                    found = np.asarray(client.buffer_from_host(each))
                except UnimplementedError as error:
                    return Skipped(f"the device has no buffers of it: {error.message}")
                if found.dtype != each.dtype or found.shape != each.shape or found.tobytes() != each.tobytes():
                    label = f"a {form}array of shape {each.shape} came back with other contents"
                    return Finding(name, Kind.WRONG, label, "", shown_inputs([each]), "", str(found)[:300])
        return None

    return check


def _unchanged(client: Client, sample: Sample) -> Outcome:
    program, inputs = sample.program(_SHAPE), sample.inputs(_SHAPE)
    buffers = [client.buffer_from_host(each.copy()) for each in inputs]
    executable = client.compile(program)
    first = np.asarray(executable(*buffers)[0]).copy()
    second = np.asarray(executable(*buffers)[0])
    name = "arguments that stay unchanged"
    for number, (buffer, array) in enumerate(zip(buffers, inputs, strict=True)):
        if np.asarray(buffer).tobytes() != array.tobytes():
            return _wrong(name, f"a run changed argument {number}, which was not donated", program, inputs)
    if first.tobytes() != second.tobytes():
        return _wrong(name, "the second run on the same arguments has another result", program, inputs)
    return None


def _donation(client: Client, sample: Sample) -> Outcome:
    name, program, inputs = "donation", sample.program(_SHAPE, donated=True), sample.inputs(_SHAPE)
    buffers = [client.buffer_from_host(each.copy()) for each in inputs]
    executable = client.compile(program)
    (result,) = executable(*buffers)
    problem = sample.problem(result, inputs)
    if problem:
        return _wrong(name, problem, program, inputs)
    if client.capabilities.has(Feature.DONATION) is False:
        return None
    if not buffers[0].is_deleted:
        return _wrong(name, "the donated argument was not deleted", program, inputs)
    try:
        np.asarray(buffers[0])
    except PjrtError:
        pass
    else:
        return _wrong(name, "the donated argument can still be read", program, inputs)
    for buffer, array in zip(buffers[1:], inputs[1:], strict=True):
        if buffer.is_deleted or np.asarray(buffer).tobytes() != array.tobytes():
            return _wrong(name, "an argument that was not donated was deleted or changed", program, inputs)
    chained = [result, *(client.buffer_from_host(each.copy()) for each in inputs[1:])]
    expected = [sample.expected(inputs), *inputs[1:]]
    problem = sample.problem(executable(*chained)[0], expected)
    return _wrong(name, f"after a second donation: {problem}", program, expected) if problem else None


def _another_shape(client: Client, sample: Sample) -> Outcome:
    program = sample.program(_SHAPE)
    buffers = [client.buffer_from_host(each) for each in sample.inputs((2, 2))]
    return _expect_error(
        "an argument of another shape", program, lambda: np.asarray(client.compile(program)(*buffers)[0])
    )


def _deleted(client: Client, sample: Sample) -> Outcome:
    program = sample.program(_SHAPE)
    buffers = [client.buffer_from_host(each) for each in sample.inputs(_SHAPE)]
    executable = client.compile(program)
    buffers[0].delete()
    return _expect_error("a deleted argument", program, lambda: np.asarray(executable(*buffers)[0]))


def _failed(client: Client, sample: Sample) -> Outcome:
    name, program = "an argument that failed", sample.program(_SHAPE)
    inputs = sample.inputs(_SHAPE)
    error = DataLossError("lost on the way")
    try:
        broken = client.create_error_buffer(error, ShapeSpec(_SHAPE, sample.element_type))
    except UnimplementedError as missing:
        return Skipped(missing.message)
    executable = client.compile(program)
    try:
        np.asarray(executable(broken, *inputs[1:])[0])
    except PjrtError as found:
        if found.code is not StatusCode.DATA_LOSS:
            message = f"expected the error of the argument, DATA_LOSS, found {found.code.name}: {found.message}"
            return Finding(name, Kind.ERROR, message, program)
    else:
        return _wrong(name, "the result of a failed argument has a value, and no error", program)
    problem = sample.problem(executable(*inputs)[0], inputs)
    return _wrong(name, f"the next run: {problem}", program, inputs) if problem else None


def _no_program(client: Client, _: Sample) -> Outcome:
    return _expect_error("a program that is no program", "func.func @main(", lambda: client.compile("func.func @main("))


def _unknown_operation(client: Client, sample: Sample) -> Outcome:
    program = (
        "func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {\n"
        "  %r = stablehlo.custom_call @pjrt_no_such_function(%x) : (tensor<3xf32>) -> tensor<3xf32>\n"
        "  return %r : tensor<3xf32> }"
    )

    def run() -> object:
        return np.asarray(client.compile(program)(np.zeros(3, np.float32))[0])

    return _expect_error("an unknown operation", program, run)


def _expect_error(name: str, program: str, function: Callable[[], object]) -> Outcome:
    try:
        function()
    except PjrtError:
        return None
    return _wrong(name, "expected an error, found that the device went on", program)


def _in_flight(client: Client, sample: Sample) -> Outcome:
    """Run a chain of programs without waiting in between."""
    program, inputs = sample.program(_SHAPE), sample.inputs(_SHAPE)
    executable = client.compile(program)
    buffers: list[Any] = [client.buffer_from_host(each) for each in inputs]
    results = [executable(*buffers)[0] for _ in range(50)]
    for number, result in enumerate(results):
        problem = sample.problem(result, inputs) if number in (0, 49) else ""
        if problem:
            return _wrong("many runs in flight", f"run {number}: {problem}", program, inputs)
    return None


def _set_off(client: Client, sample: Sample) -> Outcome:
    """Read a result, and put it on the device again, in callbacks, on the thread that completes the work before.

    A device that waits on this thread for its own later work hangs here.
    """
    program, inputs = sample.program(_SHAPE), sample.inputs(_SHAPE)
    (result,) = client.compile(program)(*(client.buffer_from_host(each) for each in inputs))
    read: Promise[Any] = Promise()
    again: Promise[Any] = Promise()

    def put(end: Future[Any]) -> None:
        try:
            again.set_result(client.buffer_from_host(np.array(end.result())))
        except Exception as error:
            again.set_error(error)

    def begin(_: Future[None]) -> None:
        try:
            reading = result.to_host()
            reading.add_done_callback(put)
            read.set_result(reading)
        except Exception as error:
            read.set_error(error)

    result.ready().add_done_callback(begin)
    problem = sample.problem(read.future.result().result(), inputs)
    problem = problem or sample.problem(again.future.result(), inputs)
    return _wrong("copies that a result sets off", problem, program, inputs) if problem else None


_THREADS, _RUNS = 8, 5


def _threads(client: Client, sample: Sample) -> Outcome:
    """Compile and run from several threads at the same time, each with shapes and values of its own."""
    problems: list[tuple[str, str, Any]] = []
    barrier = threading.Barrier(_THREADS)

    def work(number: int) -> None:
        shape = (number + 1, 3)
        program, inputs = sample.program(shape), sample.inputs(shape, seed=number)
        try:
            barrier.wait()
            executable = client.compile(program)
            results = [executable(*inputs)[0] for _ in range(_RUNS)]
            problem = next(filter(None, (sample.problem(each, inputs) for each in results)), "")
        except Exception as error:
            problem = f"{type(error).__name__}: {PjrtError.wrap(error).message}"
        if problem:
            problems.append((problem, program, inputs))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not problems:
        return None
    problem, program, inputs = problems[0]
    return _wrong("runs from many threads", f"{len(problems)} of {_THREADS} threads: {problem}", program, inputs)


def _serialization(client: Client, sample: Sample) -> Outcome:
    program, inputs = sample.program(_SHAPE), sample.inputs(_SHAPE)
    restored = client.deserialize(client.compile(program).executable.serialize())
    problem = sample.problem(restored(*inputs)[0], inputs)
    return _wrong("serialization", f"after it: {problem}", program, inputs) if problem else None


_ELEMENTS = 1 << 18
_LEAK_RUNS = 96


def _leak(client: Client, sample: Sample) -> Outcome:
    """Run with large arrays, and see whether the memory of the process grows with the runs."""
    program, inputs = sample.program((_ELEMENTS,)), sample.inputs((_ELEMENTS,))
    executable = client.compile(program)

    def run(times: int) -> int | None:
        for _ in range(times):
            np.asarray(executable(*inputs)[0])
        # A new peak begins at the memory that is in use now.
        return peak_resident_bytes() if reset_peak_resident_bytes() else None

    before = run(_LEAK_RUNS // 3)
    after = run(_LEAK_RUNS)
    if before is None or after is None:
        return Skipped("this system does not report the memory of a process")
    size = inputs[0].nbytes
    if after - before > _LEAK_RUNS // 2 * size:
        message = (
            f"{_LEAK_RUNS} runs with results of {size / 1e6:.1f} MB, which nobody holds, "
            f"left {(after - before) / 1e6:.0f} MB more in use"
        )
        return _wrong("memory of results that nobody holds", message, program)
    statistics = _bytes_in_use(client)
    if statistics is not None and statistics > 16 * size:
        message = f"the device reports {statistics} bytes in use, and no buffer is left"
        return _wrong("memory of results that nobody holds", message, program)
    return None


def _bytes_in_use(client: Client) -> int | None:
    try:
        return client.addressable_devices[0].memory_stats().bytes_in_use
    except PjrtError:
        return None


def _closing(client: Client, sample: Sample) -> Outcome:
    """Start runs and return: the client is closed while they run. A device that waits for ever hangs here."""
    executable = client.compile(sample.program(_SHAPE))
    for _ in range(20):
        executable(*sample.inputs(_SHAPE))
    return None
