"""The search in a loop: the first iteration from which on a device differs, and the operation in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pjrt.models.comparison.compared_device import Array, ComparedDevice
from pjrt.models.comparison.first_difference import Cause, FirstDifference, ValueDifference
from pjrt.models.comparison.search_block import SearchBlock
from pjrt.stablehlo import Operation
from pjrt.stablehlo.cuts.cutting import limit_iterations

if TYPE_CHECKING:
    from pjrt.models.comparison.difference_search import Search

_CONDITION, _BODY = 0, 1
_ALL_ITERATIONS = 2**31 - 1

State = list[list[Array]]
"""The values that a loop carries, one array for each replica; behind them the number of iterations."""


class LoopSearch:
    """The search in a loop that differs on the same inputs.

    The loop runs with a limit of its iterations, which is an argument of one program, so that all runs of the search
    need one compilation.

    Args:
        search: the search that this one is a part of.
        block: the block that the loop is in, with the judge's values of the loop's inputs.
        loop: the loop.
    """

    def __init__(self, search: Search, block: SearchBlock, loop: Operation) -> None:
        self._search, self._block, self._loop = search, block, loop
        self._cuts = search.cuts
        alone = self._cuts.cut_alone(block, [loop])
        self._limited = limit_iterations(alone.program)
        self._arguments = [block.values[name] for name in alone.arguments]
        self._states: dict[int, State] = {}

    def run(self) -> FirstDifference | None:
        """Return the first difference in the loop; None if the loop itself is all that can be named.

        Raises:
            LimitReachedError: a limit is reached.
            PjrtError: a device fails.
        """
        if self._search.is_for_failure:
            return self._in_region(_CONDITION, 0, "the condition") or self._in_region(_BODY, 0, "the body")
        total = max(int(count) for count in self._after(self._cuts.judge, _ALL_ITERATIONS)[-1])
        if self._agrees_after(total):
            return self._in_condition(total)
        low, high = 0, total
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._agrees_after(middle) else (low, middle)
        step = f"iteration {high} of {total}"
        return self._in_condition(low) or self._in_region(_BODY, low, step) or self._explain(low, high, step)

    def _after(self, device: ComparedDevice, iterations: int) -> State:
        """Return what the loop carries after some iterations, or after its last one."""
        return self._cuts.run(device, self._limited, [*self._arguments, [np.array(iterations, np.int32)]])

    def _expected(self, iterations: int) -> State:
        if iterations not in self._states:
            self._states[iterations] = self._after(self._cuts.judge, iterations)
        return self._states[iterations]

    def _agrees_after(self, iterations: int) -> bool:
        if iterations == 0:
            return True
        return self._cuts.agree(self._after(self._cuts.device, iterations), self._expected(iterations))

    def _in_condition(self, iterations: int) -> FirstDifference | None:
        return self._in_region(_CONDITION, iterations, f"the condition behind iteration {iterations}")

    def _in_region(self, index: int, iterations: int, step: str) -> FirstDifference | None:
        return self._search.enter(self._region(index, self._expected(iterations), step))

    def _region(self, index: int, state: Sequence[list[Array]], step: str) -> SearchBlock:
        """Return a region of the loop, on what the loop carries."""
        outer, region = self._block, self._loop.regions[index]
        names = tuple(value.name for value in region.arguments)
        values = {**outer.values, **dict(zip(names, state, strict=False))}
        path = (*outer.path, f"{step} of {self._loop.name} at {self._loop.location}")
        return SearchBlock(outer.function, region, names, values, path)

    def _explain(self, low: int, high: int, step: str) -> FirstDifference:
        """Return the difference of an iteration that agrees when it runs alone on the same inputs."""
        cuts = self._cuts
        body = self._region(_BODY, self._expected(low), step)
        wrong, suspects = self._search.run_alone(body)
        if wrong is not None:
            return wrong
        before, behind = (self._after(cuts.device, iterations)[:-1] for iterations in (low, high))
        outputs = body.contents.outputs
        from_drift = cuts.compute(cuts.judge, self._region(_BODY, before, step), outputs)
        is_explained = cuts.agree(behind, [from_drift[value.name] for value in outputs])
        inputs, results = (
            tuple(
                ValueDifference(value.index, value.name, str(value.type), cuts.difference(*pair))
                for value, *pair in zip(values, own, self._expected(count)[:-1], strict=True)
            )
            for values, own, count in ((body.contents.arguments, before, low), (self._loop.results, behind, high))
        )
        return self._search.finding(
            body,
            self._loop,
            Cause.ROUNDING if is_explained else Cause.CONTEXT,
            inputs=inputs,
            results=results,
            suspects=tuple(suspects),
        )
