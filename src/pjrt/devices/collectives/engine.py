"""Collectives between processes by XLA: its CPU device's own, over gloo, on the bytes of any device."""

from __future__ import annotations

import contextlib
import gc
import json
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pjrt.api.compile_options import CompileOptions, DeviceAssignment, Partitioning
from pjrt.api.element_type import ElementType
from pjrt.api.errors import AbortedError, FailedPreconditionError, InternalError, PjrtError, UnavailableError
from pjrt.api.key_value_store import KeyValueStore
from pjrt.devices.xla import _jaxlib
from pjrt.devices.xla.peers import own_host
from pjrt.distributed import Job, current, join
from pjrt.host.processes import Bytes, Collectives, ProcessGroup
from pjrt.host_memory.array import HostArray

REDUCTIONS = ("add", "multiply", "minimum", "maximum")
"""The reductions that XLA's CPU device combines between processes."""

# The programs of collectives: one operation each, over one device of each process of a group.


def _all_gather_program(count: int, size: int) -> str:
    """Return the program that puts the ``size`` bytes of each of ``count`` devices one behind the other."""
    attributes = f"all_gather_dim = 0 : i64, {_group(count)}"
    return _program("all_gather", attributes, f"tensor<{size}xui8>", f"tensor<{count * size}xui8>")


def _all_reduce_program(count: int, size: int, element: str, reduction: str) -> str:
    """Return the program that combines the ``size`` elements of each of ``count`` devices."""
    type_ = f"tensor<{size}x{element}>"
    return _program("all_reduce", _group(count), type_, type_, _body(element, reduction))


def _reduce_scatter_program(count: int, size: int, element: str, reduction: str) -> str:
    """Return the program that combines ``count`` rows of ``size`` elements, and leaves each device a row."""
    attributes = f"scatter_dimension = 0 : i64, {_group(count)}"
    types = f"tensor<{count * size}x{element}>", f"tensor<{size}x{element}>"
    return _program("reduce_scatter", attributes, *types, _body(element, reduction))


def _all_to_all_program(count: int, size: int) -> str:
    """Return the program in which each device sends a row of ``size`` bytes to each."""
    type_ = f"tensor<{count * size}xui8>"
    dimensions = "split_dimension = 0 : i64, concat_dimension = 0 : i64"
    return _program("all_to_all", f"{dimensions}, split_count = {count} : i64, {_group(count)}", type_, type_)


def _permute_program(pairs: Sequence[tuple[int, int]], size: int) -> str:
    """Return the program that sends ``size`` bytes along pairs of source and target."""
    type_ = f"tensor<{size}xui8>"
    rows = ", ".join(f"[{source}, {target}]" for source, target in pairs)
    attributes = f"source_target_pairs = dense<[{rows}]> : tensor<{len(pairs)}x2xi64>"
    return _program("collective_permute", attributes, type_, type_)


def _group(count: int) -> str:
    members = ", ".join(map(str, range(count)))
    return f"replica_groups = dense<[[{members}]]> : tensor<1x{count}xi64>"


def _body(element: str, reduction: str) -> str:
    scalar = f"tensor<{element}>"
    return (
        f" ({{ ^bb0(%x: {scalar}, %y: {scalar}): %z = stablehlo.{reduction} %x, %y : {scalar} "
        f"stablehlo.return %z : {scalar} }})"
    )


def _program(operation: str, attributes: str, argument: str, result: str, body: str = "") -> str:
    return (
        f"module @{operation} {{ func.func @main(%argument: {argument}) -> {result} {{ "
        f'%result = "stablehlo.{operation}"(%argument){body} {{{attributes}}} : ({argument}) -> {result} '
        f"return %result : {result} }} }}"
    )


# Each process has a client of XLA's CPU device in a job of its own, with as many devices as the client that it serves.
# Small programs of one collective run on one device of each process. XLA runs a program of one device on the thread
# that calls it, so programs for different groups do not wait for each other.

_BLOCK = 1024
_LENGTH = 8
"""Each gather begins with a block of one size, so that members with different messages meet: the message's length, and
the message itself if there is room."""

_HEARTBEAT_SECONDS = 100.0
"""XLA's own default. A process that ends is noticed at once, and one whose machine is lost after this time."""

