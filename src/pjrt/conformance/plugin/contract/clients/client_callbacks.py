"""Checks of the extension Callback: functions that a client calls when something happens to it."""

from __future__ import annotations

import ctypes

from pjrt.api.errors import StatusCode
from pjrt.capi.layer.schema import STRUCTS
from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.subject import Subject

_REGISTER, _INVOKE = "PJRT_Callback_RegisterCallback", "PJRT_Callback_InvokeCallback"
_PREFATAL = 2


class _Record:
    """A callback that records the user data of its calls."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.kept: list[object] = []

    def __call__(self, arguments: int, user_arg: int) -> None:
        """Record a call."""
        self.calls.append(user_arg)


def _register(subject: Subject, record: _Record, user_arg: int) -> None:
    subject.require_extension("Callback")
    answer = subject.attempt(_REGISTER, client=subject.client, type=_PREFATAL, callback=record, user_arg=user_arg)
    if answer.error is not None:
        raise Unsupported(f"callbacks before the end of a process: {answer.error}")
    record.kept.append(answer)  # the function lives as long as it


def _invoke(subject: Subject) -> None:
    fields = STRUCTS["PJRT_Callback_PrefatalArgs"].fields
    memory = ctypes.create_string_buffer(STRUCTS["PJRT_Callback_PrefatalArgs"].size)
    ctypes.c_size_t.from_buffer(memory).value = len(memory)
    ctypes.c_int.from_buffer(memory, fields["error_code"].offset).value = StatusCode.INTERNAL
    subject.call(_INVOKE, client=subject.client, type=_PREFATAL, args=ctypes.addressof(memory))


@check(
    "callback.invoke",
    calls=(_REGISTER, _INVOKE),
    rule="PJRT_Callback_InvokeCallback calls the callbacks of the type, with their user data, before it returns.",
)
def _invoked(subject: Subject) -> None:
    record = _Record()
    _register(subject, record, 41)
    _invoke(subject)
    subject.expect(record.calls == [41], "one call with the user data 41", str(record.calls))


@check(
    "callback.several",
    calls=(_REGISTER, _INVOKE),
    rule="All callbacks of a type are called.",
)
def _several(subject: Subject) -> None:
    first, second = _Record(), _Record()
    _register(subject, first, 1)
    _register(subject, second, 2)
    _invoke(subject)
    calls = (first.calls, second.calls)
    subject.expect(calls == ([1], [2]), "one call of each", str(calls))
