"""Checks of arguments that do not fit the program: they are refused with an error, and the client goes on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.executions.launch import Launch
from pjrt.conformance.plugin.contract.programs.compilation import expect_sum
from pjrt.conformance.plugin.subject import Subject

_CALLS = ("PJRT_LoadedExecutable_Execute",)
_X = np.arange(4, dtype=np.float32)


def _expect_refused(subject: Subject, executable: int, launch: Launch) -> None:
    """Fail the check unless the call, or each result, has an error with a message, and the executable still works."""
    launch.expect_error()
    for error in launch.errors():
        subject.expect(error is not None and bool(error.message), "a message", f"{error} without one")
    expect_sum(subject, executable)


@check(
    "arguments.number",
    calls=_CALLS,
    over=(0, 1, 3, 64),
    rule="num_args is the number of the program's parameters; another number is refused with an error.",
)
def _number(subject: Subject, count: int) -> None:
    loaded = subject.compile("add")
    _expect_refused(subject, loaded, Launch(subject, loaded, [[subject.buffer(_X)] * count]))


_WRONG: dict[str, Callable[[], np.ndarray]] = {
    "element_type": lambda: np.arange(4, dtype=np.int32),
    "smaller_element_type": lambda: np.arange(4, dtype=np.int8),
    "more_elements": lambda: np.arange(5, dtype=np.float32),
    "fewer_elements": lambda: np.arange(3, dtype=np.float32),
    "no_elements": lambda: np.zeros(0, np.float32),
    "scalar": lambda: np.array(1, np.float32),
    "rank": lambda: np.arange(4, dtype=np.float32).reshape(2, 2),
}


@check(
    "arguments.shape",
    calls=_CALLS,
    over=_WRONG,
    rule="An argument has the element type and the shape of its parameter; another is refused with an error.",
)
def _shape(subject: Subject, array: Callable[[], np.ndarray]) -> None:
    loaded = subject.compile("add")
    for place in (0, 1):
        arguments = [subject.buffer(_X), subject.buffer(_X)]
        arguments[place] = subject.buffer(array())
        _expect_refused(subject, loaded, Launch(subject, loaded, [arguments]))


@check(
    "arguments.another_device",
    calls=_CALLS,
    rule="Arguments are on the device that runs the program; a buffer of another device is refused with an error.",
)
def _another_device(subject: Subject) -> None:
    second = subject.several_devices(2)[1]
    loaded = subject.compile("add")
    launch = Launch(subject, loaded, [[subject.buffer(_X), subject.buffer(_X, device=second)]])
    _expect_refused(subject, loaded, launch)


@check(
    "arguments.deleted",
    calls=(*_CALLS, "PJRT_Buffer_Delete"),
    rule="A deleted buffer has no contents: an execution that takes it is refused with an error.",
)
def _deleted(subject: Subject) -> None:
    loaded = subject.compile("add")
    buffer = subject.buffer(_X)
    subject.call("PJRT_Buffer_Delete", buffer=buffer)
    _expect_refused(subject, loaded, Launch(subject, loaded, [[subject.buffer(_X), buffer]]))


@check(
    "arguments.refused_ones_are_not_used_up",
    calls=_CALLS,
    rule="A call that fails takes nothing: arguments that it would have donated keep their contents.",
)
def _not_used_up(subject: Subject) -> None:
    loaded = subject.compile("donates_first")
    x, wrong = subject.buffer(_X), subject.buffer(np.arange(5, dtype=np.float32))
    launch = Launch(subject, loaded, [[x, wrong]])
    launch.expect_error()
    if launch.error is not None and not subject.call("PJRT_Buffer_IsDeleted", buffer=x).is_deleted:
        subject.expect_contents(x, _X)


@check(
    "arguments.number_of_lists",
    calls=_CALLS,
    over=(0, 2),
    rule="There is one list of arguments for each addressable device of the executable; another number is refused.",
)
def _lists(subject: Subject, count: int) -> None:
    loaded = subject.compile("add")
    launch = Launch(subject, loaded, [[subject.buffer(_X), subject.buffer(_X)]] * count, num_args=2)
    subject.expect(launch.error is not None, "an error", f"an execution with {count} lists on 1 device")
    expect_sum(subject, loaded)


@check(
    "arguments.execute_device_takes_one_list",
    calls=_CALLS,
    rule="With execute_device num_devices is 1; another number is refused with an error.",
)
def _execute_device(subject: Subject) -> None:
    loaded = subject.compile("add")
    rows = [[subject.buffer(_X), subject.buffer(_X)]] * 2
    launch = Launch(subject, loaded, rows, execute_device=subject.device)
    subject.expect(launch.error is not None, "an error", "an execution with 2 lists on 1 device")
    expect_sum(subject, loaded)


@check(
    "arguments.execute_device_is_in_the_assignment",
    calls=_CALLS,
    rule="A program runs on the devices that it was compiled for: another execute_device is refused with an error, "
    "unless the executable is portable.",
)
def _unassigned_device(subject: Subject) -> None:
    second = subject.several_devices(2)[1]
    loaded = subject.compile("add")
    rows = [[subject.buffer(_X, device=second), subject.buffer(_X, device=second)]]
    launch = Launch(subject, loaded, rows, execute_device=second)
    launch.expect_error()
    expect_sum(subject, loaded)
