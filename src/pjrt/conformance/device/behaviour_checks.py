"""Checks of a device's behaviour: transfers, donation, errors, threads, leaks; of several devices; and of JAX on it."""

from __future__ import annotations

import contextlib
import importlib.util
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pjrt.api.capability import Capabilities, Feature
from pjrt.api.client import Client
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.element_type import ElementType
from pjrt.api.errors import DataLossError, PjrtError, StatusCode, UnimplementedError
from pjrt.api.future import Future, Promise
from pjrt.api.shape_spec import ShapeSpec
from pjrt.conformance import values
from pjrt.conformance.device.checks import (
    Check,
    Finding,
    Kind,
    Outcome,
    Sample,
    Session,
    Skipped,
    sample_of,
    shown,
    shown_inputs,
)
from pjrt.conformance.judge import first_difference
from pjrt.conformance.operation_table import ROUNDED, Array
from pjrt.devices.reference.plugin import ReferencePlugin
from pjrt.host_memory.difference import Difference
from pjrt.system.processes import peak_resident_bytes, reset_peak_resident_bytes

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


def behaviour_checks(capabilities: Capabilities) -> Iterator[Check]:
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
                forms[", transposed,"] = array.transpose()
            for form, each in forms.items():
                try:
                    found = np.asarray(client.buffer_from_host(each))
                except UnimplementedError as error:
                    return Skipped(f"the device has no buffers of it: {error.message}")
                if (found.dtype, found.shape, _bits(found)) != (each.dtype, each.shape, _bits(each)):
                    label = f"an array of shape {each.shape}{form} came back with other contents"
                    return Finding(name, Kind.WRONG, label, "", shown_inputs([each]), shown(each), shown(found))
        return None

    def _bits(array: Array) -> bytes:
        # The bits above an element of less than a byte say nothing.
        data, width = array.tobytes(), element_type.bits
        return data if width >= 8 else bytes(each & ((1 << width) - 1) for each in data)

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


# Several devices: copies, replicas with collectives, programs of several partitions.

_DEVICES = 2
_GROUP = "replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>"
_ADD = (
    "({ ^bb0(%a: tensor<f32>, %b: tensor<f32>): %s = stablehlo.add %a, %b : tensor<f32> "
    '"stablehlo.return"(%s) : (tensor<f32>) -> () })'
)
_COLLECTIVES = {
    "all_reduce": (f'"stablehlo.all_reduce"(%x) <{{{_GROUP}}}> {_ADD}', "4x3xf32"),
    "all_gather": (f'"stablehlo.all_gather"(%x) <{{all_gather_dim = 0 : i64, {_GROUP}}}>', "8x3xf32"),
    "reduce_scatter": (
        f'"stablehlo.reduce_scatter"(%x) <{{scatter_dimension = 0 : i64, {_GROUP}}}> {_ADD}',
        "2x3xf32",
    ),
    "all_to_all": (
        '"stablehlo.all_to_all"(%x) <{split_dimension = 0 : i64, concat_dimension = 1 : i64, split_count = 2 : i64, '
        f"{_GROUP}}}>",
        "2x6xf32",
    ),
    "collective_permute": (
        '"stablehlo.collective_permute"(%x) <{source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}>',
        "4x3xf32",
    ),
    "collective_broadcast": (
        '"stablehlo.collective_broadcast"(%x) <{replica_groups = dense<[[1, 0]]> : tensor<1x2xi64>}>',
        "4x3xf32",
    ),
}
_SHARDED = (
    'module {\n  sdy.mesh @mesh = <["d"=2]>\n'
    '  func.func @main(%x: tensor<8x3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}) -> '
    '(tensor<8x3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}) {\n'
    "    %r = stablehlo.add %x, %x : tensor<8x3xf32>\n    return %r : tensor<8x3xf32> }\n}"
)


