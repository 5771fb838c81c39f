"""Checks of executions with more than arguments: execute options, host callbacks, collectives of several devices."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np

from pjrt.abi.schema import STRUCTS
from pjrt.api.errors import StatusCode
from pjrt.capi.raw import Struct
from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.contract.executions.launch import Launch, PendingBuffer, error_buffer
from pjrt.conformance.plugin.contract.programs.compilation import expect_sum
from pjrt.conformance.plugin.subject import Subject

# Execute options: launch ids, poison, contexts, call locations, tasks, and the struct's older forms.

_CALLS = ("PJRT_LoadedExecutable_Execute",)
_POISON = "PJRT_Device_PoisonExecution"
_X = np.arange(4, dtype=np.float32)
_Y = np.full(4, 10, np.float32)


def _add(subject: Subject, **options: object) -> Launch:
    return Launch(subject, subject.compile("add"), [[subject.buffer(_X), subject.buffer(_Y)]], **options)  # type: ignore[arg-type]


@check("execute_options.launch_id", calls=_CALLS, over=(0, 1, 77, 2**31 - 1, -1))
def _launch_id(subject: Subject, number: int) -> None:
    """launch_id is any number; executions with an id compute the same as without one."""
    for _ in range(2):
        _add(subject, launch_id=number).expect(_X + _Y)


@check("execute_options.launch_ids_out_of_order", calls=_CALLS)
def _out_of_order(subject: Subject) -> None:
    """Launches of one process on one device may have their ids in any order."""
    loaded = subject.compile("add")
    row = [subject.buffer(_X), subject.buffer(_Y)]
    for launch in [Launch(subject, loaded, [row], launch_id=number) for number in (9, 3, 12, 3, 1)]:
        launch.expect(_X + _Y)


@check(
    "execute_options.call_location",
    calls=_CALLS,
    over={"null": 0, "empty": b"\0", "line": b"train.py:12\0", "long": b"x" * 10_000 + b":1\0"},
)
def _call_location(subject: Subject, location: bytes | int) -> None:
    """call_location is a text of the caller that lives for the call only; it changes no result."""
    if isinstance(location, int):
        _add(subject, call_location=0).expect(_X + _Y)
        return
    memory = ctypes.create_string_buffer(location, len(location))
    launch = _add(subject, call_location=ctypes.addressof(memory))
    ctypes.memset(memory, 0x5A, len(location))
    launch.expect(_X + _Y)


@check("execute_options.tasks", calls=_CALLS)
def _tasks(subject: Subject) -> None:
    """task_ids and incarnation_ids have num_tasks entries, which live for the call only; they change no result."""
    _add(subject, num_tasks=2, task_ids=[0, 1], incarnation_ids=[11, 2**62]).expect(_X + _Y)
    _add(subject, num_tasks=0, task_ids=0, incarnation_ids=0).expect(_X + _Y)


@check("execute_options.context", calls=(*_CALLS, "PJRT_ExecuteContext_Create", "PJRT_ExecuteContext_Destroy"))
def _context(subject: Subject) -> None:
    """An execute context may be given to executions, one after the other, and is destroyed by the caller."""
    subject.require("PJRT_ExecuteContext_Create")
    context = subject.call("PJRT_ExecuteContext_Create").context
    loaded = subject.compile("add")
    for _ in range(3):
        launch = Launch(subject, loaded, [[subject.buffer(_X), subject.buffer(_Y)]], context=context)
        if launch.error is not None and launch.error.code == StatusCode.UNIMPLEMENTED:
            raise Unsupported(f"executions with a context: {launch.error}")
        launch.expect(_X + _Y)
    subject.call("PJRT_ExecuteContext_Destroy", context=context)


@check("execute_context.destroy", calls=("PJRT_ExecuteContext_Create", "PJRT_ExecuteContext_Destroy"))
def _context_destroy(subject: Subject) -> None:
    """Each context is a new one that the caller destroys; null may be destroyed, too."""
    subject.require("PJRT_ExecuteContext_Create", "PJRT_ExecuteContext_Destroy")
    contexts = [subject.call("PJRT_ExecuteContext_Create").context for _ in range(3)]
    subject.expect(len(set(contexts)) == 3, "3 contexts", "the same handle for two of them")
    for context in [*contexts, 0]:
        subject.call("PJRT_ExecuteContext_Destroy", context=context)


_FIELDS = ("num_recv_ops", "num_non_donatable_input_indices", "context", "call_location")


@check("execute_options.older_struct", calls=_CALLS, over=_FIELDS)
def _older(subject: Subject, last: str) -> None:
    """Options of an older header end earlier, as struct_size states; the plugin takes the rest as unset."""
    fields = STRUCTS["PJRT_ExecuteOptions"].fields
    size = fields[last].offset + fields[last].size
    if last == "num_recv_ops":
        size = fields["launch_id"].offset + fields["launch_id"].size
    answer = subject.attempt(
        "PJRT_LoadedExecutable_Execute",
        executable=subject.compile("add"),
        options=Struct("PJRT_ExecuteOptions", struct_size=size, call_location=1 if last == "context" else 0),
        argument_lists=[[subject.buffer(_X), subject.buffer(_Y)]],
        output_lists=[[None]],
    )
    subject.expect(answer.error is None, "an execution that begins", str(answer.error))
    subject.expect_contents(answer.output_lists[0][0], _X + _Y)


@check("execute_options.non_donatable_of_nothing", calls=_CALLS)
def _nothing(subject: Subject) -> None:
    """non_donatable_input_indices may name arguments that the program does not donate."""
    _add(subject, non_donatable_input_indices=[0, 1]).expect(_X + _Y)


def _poison(subject: Subject, launch_id: int, device: int | None = None) -> bool:
    subject.require(_POISON)
    return bool(
        subject.call(
            _POISON,
            device=device or subject.device,
            launch_id=launch_id,
            error_code=StatusCode.CANCELLED,
            error_message=b"called off",
        ).poisoned
    )


@check("poison.pending_execution", calls=(_POISON, *_CALLS))
def _pending(subject: Subject) -> None:
    """An execution with this launch id that has not ended is poisoned: its results have the error. poisoned states
    whether that was done.
    """
    subject.require(_POISON)
    loaded = subject.compile("add")
    pending = PendingBuffer(subject)
    launch = Launch(subject, loaded, [[pending.handle, subject.buffer(_Y)]], with_events=True, launch_id=77).succeeded()
    poisoned = _poison(subject, 77)
    pending.fulfil(_X)
    if poisoned:
        launch.expect_error((StatusCode.CANCELLED,), "called off")
    else:
        launch.expect(_X + _Y)
    expect_sum(subject, loaded)


@check("poison.another_launch", calls=(_POISON, *_CALLS))
def _another_launch(subject: Subject) -> None:
    """Only executions with the launch id are poisoned."""
    subject.require(_POISON)
    pending = PendingBuffer(subject)
    rows = [[pending.handle, subject.buffer(_Y)]]
    launch = Launch(subject, subject.compile("add"), rows, launch_id=77).succeeded()
    poisoned = _poison(subject, 78)
    subject.expect(not poisoned, "poisoned false for a launch that there is not", "true")
    pending.fulfil(_X)
    launch.expect(_X + _Y)


@check("poison.finished_execution", calls=(_POISON, *_CALLS))
def _finished(subject: Subject) -> None:
    """An execution that has ended is not poisoned: poisoned is false, and its results keep their values."""
    subject.require(_POISON)
    launch = _add(subject, with_events=True, launch_id=5).succeeded()
    subject.await_event(launch.events[0])
    launch.expect(_X + _Y)
    poisoned = _poison(subject, 5)
    subject.expect(not poisoned, "poisoned false for an execution that has ended", "true")
    launch.expect(_X + _Y)


@check("poison.earliest_of_two", calls=(_POISON, *_CALLS))
def _earliest(subject: Subject) -> None:
    """Of several executions with the launch id the earliest is poisoned, and no other."""
    subject.require(_POISON)
    loaded = subject.compile("add")
    pending = PendingBuffer(subject)
    rows = [[pending.handle, subject.buffer(_Y)]]
    launches = [Launch(subject, loaded, rows, launch_id=6).succeeded() for _ in range(2)]
    poisoned = _poison(subject, 6)
    pending.fulfil(_X)
    if poisoned:
        launches[0].expect_error((StatusCode.CANCELLED,), "called off")
    else:
        launches[0].expect(_X + _Y)
    launches[1].expect(_X + _Y)


# Programs that exchange values with the host: send and receive callbacks, chunks and streams.

_EXECUTE = "PJRT_LoadedExecutable_Execute"
_ADD = "PJRT_CopyToDeviceStream_AddChunk"
_SEND_CHANNEL, _RECEIVE_CHANNEL = 7, 3
_PATIENCE = 10.0
_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
_MakeError = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)


class _Chunk(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("deleter", ctypes.c_void_p),
        ("deleter_arg", ctypes.c_void_p),
    )


def _compiled_exchange(subject: Subject, sample: str) -> int:
    """Return the executable of a program that sends or receives; plugins may lack that."""
    answer = subject.attempt_compile(subject.program(sample))
    if answer.error is not None:
        raise Unsupported(f"programs that exchange values with the host: {answer.error}")
    return int(answer.executable)


def _begun(launch: Launch) -> Launch:
    if launch.error is not None and launch.error.code == StatusCode.UNIMPLEMENTED:
        raise Unsupported(f"programs that exchange values with the host: {launch.error}")
    return launch.succeeded()


class Sends:
    """A send callback that records what it is given, and frees each chunk.

    Attributes:
        chunks: the bytes, the total size, whether it was the last one, and the user data of each call.
    """

    def __init__(self, failure: bytes = b"") -> None:
        self._failure = failure
        self.chunks: list[tuple[bytes, int, bool, int]] = []

    def __call__(self, chunk: int, make_error: int, total: int, done: bool, user_arg: int) -> int:
        """Take a chunk; return the address of an error, or 0."""
        struct = _Chunk.from_address(chunk)
        self.chunks.append((ctypes.string_at(struct.data, struct.size), total, bool(done), user_arg))
        if struct.deleter:
            _Deleter(struct.deleter)(struct.data, struct.deleter_arg)
        if not self._failure:
            return 0
        # The plugin passes a pointer to its function.
        function = ctypes.c_uint64.from_address(make_error).value
        return int(_MakeError(function)(StatusCode.NOT_FOUND, self._failure, len(self._failure)) or 0)


def _send(subject: Subject, callback: Sends, user_arg: int = 0) -> Launch:
    info = {"channel_id": _SEND_CHANNEL, "user_arg": user_arg, "send_callback": callback}
    rows = [[subject.buffer(_X)]]
    options: dict[str, Any] = {"send_callbacks": [[info]], "num_send_ops": 1}
    return _begun(Launch(subject, _compiled_exchange(subject, "sends"), rows, with_events=True, **options))


@check("send.value", calls=(_EXECUTE,))
def _value(subject: Subject) -> None:
    """A send callback is given the value in chunks; the last one is marked, and each states the size of the whole."""
    callback = Sends()
    launch = _send(subject, callback)
    subject.await_event(launch.events[0])
    data = b"".join(chunk for chunk, *_ in callback.chunks)
    subject.expect(data == _X.tobytes(), str(_X), f"{len(data)} bytes in {len(callback.chunks)} chunks")
    ends = [done for _, _, done, _ in callback.chunks]
    subject.expect(ends == [False] * (len(ends) - 1) + [True], "only the last chunk marked as the last", str(ends))
    totals = {total for _, total, _, _ in callback.chunks}
    subject.expect(totals == {_X.nbytes}, f"the total size {_X.nbytes}", str(totals))


@check("send.user_data", calls=(_EXECUTE,))
def _user_data(subject: Subject) -> None:
    """user_arg is passed to the callback unchanged."""
    callback = Sends()
    subject.await_event(_send(subject, callback, (1 << 63) + 5).events[0])
    found = {user_arg for *_, user_arg in callback.chunks}
    subject.expect(found == {(1 << 63) + 5}, hex((1 << 63) + 5), str(found))


@check("send.error", calls=(_EXECUTE, "PJRT_Event_Await"))
def _send_error(subject: Subject) -> None:
    """An error that the callback returns is the error of the execution; the client goes on."""
    launch = _send(subject, Sends(b"nobody is listening"))
    launch.expect_error((StatusCode.NOT_FOUND,), "nobody is listening")
    expect_sum(subject, subject.compile("add"))


class Receives:
    """A receive callback that adds chunks to its stream, and counts how often each is freed.

    Attributes:
        answers: what ``AddChunk`` and the questions about the stream answer.
        deleted: how often the deleter of each chunk was called.
    """

    def __init__(self, subject: Subject, pieces: list[bytes]) -> None:
        self._subject, self._pieces = subject, pieces
        self._memories = [ctypes.create_string_buffer(piece, len(piece)) for piece in pieces]
        self._function = _Deleter(self._delete)
        self.deleted = [0] * len(pieces)
        self.errors: list[Any] = []
        self.sizes: list[tuple[int, int, int]] = []
        self.done = threading.Event()

    def __call__(self, stream: int, user_arg: int) -> None:
        """Fill the stream, and destroy it."""
        try:
            self.sizes.append(self._ask(stream))
            for number, memory in enumerate(self._memories):
                chunk = _Chunk(
                    ctypes.addressof(memory),
                    len(memory),
                    ctypes.cast(self._function, ctypes.c_void_p),
                    number,
                )
                answer = self._subject.attempt(_ADD, stream=stream, chunk=ctypes.addressof(chunk))
                error = answer.error
                if error is None:
                    error = self._subject.event_error(answer.transfer_complete)
                self.errors.append(error)
                self.sizes.append(self._ask(stream))
            self._subject.attempt("PJRT_CopyToDeviceStream_Destroy", stream=stream)
        finally:
            self.done.set()

    def wait(self) -> None:
        """Wait until the callback has returned."""
        self._subject.expect(self.done.wait(_PATIENCE), "a call of the callback", f"none in {_PATIENCE:g} s")

    def _ask(self, stream: int) -> tuple[int, int, int]:
        ask = self._subject.call
        return (
            ask("PJRT_CopyToDeviceStream_TotalBytes", stream=stream).total_bytes,
            ask("PJRT_CopyToDeviceStream_GranuleSize", stream=stream).granule_size_in_bytes,
            ask("PJRT_CopyToDeviceStream_CurrentBytes", stream=stream).current_bytes,
        )

    def _delete(self, data: int | None, number: int | None) -> None:
        self.deleted[number or 0] += 1


def _receive(subject: Subject, pieces: list[bytes]) -> tuple[Launch, Receives]:
    callback = Receives(subject, pieces)
    info = {"channel_id": _RECEIVE_CHANNEL, "user_arg": 0, "recv_callback": callback}
    options: dict[str, Any] = {"recv_callbacks": [[info]], "num_recv_ops": 1}
    return _begun(Launch(subject, _compiled_exchange(subject, "receives"), [[]], with_events=True, **options)), callback


@check(
    "receive.value", calls=(_EXECUTE, _ADD, "PJRT_CopyToDeviceStream_Destroy"), over={"one_chunk": 1, "four_chunks": 4}
)
def _received(subject: Subject, count: int) -> None:
    """A receive callback fills the stream chunk by chunk; the program gets the value when all bytes are there."""
    data = _X.tobytes()
    size = len(data) // count
    launch, callback = _receive(subject, [data[number * size :][:size] for number in range(count)])
    launch.expect(_X)
    callback.wait()
    subject.expect(callback.errors == [None] * count, f"{count} chunks without an error", str(callback.errors))


@check(
    "receive.sizes",
    calls=(
        "PJRT_CopyToDeviceStream_TotalBytes",
        "PJRT_CopyToDeviceStream_GranuleSize",
        "PJRT_CopyToDeviceStream_CurrentBytes",
    ),
)
def _sizes(subject: Subject) -> None:
    """A stream states the bytes that it expects, those that it has, and of what size a chunk is a multiple."""
    data = _X.tobytes()
    launch, callback = _receive(subject, [data[:8], data[8:]])
    launch.expect(_X)
    callback.wait()
    granule = callback.sizes[0][1]
    subject.expect(granule > 0 and 8 % granule == 0, "a granule that divides 8 bytes", str(granule))
    expected = [(16, granule, current) for current in (0, 8, 16)]
    subject.expect(callback.sizes == expected, str(expected), str(callback.sizes))


@check("receive.chunks_are_freed_once", calls=(_ADD,))
def _freed(subject: Subject) -> None:
    """The stream takes over each chunk, and calls its deleter exactly once."""
    data = _X.tobytes()
    launch, callback = _receive(subject, [data[:4], data[4:12], data[12:]])
    launch.expect(_X)
    callback.wait()
    subject.expect(callback.deleted == [1, 1, 1], "each deleter called once", str(callback.deleted))


@check("receive.too_many_bytes", calls=(_ADD,))
def _too_many(subject: Subject) -> None:
    """A chunk with more bytes than the stream expects fails; its deleter is called all the same."""
    launch, callback = _receive(subject, [_X.tobytes() + bytes(4)])
    callback.wait()
    subject.expect(callback.errors[0] is not None, "an error", "a chunk of 20 bytes taken for 16")
    subject.expect(callback.deleted == [1], "the deleter called once", str(callback.deleted))
    launch.errors()
    expect_sum(subject, subject.compile("add"))


@check("receive.stream_destroyed_early", calls=("PJRT_CopyToDeviceStream_Destroy", "PJRT_Event_Await"))
def _destroyed_early(subject: Subject) -> None:
    """A stream that is destroyed before all bytes are there gives no value: the execution fails, and nothing waits for
    ever.
    """
    launch, callback = _receive(subject, [_X.tobytes()[:8]])
    callback.wait()
    launch.expect_error()
    expect_sum(subject, subject.compile("add"))


@check("copy_to_device_stream.destroy_null", calls=("PJRT_CopyToDeviceStream_Destroy",))
def _destroy_null(subject: Subject) -> None:
    """The stream of PJRT_CopyToDeviceStream_Destroy may be null."""
    subject.require("PJRT_CopyToDeviceStream_Destroy")
    subject.call("PJRT_CopyToDeviceStream_Destroy", stream=0)


# Programs on several devices: replicas, and the collectives in which they exchange values.

_COLLECTIVE_CALLS = ("PJRT_Client_Compile", "PJRT_LoadedExecutable_Execute")
_ROUNDS = 20
Array = np.ndarray[Any, Any]


def _compiled_collective(subject: Subject, sample: str, count: int) -> int:
    """Return the executable of a program for several replicas."""
    subject.several_devices(count)
    answer = subject.attempt_compile(subject.program(sample), num_replicas=count)
    if answer.error is not None and answer.error.code == StatusCode.UNIMPLEMENTED:
        raise Unsupported(f"the program {sample} on {count} devices: {answer.error}")
    subject.expect(answer.error is None, "a compiled program", str(answer.error))
    return int(answer.executable)


def _rows(subject: Subject, executable: int, arrays: list[Array]) -> list[list[int]]:
    devices = subject.call("PJRT_LoadedExecutable_AddressableDevices", executable=executable).addressable_devices
    return [[subject.buffer(array, device=device)] for array, device in zip(arrays, devices, strict=True)]


def _arrays(count: int) -> list[Array]:
    return [_X + 10 * number for number in range(count)]


def _expected(operation: str, arrays: list[Array]) -> list[Array]:
    count = len(arrays)
    match operation:
        case "all_reduce":
            return [np.sum(np.stack(arrays), axis=0)] * count
        case "all_gather":
            return [np.concatenate(arrays)] * count
        case "collective_permute":
            return [arrays[(number - 1) % count] for number in range(count)]
        case _:
            pieces = [np.split(array, count) for array in arrays]
            return [np.concatenate([pieces[source][number] for source in range(count)]) for number in range(count)]


_OPERATIONS = ("all_reduce", "all_gather", "collective_permute", "all_to_all")
_COLLECTIVES = {f"{operation}_{count}": (operation, count) for operation in _OPERATIONS for count in (2, 4)}


def _sample(operation: str, count: int) -> str:
    return operation if count == 2 else f"{operation}_{count}"


@check("collectives.result", calls=_COLLECTIVE_CALLS, over=_COLLECTIVES)
def _result(subject: Subject, case: tuple[str, int]) -> None:
    """In a collective the replicas of a program exchange values; each device has its own result."""
    operation, count = case
    executable = _compiled_collective(subject, _sample(operation, count), count)
    arrays = _arrays(count)
    launch = Launch(subject, executable, _rows(subject, executable, arrays))
    for device, array in enumerate(_expected(operation, arrays)):
        launch.expect(array, device=device)


@check("collectives.in_flight", calls=_COLLECTIVE_CALLS)
def _in_flight(subject: Subject) -> None:
    """Several launches of a program with collectives may be in flight; each exchanges its own values."""
    executable = _compiled_collective(subject, "all_reduce", 2)
    launches = [
        Launch(subject, executable, _rows(subject, executable, [_X * number, _X + number])) for number in range(_ROUNDS)
    ]
    for number, launch in enumerate(launches):
        for device in range(2):
            launch.expect(_X * number + _X + number, device=device)


@check("collectives.events", calls=(*_COLLECTIVE_CALLS, "PJRT_Event_Await"))
def _events(subject: Subject) -> None:
    """There is an event for each device, which is ready when the device has finished."""
    executable = _compiled_collective(subject, "all_reduce", 2)
    launch = Launch(subject, executable, _rows(subject, executable, _arrays(2)), with_events=True).succeeded()
    subject.expect(len(set(launch.events)) == 2, "2 events", "the same handle for both")
    for event in launch.events:
        subject.await_event(event)


@check("collectives.device_by_device", calls=_COLLECTIVE_CALLS)
def _one_by_one(subject: Subject) -> None:
    """A program for several devices may be launched on each by execute_device, by one call for each device."""
    executable = _compiled_collective(subject, "all_reduce", 2)
    devices = subject.call("PJRT_LoadedExecutable_AddressableDevices", executable=executable).addressable_devices
    rows = _rows(subject, executable, _arrays(2))
    launches = []
    for row, device in zip(rows, devices, strict=True):
        launch = Launch(subject, executable, [row], execute_device=device, launch_id=3)
        if launch.error is not None and launch.error.code == StatusCode.UNIMPLEMENTED:
            raise Unsupported(f"executions on one of several devices: {launch.error}")
        launches.append(launch.succeeded())
    for launch in launches:
        launch.expect(2 * _X + 10)


@check("collectives.waits_for_each_device", calls=_COLLECTIVE_CALLS)
def _waits(subject: Subject) -> None:
    """A collective waits for the values of all devices, also where one of them comes later."""
    executable = _compiled_collective(subject, "all_reduce", 2)
    rows = _rows(subject, executable, _arrays(2))
    pending = PendingBuffer(subject)
    launch = Launch(subject, executable, [[pending.handle], rows[1]]).succeeded()
    pending.fulfil(_X)
    for device in range(2):
        launch.expect(2 * _X + 10, device=device)


@check("collectives.error_of_one_device", calls=(*_COLLECTIVE_CALLS, "PJRT_Client_CreateErrorBuffer"))
def _error(subject: Subject) -> None:
    """Where the argument of one device has an error its results have that error; those of the others have an error too,
    and nothing waits for ever.
    """
    executable = _compiled_collective(subject, "all_reduce", 2)
    rows = _rows(subject, executable, _arrays(2))
    failed = error_buffer(subject, StatusCode.DATA_LOSS, b"lost on the way")
    launch = Launch(subject, executable, [[failed], rows[1]])
    errors = launch.errors()
    first = errors[0]
    subject.expect(
        first is not None and first.code == StatusCode.DATA_LOSS, "DATA_LOSS on the first device", str(first)
    )
    subject.expect(all(error is not None for error in errors), "an error on each device", str(errors))
    again = Launch(subject, executable, _rows(subject, executable, _arrays(2)))
    again.expect(2 * _X + 10)


@check("collectives.replica_id", calls=_COLLECTIVE_CALLS)
def _replica_id(subject: Subject) -> None:
    """Each replica knows its number: the results of the devices are in the order of the replicas."""
    executable = _compiled_collective(subject, "replica_id", 2)
    launch = Launch(subject, executable, [[], []])
    for device in range(2):
        launch.expect(np.array(device, np.uint32), device=device)
