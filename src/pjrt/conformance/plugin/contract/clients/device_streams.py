"""Checks of the extension Stream: the queue of a device that other code waits for."""

from __future__ import annotations

import numpy as np

from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.programs.executables import answer_of
from pjrt.conformance.plugin.subject import Subject

_GET, _WAIT = "PJRT_Get_Stream_For_External_Ready_Events", "PJRT_Wait_Until_Buffer_Ready_On_Stream"


@check(
    "stream.waits_for_a_buffer",
    calls=(_GET, _WAIT),
    rule="A stream of a device can be told to wait until a buffer has its value.",
)
def _waits(subject: Subject) -> None:
    subject.require_extension("Stream")
    stream = answer_of(subject, _GET, device=subject.device).stream
    array = np.arange(4, dtype=np.float32)
    buffer = subject.buffer(array)
    answer_of(subject, _WAIT, stream=stream, buffer=buffer)
    subject.expect_contents(buffer, array)