@dataclass(frozen=True, slots=True)
class DevicesCheck:
    """A check with a client of two devices.

    Attributes:
        name: the name of the check.
        function: makes the check.
    """

    name: str
    function: Callable[[Client], Outcome]

    @property
    def group(self) -> str:
        """The group ``devices``."""
        return "devices"

    def run(self, session: Session) -> Outcome:
        """Make the check, if the device can have two devices."""
        try:
            client = session.new_client(num_devices=_DEVICES)
        except (PjrtError, TypeError) as error:
            return Skipped(f"the device has no client of two devices (num_devices=2): {error}")
        with client:
            if len(client.addressable_devices) < _DEVICES:
                return Skipped(f"the device has {len(client.addressable_devices)} devices, expected 2 or more")
            return self.function(client)


def devices_checks() -> Iterator[Check]:
    """Return the checks of several devices."""
    yield DevicesCheck("copies between devices", _copies)
    yield DevicesCheck("a run on the second device", _second_device)
    for operation, (text, result) in _COLLECTIVES.items():
        program = (
            f"func.func @main(%x: tensor<4x3xf32>) -> tensor<{result}> {{\n"
            f"  %r = {text} : (tensor<4x3xf32>) -> tensor<{result}>\n  return %r : tensor<{result}> }}"
        )
        yield DevicesCheck(f"replicas with stablehlo.{operation}", _replicas(operation, program))
    program = (
        "func.func @main(%x: tensor<4x3xf32>) -> tensor<ui32> {\n"
        "  %r = stablehlo.replica_id : tensor<ui32>\n  return %r : tensor<ui32> }"
    )
    yield DevicesCheck("replicas with stablehlo.replica_id", _replicas("replica_id", program))
    yield DevicesCheck("a program of two partitions", _partitions)


def _copies(client: Client) -> Outcome:
    first, second = client.addressable_devices[:_DEVICES]
    for element in (ElementType.F32, ElementType.S8, ElementType.PRED):
        for shape in ((), (0, 3), (7,), (1031,)):
            array = values.mixed(element, shape)
            copy = client.buffer_from_host(array, device=first).copy_to(second)
            back = copy.copy_to(first)
            if copy.device != second or np.asarray(copy).tobytes() != array.tobytes():
                message = f"a copy on {second} has other contents, or is on {copy.device}"
                return Finding("copies between devices", Kind.WRONG, message, "", shown_inputs([array]))
            if np.asarray(back).tobytes() != array.tobytes():
                message = "a copy of a copy has other contents"
                return Finding("copies between devices", Kind.WRONG, message, "", shown_inputs([array]))
    return None


def _second_device(client: Client) -> Outcome:
    name, sample = "a run on the second device", sample_of(client)
    second = client.addressable_devices[1]
    program, inputs = sample.program((3, 5)), sample.inputs((3, 5))
    executable = client.compile(program, CompileOptions(device_assignment=DeviceAssignment(((second.id,),))))
    (result,) = executable(*(client.buffer_from_host(each, device=second) for each in inputs))
    if result.device != second:
        return Finding(name, Kind.WRONG, f"expected a result on {second}, found it on {result.device}", program)
    problem = sample.problem(result, inputs)
    return Finding(name, Kind.WRONG, problem, program, shown_inputs(inputs)) if problem else None


def _replicas(operation: str, program: str) -> Callable[[Client], Outcome]:
    arrays = [values.exact(ElementType.F32, (4, 3), seed) for seed in range(_DEVICES)]
    name = f"replicas with stablehlo.{operation}"

    def check(client: Client) -> Outcome:
        declared = client.capabilities.operations
        if declared is not None and f"stablehlo.{operation}" not in declared:
            return Skipped("the device does not declare the operation")
        return _on_both(client, name, program, CompileOptions(num_replicas=_DEVICES), arrays)

    return check


def _partitions(client: Client) -> Outcome:
    name = "a program of two partitions"
    if client.capabilities.has(Feature.PARTITIONING) is False:
        return Skipped("the device declares that it does not partition programs")
    declared = client.capabilities.operations
    if declared is not None and "stablehlo.add" not in declared:
        return Skipped("the device does not declare stablehlo.add")
    options = CompileOptions(num_partitions=_DEVICES, use_shardy_partitioner=True)
    shards = np.split(values.ordinary(ElementType.F32, (8, 3)), _DEVICES)
    return _on_both(client, name, _SHARDED, options, shards)


