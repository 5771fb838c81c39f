"""Checks of the results of ``PJRT_LoadedExecutable_Execute``."""

from __future__ import annotations

import numpy as np

from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.subject import Subject


@check(
    "execute.results.add",
    calls=("PJRT_Client_Compile", "PJRT_LoadedExecutable_Execute"),
    rule="An execution returns one buffer for each result of the program, with what the program computes.",
)
def _add(subject: Subject) -> None:
    executable = subject.compile("add")
    x, y = np.arange(4, dtype=np.float32), np.full(4, 10, np.float32)
    outputs = subject.execute(executable, [[subject.buffer(x), subject.buffer(y)]])
    subject.expect_contents(outputs[0][0], x + y)
