"""Checks of ``PJRT_Client_UpdateGlobalProcessInfo``."""

from __future__ import annotations

from pjrt.capi import raw
from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.subject import Subject

_UPDATE = "PJRT_Client_UpdateGlobalProcessInfo"
_STATES = ("kUnspecified", "kUninitialized", "kDisconnected", "kConnected", "kError")


@check(
    "client.update_global_process_info.state",
    calls=(_UPDATE,),
    rule="A client takes note of the states of the processes of its job.",
    over={name: number for number, name in enumerate(_STATES)},
)
def _state(subject: Subject, state: int) -> None:
    subject.require(_UPDATE)
    message = "lost" if state == 4 else None
    process = raw.Struct(
        "PJRT_ProcessInfo", task_id=0, incarnation_id=1, state=state, error_code=14 if message else 0,
        error_message=message,
    )  # fmt: skip
    subject.call(_UPDATE, client=subject.client, process_infos=[process])


@check(
    "client.update_global_process_info.none",
    calls=(_UPDATE,),
    rule="The list of processes may be empty.",
)
def _none(subject: Subject) -> None:
    subject.require(_UPDATE)
    subject.call(_UPDATE, client=subject.client, process_infos=0, num_process_infos=0)
