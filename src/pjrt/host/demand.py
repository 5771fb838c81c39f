"""Demand: which executions still have an owner of their results.

References decide, as they do where memory is reused (``take_writable``): an owner of a value holds its storage. Two
kinds of holders do not count by themselves, because they are work, too: an execution that waits for the value is wanted
if its own results are, and a copy to the host if its future is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pjrt.host.copies import Copy
from pjrt.host_memory import references

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
    for number in range(len(outputs)):  # the storage itself would be a reference more
        callbacks = outputs[number].definition._callbacks or ()
        copies = [each for each in callbacks if isinstance(each, Copy) and each.source is outputs[number]]
        if any(copy.is_wanted for copy in copies):
            return True
        if references.to_item(outputs, number) > 1 + len(copies) + uses[id(outputs[number])]:
            return True
    return False