_GRACE_SECONDS = 0.5
_LEAVING_SECONDS = 5.0
_PAUSE_SECONDS = 0.02
_LONGEST_SECONDS = 1e6

_REDUCED = frozenset(
    {
        *(ElementType.S8, ElementType.S16, ElementType.S32, ElementType.S64),
        *(ElementType.U8, ElementType.U16, ElementType.U32, ElementType.U64),
        *(ElementType.F16, ElementType.BF16, ElementType.F32, ElementType.F64, ElementType.C64, ElementType.C128),
    }
)


def _make_client(num_devices: int, job: Job) -> Any:
    runtime_client = job.runtime_client
    return _jaxlib.make_client(
        num_devices,
        False,
        distributed_client=runtime_client,
        node_id=job.process_index,
        num_nodes=job.process_count,
        collectives=_jaxlib.make_collectives("gloo", runtime_client, own_host(job.address)),
    )


class XlaCollectives(Collectives):
    """The collectives of XLA's CPU device, for the devices of a client that are in several processes.

    Args:
        name: the client's name, the same in all processes.
        key_value_store: the store of this client and its counterparts, alone.
        process_index: the number of this process.
        device_counts: the number of devices of each process.
    """

    def __init__(
        self, name: str, key_value_store: KeyValueStore, process_index: int, device_counts: Sequence[int]
    ) -> None:
        self._lock = threading.Lock()
        self._error: PjrtError | None = None
        self._programs: dict[Any, _Program] = {}
        self._absent_since: dict[int, float] = {}
        self._connected: set[tuple[tuple[int, int], ...]] = set()
        self._job = join(
            key_value_store, process_index, len(device_counts), name=name, heartbeat_timeout=_HEARTBEAT_SECONDS
        )
        self._client = _make_client(device_counts[process_index], self._job)
        self._devices: dict[tuple[int, int], Any] = {}
        for device in sorted(self._client.devices(), key=lambda device: device.id):
            number = sum(process == device.process_index for process, _ in self._devices)
            self._devices[device.process_index, number] = device
        # XLA's client must be gone before the agent through which its processes meet.
        leave = weakref.WeakMethod(self._leave)
        self._job.on_end(lambda: (method := leave()) and method())
        self._follow(current())
        watch = threading.Thread(
            target=_watch,
            args=(self._job, weakref.WeakMethod(self._drop)),
            name=f"pjrt failures of {name}",
            daemon=True,
        )
        watch.start()

    def _follow(self, outer: Job | None) -> None:
        """End all exchanges soon after a loss in the job of the cluster or user, where it may be noticed earlier."""
        if outer is None or outer.process_count != self._job.process_count:
            return
        drop = weakref.WeakMethod(self._drop)

        def miss(process_index: int, error: PjrtError, is_gone: bool) -> None:
            if is_gone:  # it may have done its part, and the last bytes be on their way
                timer = threading.Timer(_LEAVING_SECONDS, lambda: (method := drop()) and method(error))
                timer.daemon = True
                timer.start()

        outer.on_absence(miss)
        outer.on_end(lambda: outer.failure and (method := drop()) and method(outer.failure))

    def gather(self, group: ProcessGroup, message: Bytes) -> list[Bytes]:
        count = len(group.members)
        room = _BLOCK - _LENGTH
        block = np.zeros(_BLOCK, np.uint8)
        block[:_LENGTH] = np.frombuffer(len(message).to_bytes(_LENGTH, "little"), np.uint8)
        if len(message) <= room:
            block[_LENGTH : _LENGTH + len(message)] = message
        blocks = self._all_gather(group, block)
        lengths = [int.from_bytes(each[:_LENGTH].tobytes(), "little") for each in blocks]
        if max(lengths) > room:
            padded = np.zeros(_rounded(max(lengths)), np.uint8)
            padded[: len(message)] = message
            blocks = self._all_gather(group, padded)
            return [blocks[n][: lengths[n]] for n in range(count)]
        return [blocks[n][_LENGTH : _LENGTH + lengths[n]] for n in range(count)]

    def can_reduce(self, reduction: str, dtype: np.dtype[Any]) -> bool:
        element = ElementType.of(dtype)
        # Gloo's minimum and maximum drop NaN.
        return element in _REDUCED and (reduction in ("add", "multiply") or element.is_integer)

    def all_reduce(self, group: ProcessGroup, array: HostArray, reduction: str) -> HostArray:
        count, size = len(group.members), array.size
        element = ElementType.of(array.dtype).mlir
        result = self._run(
            group,
            ("all_reduce", size, element, reduction),
            lambda: _all_reduce_program(count, size, element, reduction),
            array.reshape(-1),
            size,
        )
        return result.reshape(array.shape)

    def reduce_scatter(self, group: ProcessGroup, array: HostArray, reduction: str) -> HostArray:
        count, size = array.shape
        element = ElementType.of(array.dtype).mlir
        return self._run(
            group,
            ("reduce_scatter", size, element, reduction),
            lambda: _reduce_scatter_program(count, size, element, reduction),
            array.reshape(-1),
            size,
        )

    can_exchange = True

    def all_to_all(self, group: ProcessGroup, rows: Bytes) -> Bytes:
        count, size = rows.shape
        result = self._run(
            group,
            ("all_to_all", size),
            lambda: _all_to_all_program(count, size),
            rows.reshape(-1),
            rows.size,
        )
        return result.reshape(count, size)

    def permute(self, group: ProcessGroup, message: Bytes, pairs: Sequence[tuple[int, int]]) -> Bytes:
        size = len(message)
        return self._run(
            group,
            ("permute", size, tuple(pairs)),
            lambda: _permute_program(pairs, size),
            message,
            size,
        )

    def failure(self, group: ProcessGroup) -> PjrtError | None:
        if self._error is not None:
            return self._error
        for process in group.process_indices:
            absence = None if process == self._job.process_index else self._job.absence(process)
            if absence is not None:
                # It may have done its part, and the last bytes be on their way.
                since = self._absent_since.setdefault(process, time.monotonic())
                if time.monotonic() - since > _LEAVING_SECONDS:
                    return absence
        return None

    def fail(self, error: PjrtError) -> None:
        if self._is_first(error):
            report = json.dumps({"process": self._job.process_index, "message": error.message}).encode()
            # Before connections are closed: the others look for it then. The first report stays. The job may be gone.
            with contextlib.suppress(PjrtError):
                self._job.store.put(_FAILED, report, overwrite=False)
            self._release()
            _in_thread(_abandon, self._job, error.message)

    def close(self) -> None:
        if self._is_first(FailedPreconditionError("the client was closed; make a new one")):
            self._release()
            _in_thread(_shut_down, self._job)  # it waits for the others, which may use their clients for long

    def _all_gather(self, group: ProcessGroup, block: Bytes) -> Bytes:
        count, size = len(group.members), len(block)
        result = self._run(group, ("all_gather", size), lambda: _all_gather_program(count, size), block, count * size)
        return result.reshape(count, size)

    def _run(
        self,
        group: ProcessGroup,
        signature: tuple[Any, ...],
        code: Callable[[], str],
        array: HostArray,
        result_size: int,
    ) -> HostArray:
        """Run the program of a collective on this process's device of a group.

        Raises:
            PjrtError: the program fails here or elsewhere.
        """
        key = (group.members, *signature)
        try:
            if group.members not in self._connected:
                # XLA gives the members of a group 30 seconds to connect; this waits as long as it takes.
                self._job.barrier(f"group {group.members}", _LONGEST_SECONDS, group.process_indices)
                self._connected.add(group.members)
            program = self._programs.get(key) or self._compile(key, group, code(), array, result_size)
            return program(array)
        except Exception as error:
            raise self._explained(error, group) from None

    def _compile(self, key: Any, group: ProcessGroup, code: str, array: HostArray, result_size: int) -> _Program:
        with self._lock:
            if self._error is not None:
                raise self._error
            devices = [self._devices[member] for member in group.members]
            program = _Program(self._client, code, devices, group.index, array, result_size)
            self._programs[key] = program
            return program

    # The end.

    def _leave(self) -> None:
        error = self._job.failure or FailedPreconditionError("the job of the client has ended in this process")
        if self._is_first(error):
            self._release()

    def _drop(self, error: PjrtError) -> None:
        """End all exchanges because of an error that is not of this process."""
        if self._is_first(error):
            self._release()
            _in_thread(_abandon, self._job, error.message)

    def _is_first(self, error: PjrtError) -> bool:
        """Keep the first error, and return whether it is this one."""
        with self._lock:
            if self._error is not None:
                return False
            self._error = error
            return True

    def _release(self) -> None:
        """Release XLA's client. The connections close when nothing uses it any more."""
        with self._lock:
            released = self._programs, self._devices, self._client
            self._programs, self._devices, self._client = {}, {}, None
        del released
        gc.collect()  # jaxlib's devices and client hold each other
        _jaxlib.collect_released()

    def _explained(self, error: Exception, group: ProcessGroup) -> PjrtError:
        """Return the error for a collective that failed, with the process that is the reason; end all exchanges."""
        if self._error is None:
            code, message = _jaxlib.status_of(error)
            if "Gloo" in message:
                self._drop(self._reason(message, group))
            elif isinstance(error, PjrtError):
                self.fail(error)
            else:
                self.fail(InternalError(message) if code is None else PjrtError.of(code, message))
        assert self._error is not None
        return self._error

    def _reason(self, message: str, group: ProcessGroup) -> PjrtError:
        """Return why a connection was closed, with the process that is the reason; wait until it is known."""
        others = set(group.process_indices) - {self._job.process_index}
        deadline = time.monotonic() + _HEARTBEAT_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(PjrtError):
                return _reported(self._job.store.try_get(_FAILED))
            for process in sorted(others):
                absence = self._job.absence(process)
                if absence is not None:
                    return absence
            time.sleep(_PAUSE_SECONDS)
        return UnavailableError(f"one of the processes {sorted(others)} closed its connection: {message}")


