"""Leaks of executions and programs: what is made and destroyed again and again leaves no memory behind."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.endurance.memory_growth import ROUNDS, expect_no_growth
from pjrt.conformance.plugin.contract.endurance.prepared_call import Destroyer, PreparedCall
from pjrt.conformance.plugin.contract.programs.executables import executable_of
from pjrt.conformance.plugin.contract.programs.owned_bytes import delete
from pjrt.conformance.plugin.samples import MANY
from pjrt.conformance.plugin.subject import Subject

_EXECUTE = "PJRT_LoadedExecutable_Execute"
_COMPILATIONS = 1_000
_HEAP_BYTES = 512
_RESIDENT_BYTES = 4096
"""The bytes for each compilation that count as a leak: compilers keep a little of what they have seen."""
_X = np.arange(4, dtype=np.float32)
Round = Callable[[], None]


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


_ROUNDS: dict[str, tuple[Callable[[Subject], Round], int]] = {
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
    over=_ROUNDS,
    rule="What the caller destroys is freed: ten thousand executions leave no memory behind.",
)
def _executions(subject: Subject, case: tuple[Callable[[Subject], Round], int]) -> None:
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
    rule="What the caller destroys is freed: a thousand compilations leave no memory behind.",
)
def _compilations(subject: Subject, case: tuple[Callable[[Subject], Round], int, int, int]) -> None:
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
