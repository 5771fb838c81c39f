"""Leaks: what is made and destroyed again and again leaves no memory behind."""

from __future__ import annotations

import ctypes
import functools
import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pjrt.abi.schema import FUNCTIONS, STRUCTS
from pjrt.api.errors import StatusCode
from pjrt.capi import raw
from pjrt.capi.raw.struct import UNSIGNED, StructWriter, callback
from pjrt.conformance.plugin.check import Failed, Unsupported, check
from pjrt.conformance.plugin.contract.buffers.calls import (
    IMMUTABLE_ZERO_COPY,
    ONLY_DURING_CALL,
    default_memory,
    host_fields,
    other_device,
    ramp,
    tiled,
)
from pjrt.conformance.plugin.contract.buffers.layouts import DEFAULT_LAYOUT, DESTROY_LAYOUT
from pjrt.conformance.plugin.contract.buffers.memory import DECREASE, INCREASE
from pjrt.conformance.plugin.contract.buffers.pending import CREATE_ALIAS, CREATE_ERROR, FULFILL
from pjrt.conformance.plugin.contract.programs.executables import delete, executable_of
from pjrt.conformance.plugin.contract.transfers.transfer_managers import CREATE as CREATE_MANAGER
from pjrt.conformance.plugin.contract.transfers.transfer_managers import DESTROY as DESTROY_MANAGER
from pjrt.conformance.plugin.contract.transfers.transfer_managers import RETRIEVE, TRANSFER
from pjrt.conformance.plugin.samples import MANY
from pjrt.conformance.plugin.subject import Subject

# The growth of a process's memory while something is made and destroyed again and again.

ROUNDS = 10_000
"""The rounds of a check, unless they are slow."""

_SECONDS = 1.2
"""The time after which a check makes no more rounds; a slow plugin gets fewer."""

_PARTS = 5
"""The parts of a check, each of half its rounds; memory that does not grow in one of them is no leak."""

_SETTLING = 0.4
"""The seconds after a part in which a plugin may still free memory."""

_MANY = 200
"""The rounds that show a small leak."""

_STATM = Path("/proc/self/statm")
_PAGE = 4096
_X = np.arange(4, dtype=np.float32)


