"""Checks of many threads, which compile, execute, read and destroy at the same time, over one client or several."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np

from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.buffers.calls import MISUSE
from pjrt.conformance.plugin.contract.buffers.memory import DECREASE as _DECREASE
from pjrt.conformance.plugin.contract.buffers.memory import INCREASE as _INCREASE
from pjrt.conformance.plugin.contract.endurance.leaks import Destroyer, PreparedCall
from pjrt.conformance.plugin.contract.executions.launch import Launch, PendingBuffer
from pjrt.conformance.plugin.subject import Subject

_EXECUTE = "PJRT_LoadedExecutable_Execute"
_TO_HOST = "PJRT_Buffer_ToHostBuffer"
_THREADS = 64
_FEW_THREADS = 8
_MANY_ROUNDS = 1000
"""The threads and the rounds of prepared calls, which come close enough to each other for races to show."""
_CLIENTS = 4
_ROUNDS = 3
_SECONDS = 2.0
"""The time after which a thread begins no more rounds of prepared calls."""
_QUICK_SECONDS = 0.1
"""The time of a compilation up to which all threads compile."""
_X = np.arange(4, dtype=np.float32)


def _in_threads(work: Callable[[int], None], count: int = _THREADS) -> None:
    """Call a function in many threads at the same time, with the number of each; raise the first error."""
    problems: list[BaseException] = []
    barrier = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            barrier.wait()
            work(number)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


def _add(subject: Subject, executable: int, number: int) -> None:
    """Execute a sum whose arguments belong to one thread, and destroy everything."""
    x, y = _X + number, np.full(4, number * 3, np.float32)
    arguments = [subject.buffer(x), subject.buffer(y)]
    launch = Launch(subject, executable, [arguments], with_events=True)
    launch.expect(x + y)
    launch.destroy()
    subject.destroy_buffers(*arguments)


@check(
    "threads.execute",
    calls=(_EXECUTE, "PJRT_Client_BufferFromHostBuffer", "PJRT_Buffer_ToHostBuffer", "PJRT_Buffer_Destroy"),
)
def _execute(subject: Subject) -> None:
    """Many threads may execute one executable at the same time; each gets the results of its own arguments."""
    executable = subject.compile("add")
    subject.device  # made before the threads ask for it  # noqa: B018

    def work(number: int) -> None:
        for _ in range(_ROUNDS):
            _add(subject, executable, number)

    _in_threads(work)


@check("threads.compile", calls=("PJRT_Client_Compile", _EXECUTE, "PJRT_LoadedExecutable_Destroy"))
def _compile(subject: Subject) -> None:
    """Many threads may compile at the same time; each gets an executable of its own."""
    subject.device  # noqa: B018
    executables: list[int] = []
    begin = time.monotonic()
    subject.compile("add")
    count = _THREADS if time.monotonic() - begin < _QUICK_SECONDS else 8

    def work(number: int) -> None:
        executable = subject.compile("add" if number % 2 else "subtract")
        executables.append(executable)
        x, y = subject.buffer(_X + number), subject.buffer(_X)
        Launch(subject, executable, [[x, y]]).expect(2 * _X + number if number % 2 else _X + number - _X)

    _in_threads(work, count)
    subject.expect(len(set(executables)) == count, f"{count} executables", str(len(set(executables))))
    _in_threads(lambda number: _destroy(subject, executables[number]), count)


def _destroy(subject: Subject, executable: int) -> None:
    subject.call("PJRT_LoadedExecutable_Destroy", executable=executable)


@check(
    "threads.questions",
    calls=(
        "PJRT_Executable_Name",
        "PJRT_Executable_NumOutputs",
        "PJRT_Device_GetDescription",
        "PJRT_Buffer_Dimensions",
    ),
)
def _questions(subject: Subject) -> None:
    """Many threads may ask about the same objects at the same time; each gets the same answers."""
    loaded = subject.compile("add")
    handle = subject.call("PJRT_LoadedExecutable_GetExecutable", loaded_executable=loaded).executable
    buffer = subject.buffer(_X)
    answers = set()

    def work(_: int) -> None:
        for _round in range(_ROUNDS):
            answers.add(
                (
                    subject.call("PJRT_Executable_Name", executable=handle).executable_name,
                    subject.call("PJRT_Executable_NumOutputs", executable=handle).num_outputs,
                    subject.call("PJRT_Device_GetDescription", device=subject.device).device_description,
                    subject.shape(buffer),
                )
            )

    _in_threads(work)
    subject.expect(len(answers) == 1, "the same answers in all threads", str(answers))


@check("threads.read_one_buffer", calls=("PJRT_Buffer_ToHostBuffer", "PJRT_Buffer_ReadyEvent"))
def _read(subject: Subject) -> None:
    """Many threads may read one buffer at the same time, also before it has its value."""
    pending = PendingBuffer(subject)
    launch = Launch(subject, subject.compile("add"), [[pending.handle, subject.buffer(_X)]]).succeeded()
    (result,) = launch.results[0]
    barrier = threading.Barrier(_THREADS + 1)

    def feed() -> None:
        barrier.wait()
        pending.fulfil(_X)

    feeder = threading.Thread(target=feed)
    feeder.start()

    def work(_: int) -> None:
        barrier.wait()
        subject.expect_contents(result, 2 * _X)

    _in_threads(work)
    feeder.join()


@check("threads.one_argument", calls=(_EXECUTE,))
def _one_argument(subject: Subject) -> None:
    """Many threads may give one buffer to executions at the same time."""
    executable, x = subject.compile("add"), subject.buffer(_X)

    def work(number: int) -> None:
        other = np.full(4, number, np.float32)
        Launch(subject, executable, [[x, subject.buffer(other)]]).expect(_X + other)

    _in_threads(work)
    subject.expect_contents(x, _X)


@check("threads.donate_one_buffer", calls=(_EXECUTE, "PJRT_Buffer_IsDeleted"))
def _donate(subject: Subject) -> None:
    """A buffer is donated once: of many threads that donate it at the same time at most one gets a result, and the
    others an error.
    """
    executable, y = subject.compile("donates_first"), subject.buffer(np.ones(4, np.float32))
    x = subject.buffer(_X)
    launches: list[Launch] = []
    _in_threads(lambda _: launches.append(Launch(subject, executable, [[x, y]])), 16)
    fine = [each for each in launches if all(error is None for error in each.errors())]
    deleted = subject.call("PJRT_Buffer_IsDeleted", buffer=x).is_deleted
    if deleted:
        subject.expect(len(fine) == 1, "one execution that succeeds", str(len(fine)))
    for each in fine:
        each.expect(_X + 1)


@check("threads.several_clients", calls=("PJRT_Client_Create", "PJRT_Client_Compile", _EXECUTE))
def _several_clients(subject: Subject) -> None:
    """Clients of one plugin do not disturb each other: threads may use each at the same time."""
    subjects = []
    for _ in range(_CLIENTS):
        other = Subject(subject.plugin, subject.options, subject.samples, subject.name)
        other.device  # noqa: B018
        subjects.append(other)
    handles = {other.client for other in subjects}
    subject.expect(len(handles) == _CLIENTS, f"{_CLIENTS} clients", f"{len(handles)} different handles")
    executables = [other.compile("add") for other in subjects]
    _in_threads(lambda number: _add(subjects[number % _CLIENTS], executables[number % _CLIENTS], number))
    for other, executable in zip(subjects, executables, strict=True):
        other.call("PJRT_LoadedExecutable_Destroy", executable=executable)
    subjects[0].call("PJRT_Client_Destroy", client=subjects[0].client)
    _add(subjects[1], subjects[1].compile("add"), 1)


@check(
    "threads.create_and_destroy_clients",
    calls=("PJRT_Client_Create", "PJRT_Client_Destroy", "PJRT_Client_AddressableDevices"),
)
def _clients(subject: Subject) -> None:
    """Threads may create and destroy clients at the same time."""
    subject.new_client()

    def work(_: int) -> None:
        client = subject.new_client()
        devices = subject.call("PJRT_Client_AddressableDevices", client=client).addressable_devices
        subject.expect(bool(devices), "a client with devices", "none")
        subject.call("PJRT_Client_Destroy", client=client)

    _in_threads(work, 8)


@check("threads.external_references", calls=(_INCREASE, _DECREASE))
def _external_references(subject: Subject) -> None:
    """Many threads may take and give back external references of one buffer at the same time: none is lost."""
    subject.require(_INCREASE, _DECREASE)
    buffer = subject.buffer(_X)
    subject.call(_INCREASE, buffer=buffer)
    subject.call(_DECREASE, buffer=buffer)
    increases = [PreparedCall(subject, _INCREASE, buffer=buffer) for _ in range(_FEW_THREADS)]
    decreases = [PreparedCall(subject, _DECREASE, buffer=buffer) for _ in range(_FEW_THREADS)]
    taken = [0] * _FEW_THREADS

    def take(number: int) -> None:
        # A call takes from 1 to 50 us: this interpreter hands its lock over at each one.
        end = time.monotonic() + _SECONDS
        while taken[number] < 25 * _MANY_ROUNDS and time.monotonic() < end:
            for _ in range(_MANY_ROUNDS):
                increases[number]()
            taken[number] += _MANY_ROUNDS

    def give_back(number: int) -> None:
        for _ in range(taken[number]):
            decreases[number]()

    _in_threads(take, _FEW_THREADS)
    _in_threads(give_back, _FEW_THREADS)
    subject.fails(_DECREASE, MISUSE, buffer=buffer)
    subject.destroy_buffers(buffer)


@check("threads.many_reads_of_one_buffer", calls=(_TO_HOST, "PJRT_Event_Await", "PJRT_Event_Destroy"))
def _many_reads(subject: Subject) -> None:
    """Many threads may read one buffer at the same time, again and again."""
    buffer = subject.buffer(_X)
    subject.expect_contents(buffer, _X)
    targets = np.zeros((_FEW_THREADS, _X.size), _X.dtype)
    reads = [
        (
            PreparedCall(subject, _TO_HOST, src=buffer, dst=target.ctypes.data, dst_size=target.nbytes),
            Destroyer(subject, "PJRT_Event_Await", "event"),
            Destroyer(subject, "PJRT_Event_Destroy", "event"),
        )
        for target in targets
    ]

    def work(number: int) -> None:
        read, wait, destroy = reads[number]
        event = read.field("event")
        for _ in range(_MANY_ROUNDS // 4):
            read()
            wait(event)
            destroy(event)

    _in_threads(work, _FEW_THREADS)
    subject.expect(bool((targets == _X).all()), str(_X), str(targets))
    subject.expect_contents(buffer, _X)