_FAILED = "failed"


def _reported(report: bytes) -> PjrtError:
    fields = json.loads(report)
    return AbortedError(f"process {fields['process']} failed: {fields['message']}")


def _in_thread(function: Callable[..., object], *arguments: Any) -> None:
    threading.Thread(target=function, args=arguments, name="pjrt job of collectives", daemon=True).start()


def _shut_down(job: Job) -> None:
    with contextlib.suppress(PjrtError):  # another process has ended without a farewell
        job.shutdown()


def _abandon(job: Job, reason: str) -> None:
    """End a job in which a process has failed: calls that wait for the others to connect end with it.

    The others have a moment to read the report, which says more than a lost connection.
    """
    threading.Event().wait(_GRACE_SECONDS)
    job.abandon(reason)


def _watch(job: Job, drop: weakref.WeakMethod[Callable[[PjrtError], None]]) -> None:
    """Wait until a process reports that it failed, and end all exchanges here, too."""
    with contextlib.suppress(PjrtError):  # the job has ended
        report = job.store.get(_FAILED, _LONGEST_SECONDS)
        method = drop()
        if method is not None:
            method(_reported(report))


class _Program:
    """The program of one collective, on this process's device of a group."""

    def __init__(
        self,
        client: Any,
        code: str,
        devices: Sequence[Any],
        index: int,
        argument: HostArray,
        result_size: int,
    ) -> None:
        ids = tuple((device.id,) for device in devices)
        options = CompileOptions(
            device_assignment=DeviceAssignment(ids),
        ).completed(Partitioning(num_replicas=len(ids)))
        self._executable = client.compile_and_load(
            code, _jaxlib.device_list(devices), _jaxlib.jax.CompileOptions.ParseFromString(options.to_proto())
        )
        self._place = _jaxlib.Placement(devices[index], "device")
        self._sharding = _jaxlib.whole_on_each(devices, "device")
        self._argument = _jaxlib.Aval(argument.shape, argument.dtype)
        self._handler = _jaxlib.result_handler(_jaxlib.Aval((result_size,), argument.dtype), self._sharding)

    def __call__(self, array: HostArray) -> HostArray:
        """Return the result for an array, which may be used until then."""
        put = _jaxlib.put(array, self._argument, self._place, _jaxlib.ZERO_COPY)
        argument = _jaxlib.assembled([put], self._argument, self._sharding)
        results = _jaxlib.start(self._executable.execute_sharded, [argument], False, 0)
        (result,) = results.consume_with_handlers([self._handler])
        return _jaxlib.view(_jaxlib.shards(result)[0])


def _rounded(size: int) -> int:
    """Return a size that is not smaller, and one of few: a program is compiled for each."""
    step = max(64, 1 << max(size.bit_length() - 5, 0))
    return -(-size // step) * step