def expect_no_growth(
    subject: Subject,
    run: Callable[[], None],
    *,
    rounds: int = ROUNDS,
    least: int | None = None,
    warm_up: int | None = None,
    heap_bytes: int = 8,
    resident_bytes: int = 48,
) -> None:
    """Make rounds, and fail the check where each leaves memory behind.

    Args:
        subject: the plugin.
        run: makes a round.
        rounds: the number of rounds.
        least: the number that a slow plugin gets in each part; a tenth of all by default.
        warm_up: the least number of rounds before; ``least`` by default.
        heap_bytes: the bytes of the heap for each round that count as a leak.
        resident_bytes: the same of main memory, which allocators give back in pieces.
    """
    least = rounds // 10 if least is None else least
    subject.plugin.observer = None  # the transcript is memory, too
    # What a plugin keeps for later rounds is made in the first ones.
    _repeat(run, max(rounds // 10, warm_up or 0), least if warm_up is None else warm_up)
    growths, heap_leaks, resident_leaks = [], True, True
    for _ in range(_PARTS):  # a leak grows in each part; memory that is only kept longer does not
        subject.await_buffers([subject.buffer(_X)])
        before = _memory()
        count = _repeat(run, rounds // 2, least)
        # Of few rounds only a large leak can be told from what allocators do.
        heap_floor, resident_floor = (32 << 10, 192 << 10) if count >= _MANY else (4 << 20, 8 << 20)
        settled = time.monotonic() + _SETTLING
        while True:
            subject.await_buffers([subject.buffer(_X)])
            heap, resident = ((later - earlier) / count for earlier, later in zip(before, _memory(), strict=True))
            heap_grows = heap >= max(heap_bytes, heap_floor / count)
            resident_grows = resident >= max(resident_bytes, resident_floor / count)
            if not (heap_grows or resident_grows) or time.monotonic() > settled:
                break
            time.sleep(0.02)  # a plugin's threads may free memory a moment later
        growths.append((heap, resident, count))
        heap_leaks &= heap_grows
        resident_leaks &= resident_grows
        if not (heap_leaks or resident_leaks):
            break
    heap, resident = min(each[0] for each in growths), min(each[1] for each in growths)
    subject.expect(
        not (heap_leaks or resident_leaks),
        "no memory to be left behind",
        f"{heap:.0f} bytes of the heap and {resident:.0f} bytes of main memory in each of "
        f"{sum(each[2] for each in growths)} rounds",
    )


def _repeat(run: Callable[[], None], most: int, least: int) -> int:
    """Make rounds until there are enough, or the time is up; return their number."""
    end = time.monotonic() + _SECONDS / 2
    for number in range(1, most + 1):
        run()
        if number >= least and time.monotonic() > end:
            return number
    return most


class _HeapInfo(ctypes.Structure):
    """The ``mallinfo2`` of the C library."""

    _fields_ = (
        ("before", ctypes.c_size_t * 7),
        ("in_use", ctypes.c_size_t),
        ("behind", ctypes.c_size_t * 2),
    )


@functools.cache
def _heap_info() -> Any:
    """Return the function of the C library that counts the bytes of its heap; ``None`` if it has none."""
    function = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if function is not None:
        function.restype = _HeapInfo
    return function


def _memory() -> tuple[int, int]:
    """Return the bytes of the heap that are in use, or 0, and the bytes of the process in main memory."""
    gc.collect()  # of a plugin in Python, which shares this interpreter, and of the check
    if not _STATM.exists():
        raise Unsupported("the memory of a process on this system")
    function = _heap_info()
    in_use = 0 if function is None else int(function().in_use)
    return in_use, int(_STATM.read_text().split()[1]) * _PAGE


# Calls that are made many times: their structs are written once, and no transcript is kept.


class PreparedCall:
    """A call of a function with a struct that is written once.

    Args:
        subject: the plugin.
        name: the function.
        fields: the fields of its arguments.
    """

    def __init__(self, subject: Subject, name: str, **fields: Any) -> None:
        self._slot = subject.plugin.table.function(name)
        if self._slot is None:
            raise Unsupported(f"the plugin lacks {name}")
        self._subject, self._name = subject, name
        self._has_succeeded = False
        self._spec = STRUCTS[FUNCTIONS[name].args]
        self._returns_nothing = FUNCTIONS[name].result == "NOTHING"
        writer = StructWriter()
        self._address = writer.build(self._spec.name, fields)
        self._memory = writer.memory

    def field(self, name: str) -> Any:
        """Return a field as a number of ctypes, whose ``value`` is read and written."""
        field = self._spec.fields[name]
        return UNSIGNED[field.size].from_address(self._address + field.offset)

    def __call__(self) -> None:
        """Make the call, which must succeed.

        Raises:
            Failed: the plugin returned an error.
            Unsupported: the first call is answered UNIMPLEMENTED; whether it may be is for the function's own checks.
        """
        error = self._slot(self._address)
        if error and not self._returns_nothing:  # a C function without a result leaves any number in its place
            found = self._subject.plugin.take_error(error)
            if found.code == StatusCode.UNIMPLEMENTED and not self._has_succeeded:
                raise Unsupported(f"{self._name} is unimplemented")
            raise Failed(f"{self._name} to succeed{', as it did before' if self._has_succeeded else ''}", str(found))
        self._has_succeeded = True

    def error(self) -> int:
        """Make the call, which must fail, and return the address of the error."""
        error = self._slot(self._address)
        if not error:
            raise Failed(f"{self._name} to fail, as it did before", "that it succeeded")
        return int(error)


class Destroyer:
    """Calls of a function that destroys or awaits a handle.

    Args:
        subject: the plugin.
        name: the function.
        field: the field with the handle.
    """

    def __init__(self, subject: Subject, name: str, field: str) -> None:
        self._call = PreparedCall(subject, name, **{field: 0})
        self._handle = self._call.field(field)

    def __call__(self, handle: Any) -> None:
        """Call the function with the handle that is in a field of another call."""
        self._handle.value = handle.value
        self._call()


# Leaks: what is made and destroyed ten thousand times leaves no memory behind.

Round = Callable[[], None]


def _buffer(subject: Subject, semantics: int = ONLY_DURING_CALL) -> Round:
    array = ramp(16)
    make = PreparedCall(subject, "PJRT_Client_BufferFromHostBuffer", **host_fields(subject, array, semantics))
    buffer, event = make.field("buffer"), make.field("done_with_host_buffer")
    wait = Destroyer(subject, "PJRT_Event_Await", "event")
    end_event = Destroyer(subject, "PJRT_Event_Destroy", "event")
    end_buffer = Destroyer(subject, "PJRT_Buffer_Destroy", "buffer")

    def run() -> None:
        make()
        end_buffer(buffer)
        wait(event)
        end_event(event)

    return run


def _event_of(subject: Subject, make: PreparedCall, event: str = "event") -> Round:
    """Return a round of a call whose event is awaited and destroyed."""
    handle = make.field(event)
    wait = Destroyer(subject, "PJRT_Event_Await", "event")
    end = Destroyer(subject, "PJRT_Event_Destroy", "event")

    def run() -> None:
        make()
        wait(handle)
        end(handle)

    return run


def _ready_event(subject: Subject) -> Round:
    return _event_of(subject, PreparedCall(subject, "PJRT_Buffer_ReadyEvent", buffer=subject.buffer(ramp(4))))


def _read(subject: Subject) -> Round:
    data = np.zeros(16, np.float32)
    return _event_of(subject, PreparedCall(subject, "PJRT_Buffer_ToHostBuffer", src=subject.buffer(ramp(16)), dst=data))


def _raw_read(subject: Subject) -> Round:
    data = np.zeros(16, np.float32)
    call = PreparedCall(
        subject,
        "PJRT_Buffer_CopyRawToHost",
        buffer=subject.buffer(ramp(16)),
        dst=data,
        offset=0,
        transfer_size=data.nbytes,
    )
    return _event_of(subject, call)


def _ready_callback(subject: Subject) -> Round:
    ready = PreparedCall(subject, "PJRT_Buffer_ReadyEvent", buffer=subject.buffer(ramp(4)))
    event = ready.field("event")
    function = callback("PJRT_Event_OnReadyCallback", lambda error, user_arg: None)
    address = ctypes.cast(function, ctypes.c_void_p).value
    register = PreparedCall(subject, "PJRT_Event_OnReady", callback=address, user_arg=0)
    target = register.field("event")
    end = Destroyer(subject, "PJRT_Event_Destroy", "event")

    def run(_function: Any = function) -> None:
        ready()
        target.value = event.value
        register()
        end(event)

    return run


def _error(subject: Subject, name: str, **fields: Any) -> Round:
    """Return a round of a call that fails, and of the end of its error."""
    call = PreparedCall(subject, name, **fields)
    destroy = PreparedCall(subject, "PJRT_Error_Destroy")
    handle = destroy.field("error")

    def run() -> None:
        handle.value = call.error()
        destroy()

    return run


def _failed_call(subject: Subject) -> Round:
    fields = {**host_fields(subject, ramp(4)), "dims": [-4]}
    return _error(subject, "PJRT_Client_BufferFromHostBuffer", **fields)


def _created_event(subject: Subject) -> Round:
    make = PreparedCall(subject, "PJRT_Event_Create")
    event = make.field("event")
    put = PreparedCall(subject, "PJRT_Event_Set", error_code=10, error_message="on purpose")
    target = put.field("event")
    end = Destroyer(subject, "PJRT_Event_Destroy", "event")

    def run() -> None:
        make()
        target.value = event.value
        put()
        end(event)

    return run


def _copy(subject: Subject) -> Round:
    call = PreparedCall(
        subject, "PJRT_Buffer_CopyToDevice", buffer=subject.buffer(ramp(16)), dst_device=other_device(subject)
    )
    return _made_buffer(subject, call, "dst_buffer", filled=True)


def _made_buffer(subject: Subject, make: PreparedCall, out: str = "buffer", *, filled: bool = False) -> Round:
    """Return a round of a call that makes a buffer, and of the end of the buffer and of its ready event.

    Args:
        subject: the plugin.
        make: the call.
        out: the field of the buffer.
        filled: whether the plugin fills the buffer with contents. They are waited for: rounds that are faster than the
            plugin's threads would pile up what those have not done yet.
    """
    buffer = make.field(out)
    ready = PreparedCall(subject, "PJRT_Buffer_ReadyEvent")
    target, event = ready.field("buffer"), ready.field("event")
    wait = Destroyer(subject, "PJRT_Event_Await", "event")
    end_event = Destroyer(subject, "PJRT_Event_Destroy", "event")
    end_buffer = Destroyer(subject, "PJRT_Buffer_Destroy", "buffer")

    def run() -> None:
        make()
        target.value = buffer.value
        ready()
        if filled:
            wait(event)
        end_event(event)
        end_buffer(buffer)

    return run


def _shape_fields(subject: Subject) -> dict[str, Any]:
    return {
        "client": subject.client,
        "shape_dims": [16],
        "shape_element_type": 11,
        "memory": default_memory(subject, subject.device),
    }


def _error_buffer(subject: Subject) -> Round:
    fields = {**_shape_fields(subject), "error_code": 10, "error_message": "no value, on purpose"}
    return _made_buffer(subject, PreparedCall(subject, CREATE_ERROR, **fields))


def _uninitialized_buffer(subject: Subject) -> Round:
    call = PreparedCall(subject, "PJRT_Client_CreateUninitializedBuffer", **_shape_fields(subject))
    return _made_buffer(subject, call)


def _alias_buffer(subject: Subject) -> Round:
    make = PreparedCall(subject, CREATE_ALIAS, **_shape_fields(subject), shape_layout=tiled([0]))
    buffer, handle = make.field("alias_buffer"), make.field("fulfill_alias_buffer_cb")
    fulfill = PreparedCall(subject, FULFILL, client=subject.client, buffer=subject.buffer(ramp(16)))
    target = fulfill.field("fulfill_alias_buffer_cb")
    end = Destroyer(subject, "PJRT_Buffer_Destroy", "buffer")

    def run() -> None:
        make()
        target.value = handle.value
        fulfill()
        end(buffer)

    return run


def _external_reference(subject: Subject) -> Round:
    buffer = subject.buffer(ramp(16))
    increase, decrease = PreparedCall(subject, INCREASE, buffer=buffer), PreparedCall(subject, DECREASE, buffer=buffer)

    def run() -> None:
        increase()
        decrease()

    return run


def _transfer(subject: Subject) -> Round:
    data = ramp(16)
    make = PreparedCall(
        subject,
        CREATE_MANAGER,
        client=subject.client,
        shape_specs=[raw.Struct("PJRT_ShapeSpec", dims=[16], element_type=11)],
        memory=default_memory(subject, subject.device),
    )
    manager = make.field("transfer_manager")
    take = PreparedCall(subject, RETRIEVE, buffer_index=0)
    move = PreparedCall(subject, TRANSFER, data=data, transfer_size=data.nbytes, is_last_transfer=True)
    of_take, of_move = take.field("transfer_manager"), move.field("transfer_manager")
    buffer, event = take.field("buffer_out"), move.field("done_with_h2d_transfer")
    wait = Destroyer(subject, "PJRT_Event_Await", "event")
    end_event = Destroyer(subject, "PJRT_Event_Destroy", "event")
    end_buffer = Destroyer(subject, "PJRT_Buffer_Destroy", "buffer")
    end_manager = Destroyer(subject, DESTROY_MANAGER, "transfer_manager")

    def run() -> None:
        make()
        of_take.value = of_move.value = manager.value
        take()
        move()
        wait(event)
        end_event(event)
        end_buffer(buffer)
        end_manager(manager)

    return run


def _layout(subject: Subject) -> Round:
    make = PreparedCall(subject, DEFAULT_LAYOUT, client=subject.client, type=11, dims=[3, 5])
    layout = make.field("layout")
    end = Destroyer(subject, DESTROY_LAYOUT, "layout")

    def run() -> None:
        make()
        end(layout)

    return run


def _getters(subject: Subject) -> Round:
    buffer = subject.buffer(ramp(3, 5))
    names = ("ElementType", "Dimensions", "UnpaddedDimensions", "DynamicDimensionIndices", "OnDeviceSizeInBytes")
    calls = [PreparedCall(subject, f"PJRT_Buffer_{name}", buffer=buffer) for name in names]

    def run() -> None:
        for call in calls:
            call()

    return run


_BUFFER_KINDS: dict[str, Callable[[Subject], Round]] = {
    "buffer": _buffer,
    "zero_copy_buffer": functools.partial(_buffer, semantics=IMMUTABLE_ZERO_COPY),
    "ready_event": _ready_event,
    "ready_callback": _ready_callback,
    "created_event": _created_event,
    "read": _read,
    "raw_read": _raw_read,
    "failed_call": _failed_call,
    "copy": _copy,
    "error_buffer": _error_buffer,
    "uninitialized_buffer": _uninitialized_buffer,
    "alias_buffer": _alias_buffer,
    "external_reference": _external_reference,
    "async_transfer": _transfer,
    "layout": _layout,
    "getters": _getters,
}


@check(
    "leaks.rounds",
    calls=(
        "PJRT_Buffer_Destroy",
        "PJRT_Event_Destroy",
        "PJRT_Error_Destroy",
        DESTROY_MANAGER,
        DESTROY_LAYOUT,
    ),
    over=_BUFFER_KINDS,
)
def _rounds(subject: Subject, kind: Callable[[Subject], Round]) -> None:
    """What the caller destroys is freed: ten thousand rounds leave no memory behind."""
    expect_no_growth(subject, kind(subject))


# Leaks of executions and programs: what is made and destroyed again and again leaves no memory behind.

_EXECUTE = "PJRT_LoadedExecutable_Execute"
_COMPILATIONS = 1_000
_HEAP_BYTES = 512
_RESIDENT_BYTES = 4096
"""The bytes for each compilation that count as a leak: compilers keep a little of what they have seen."""


class _Execution:
    """Executions of a program with one argument struct that is written once.

    Args:
        subject: the plugin.
        sample: the program.
        num_arguments: the number of its arguments.
        num_results: the number of its results.
    """

    def __init__(self, subject: Subject, sample: str, num_arguments: int, num_results: int = 1) -> None:
        x = subject.buffer(_X)
        self._results, self._events = np.zeros(num_results, np.uint64), np.zeros(1, np.uint64)
        self.call = PreparedCall(
            subject,
            _EXECUTE,
            executable=subject.compile(sample),
            options={},
            argument_lists=[[x] * num_arguments],
            num_devices=1,
            output_lists=[self._results.ctypes.data],
            device_complete_events=self._events.ctypes.data,
        )
        self._wait = PreparedCall(subject, "PJRT_Event_Await")
        self._end_event = PreparedCall(subject, "PJRT_Event_Destroy")
        self._end_buffer = PreparedCall(subject, "PJRT_Buffer_Destroy")
        self._handles = [call.field("event") for call in (self._wait, self._end_event)]
        self._buffer = self._end_buffer.field("buffer")

    def __call__(self) -> None:
        """Execute the program, wait for it, and destroy what it has made."""
        self.call()
        for handle in self._handles:
            handle.value = int(self._events[0])
        self._wait()
        self._end_event()
        for result in self._results:
            self._buffer.value = int(result)
            self._end_buffer()


def _execution(subject: Subject) -> Round:
    return _Execution(subject, "add", 2)


def _many_results(subject: Subject) -> Round:
    return _Execution(subject, "many_results", 1, MANY)


def _refused_execution(subject: Subject) -> Round:
    def run() -> None:
        answer = subject.attempt(_EXECUTE, executable=loaded, options={}, argument_lists=[[x]], output_lists=[[None]])
        if answer.error is None:
            subject.destroy_buffers(answer.output_lists[0][0])

    loaded, x = subject.compile("add"), subject.buffer(_X)
    return run


def _handle(subject: Subject) -> Round:
    get = PreparedCall(subject, "PJRT_LoadedExecutable_GetExecutable", loaded_executable=subject.compile("add"))
    handle, end = get.field("executable"), Destroyer(subject, "PJRT_Executable_Destroy", "executable")

    def run() -> None:
        get()
        end(handle)

    return run


def _context(subject: Subject) -> Round:
    subject.require("PJRT_ExecuteContext_Create")
    make = PreparedCall(subject, "PJRT_ExecuteContext_Create")
    context, end = make.field("context"), Destroyer(subject, "PJRT_ExecuteContext_Destroy", "context")

    def run() -> None:
        make()
        end(context)

    return run


def _owned(subject: Subject, name: str, executable: int, field: str) -> Round:
    """Return a round of a function that returns bytes with a deleter."""
    subject.require(name)
    subject.call(name, executable=executable)
    call = PreparedCall(subject, name, executable=executable)
    holder, deleter = call.field(field), call.field(f"{field}_deleter")

    def run() -> None:
        call()
        delete(deleter.value, holder.value)

    return run


def _serialized(subject: Subject) -> Round:
    handle = executable_of(subject, "add")
    return _owned(subject, "PJRT_Executable_Serialize", handle, "serialized_executable")


def _options(subject: Subject) -> Round:
    handle = executable_of(subject, "add")
    return _owned(subject, "PJRT_Executable_GetCompileOptions", handle, "serialized_compile_options")


def _assignment(subject: Subject) -> Round:
    loaded = subject.compile("add")
    return _owned(subject, "PJRT_LoadedExecutable_GetDeviceAssignment", loaded, "serialized_device_assignment")


_EXECUTION_KINDS: dict[str, tuple[Callable[[Subject], Round], int]] = {
    "execution": (_execution, ROUNDS),
    "execution_with_many_results": (_many_results, ROUNDS // 8),
    "refused_execution": (_refused_execution, ROUNDS // 4),
    "executable_handle": (_handle, ROUNDS),
    "execute_context": (_context, ROUNDS),
    "serialized_executable": (_serialized, ROUNDS // 4),
    "serialized_compile_options": (_options, ROUNDS // 4),
    "serialized_device_assignment": (_assignment, ROUNDS // 4),
}


@check(
    "leaks.executions",
    calls=(_EXECUTE, "PJRT_Buffer_Destroy", "PJRT_Event_Destroy", "PJRT_Executable_Destroy"),
    over=_EXECUTION_KINDS,
)
def _executions(subject: Subject, case: tuple[Callable[[Subject], Round], int]) -> None:
    """What the caller destroys is freed: ten thousand executions leave no memory behind."""
    kind, rounds = case
    expect_no_growth(subject, kind(subject), rounds=rounds)


def _compilation(subject: Subject) -> Round:
    def run() -> None:
        subject.call("PJRT_LoadedExecutable_Destroy", executable=subject.compile("add"))

    return run


def _refused_program(subject: Subject) -> Round:
    program = subject.program("add")
    damaged = {"code": bytes(program.code)[: len(program.code) // 2], "format": program.format}

    def run() -> None:
        subject.attempt("PJRT_Client_Compile", client=subject.client, program=damaged, compile_options=b"")

    return run


def _client(subject: Subject) -> Round:
    subject.call("PJRT_Client_Destroy", client=subject.new_client())

    def run() -> None:
        subject.call("PJRT_Client_Destroy", client=subject.new_client())

    return run


@check(
    "leaks.compilations",
    calls=("PJRT_Client_Compile", "PJRT_LoadedExecutable_Destroy", "PJRT_Client_Create", "PJRT_Client_Destroy"),
    over={
        "compilation": (_compilation, 2, _HEAP_BYTES, _RESIDENT_BYTES),
        "refused_program": (_refused_program, 2, _HEAP_BYTES, _RESIDENT_BYTES),
        # XLA keeps up to 70 KB for each client, whose threads end later. A process makes few clients.
        "client": (_client, 120, 256 << 10, 256 << 10),
    },
)
def _compilations(subject: Subject, case: tuple[Callable[[Subject], Round], int, int, int]) -> None:
    """What the caller destroys is freed: a thousand compilations leave no memory behind."""
    kind, warm_up, heap_bytes, resident_bytes = case
    run = kind(subject)
    expect_no_growth(
        subject,
        run,
        rounds=_COMPILATIONS,
        least=2,
        warm_up=warm_up,
        heap_bytes=heap_bytes,
        resident_bytes=resident_bytes,
    )
