"""Demand: which executions still have an owner of their results.

References decide, as they do where memory is reused (``take_writable``): an owner of a value holds its storage. Two
kinds of holders do not count by themselves, because they are work, too: an execution that waits for the value is wanted
if its own results are, and a copy to the host if its future is.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pjrt.host.copies import Copy

if TYPE_CHECKING:
    from pjrt.host.execution import Execution
    from pjrt.host.storage import Storage


def wanted_executions(executions: Iterable[Execution]) -> set[Execution]:
    """Return the executions that are wanted: a result, or a value computed from it by another of them, has an owner.

    Programs without results are run for their effects, and are always wanted.

    Args:
        executions: all executions of a client that are not done.
    """
    executions = list(executions)
    uses: Counter[int] = Counter()
    makers: dict[int, Execution] = {}
    for execution in executions:
        uses.update(map(id, execution.inputs))
        makers.update((id(storage), execution) for storage in execution.outputs or ())
    wanted = {execution for execution in executions if not execution.outputs or _is_held(execution.outputs, uses)}
    left = list(wanted)
    while left:
        for number in map(id, left.pop().inputs):
            maker = makers.get(number)
            if maker is not None and maker not in wanted:
                wanted.add(maker)
                left.append(maker)
    return wanted


def _is_held(outputs: list[Storage], uses: Counter[int]) -> bool:
    """Whether one of the outputs has a holder other than executions and copies that are not wanted."""
    for storage in outputs:
        copies = [each for each in storage.definition._callbacks or () if isinstance(each, Copy)]
        mine = sum(copy.source is storage for copy in copies)
        if any(copy.source is storage and copy.is_wanted for copy in copies):
            return True
        # The list has one reference, the loop one, and the call one.
        if sys.getrefcount(storage) > 3 + mine + uses[id(storage)]:
            return True
    return False