def _on_both(client: Client, name: str, program: str, options: CompileOptions, arrays: Sequence[Array]) -> Outcome:
    """Run a program on two devices of the client and of the reference interpreter, and compare the results."""
    try:
        results = _run(client, program, options, arrays)
    except UnimplementedError as error:
        return Skipped(f"the device does not run it: {error.message}")
    except PjrtError as error:
        return Finding(name, Kind.ERROR, error.message, program, _shown(arrays))
    with ReferencePlugin().client(num_devices=_DEVICES) as judge:
        expected = _run(judge, program, options, arrays)
    for number, (result, right) in enumerate(zip(results, expected, strict=True)):
        wrong = first_difference([result], [right], ROUNDED)
        if wrong is not None:
            return Finding(name, Kind.WRONG, f"device {number}: {wrong[1]}", program, _shown(arrays))
    return None


def _shown(arrays: Sequence[Array]) -> tuple[str, ...]:
    return tuple(f"%x of device {number} = {shown(array)}" for number, array in enumerate(arrays))


def _run(client: Client, program: str, options: CompileOptions, arrays: Sequence[Array]) -> list[Array]:
    executable = client.compile(program, options)
    devices = executable.addressable_devices
    rows = [[client.buffer_from_host(array, device=device)] for array, device in zip(arrays, devices, strict=True)]
    return [np.asarray(row[0]) for row in executable.execute(rows)]


# JAX on the exported device, beside JAX on its own CPU device.

_PLATFORM = "pjrt_test_device"

_JAX_PROGRAMS = {
    "x + 1": "result = jax.jit(lambda x: x + 1)(matrix)",
    "x @ x.T": "result = jax.jit(lambda x: x @ x.T)(matrix)",
    "sum": "result = jax.jit(lambda x: x.sum(axis=1))(matrix)",
    "x[0]": "result = matrix[0]",
    "linalg.solve": "a = matrix @ matrix.T + 9 * jnp.eye(2)\nresult = jnp.linalg.solve(a, matrix[:, 0])",
    "random": "result = jax.random.normal(jax.random.key(0), (3, 4))",
    "grad": "result = jax.jit(jax.grad(lambda x: jnp.tanh(x @ x.T / 9).sum()))(matrix)",
    "scan": (
        "step = lambda c, y: (jnp.tanh(c @ y) + 1, c.sum())\n"
        "result = jax.jit(lambda x: jax.lax.scan(step, x, jnp.stack([x.T @ x] * 3)))(matrix)"
    ),
    "cond": "result = jax.jit(lambda x: jax.lax.cond(x[0, 1] > 0, jnp.sin, jnp.cos, x))(matrix)",
    "sort": "result = jnp.sort(jnp.array([3.0, -1.0, jnp.nan, 2.0, -jnp.inf]))",
    "integers": "x = jnp.arange(-6, 6)\nresult = (x // 5, x % 5, x << 2, x.astype(jnp.uint8))",
    "bfloat16": "x = matrix.astype(jnp.bfloat16)\nresult = x @ x.T + 1",
    "donation": (
        "x = jax.device_put(matrix + 1, device)\n"
        "result = jax.jit(lambda x: x + x, donate_argnums=0)(x)\n"
        "assert x.is_deleted(), 'the donated array was not deleted'"
    ),
    "training step": (
        "start, y = {'w': matrix.T / 9, 'b': matrix[0, :2]}, jnp.ones((2, 2))\n"
        "loss = lambda p: ((jnp.tanh(matrix @ p['w'] + p['b']) - y) ** 2).mean()\n"
        "step = jax.jit(lambda p: jax.tree.map(lambda v, g: v - 0.1 * g, p, jax.grad(loss)(p)))\n"
        "result = step(step(start))"
    ),
    "pmap": "result = jax.pmap(lambda x: x + jax.lax.psum(x, 'i'), 'i', devices=devices)(np.arange(2.0))",
    "sharded jit": (
        "sharding = jax.NamedSharding(jax.sharding.Mesh(np.array(devices), ('i',)), jax.P('i'))\n"
        "x = jax.device_put(np.arange(8.0, dtype=np.float32).reshape(4, 2), sharding)\n"
        "result = jax.jit(lambda x: (x @ x.T).sum(axis=0))(x)"
    ),
    "sharded training step": (
        "sharding = jax.NamedSharding(jax.sharding.Mesh(np.array(devices), ('i',)), jax.P('i'))\n"
        "x = jax.device_put(np.arange(8.0, dtype=np.float32).reshape(4, 2) / 8, sharding)\n"
        "w = jax.device_put(np.ones((2, 2), np.float32), jax.NamedSharding(sharding.mesh, jax.P()))\n"
        "result = jax.jit(lambda w: w - 0.1 * jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).mean())(w))(w)"
    ),
}
"""Lines of JAX. ``matrix`` is an array of two by three elements on the device; the lines leave arrays in ``result``."""

_TWO_DEVICES = frozenset({"pmap", "sharded jit", "sharded training step"})


@dataclass(frozen=True, slots=True)
class JaxCheck:
    """A check of a few lines of JAX.

    Attributes:
        title: the name of the check, without ``jax: ``.
    """

    title: str

    @property
    def name(self) -> str:
        """The name of the check."""
        return f"jax: {self.title}"

    @property
    def group(self) -> str:
        """The group ``jax``."""
        return "jax"

    def run(self, session: Session) -> Outcome:
        """Run the lines on the device, and on JAX's CPU device."""
        if importlib.util.find_spec("jax") is None:
            return Skipped("JAX is not installed: pip install jax")
        import jax

        devices = _jax_devices(session)
        cpus = jax.devices("cpu")
        if self.title in _TWO_DEVICES and min(len(devices), len(cpus)) < 2:
            return Skipped("the device, or JAX's CPU, has fewer than two devices")
        program = _JAX_PROGRAMS[self.title]
        expected = _jax_results(program, cpus)
        try:
            results = _jax_results(program, devices)
        except Exception as error:
            message = str(error) or type(error).__name__
            if message.startswith("UNIMPLEMENTED"):
                return Skipped(message)
            return Finding(self.name, Kind.ERROR, f"{type(error).__name__}: {message}"[:2000], program)
        for number, (result, right) in enumerate(zip(results, expected, strict=True)):
            difference = Difference.of(result, right)
            if not difference.agrees:
                where = f"result {number}: " if len(results) > 1 else ""
                return Finding(self.name, Kind.WRONG, where + str(difference), program)
        return None


def jax_checks() -> Iterator[Check]:
    """Return the checks of JAX."""
    for title in _JAX_PROGRAMS:
        yield JaxCheck(title)


def _jax_devices(session: Session) -> list[Any]:
    """Return the devices in JAX. The first call registers the device, before JAX makes its backends."""
    import jax

    from pjrt.frameworks import jax as registration
    from pjrt.native.exported import export

    if not _registered:
        _registered.append(registration.register(export(_maker(session), name=_PLATFORM), make_default=False))
        jax.config.update("jax_platforms", f"{_registered[0]},cpu")
        with contextlib.suppress(AttributeError, RuntimeError):  # so that sharded programs have an expected result
            jax.config.update("jax_num_cpu_devices", 2)
    devices: list[Any] = jax.devices(_registered[0])
    return devices


_registered: list[str] = []


def _maker(session: Session) -> Any:
    def make(**options: Any) -> Any:
        try:
            return session.new_client(num_devices=2, **options)
        except (PjrtError, TypeError):
            return session.new_client(**options)

    return make


def _jax_results(program: str, devices: list[Any]) -> list[Any]:
    """Return the arrays in ``result`` after the lines have run on a device."""
    import jax
    import jax.numpy as jnp

    names: dict[str, Any] = {"jax": jax, "jnp": jnp, "np": np, "device": devices[0], "devices": devices[:2]}
    names["matrix"] = jax.device_put(np.arange(6, dtype=np.float32).reshape(2, 3), devices[0])
    with jax.default_device(devices[0]):
        exec(program, names)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(names["result"])]
