"""The author of a device that stands on this interpreter: the operations that the author's code computes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from pjrt.devices.reference.core.block import Kernel
from pjrt.devices.reference.core.liveness import Pending
from pjrt.stablehlo.operation import Operation

CONTROL_FLOW = frozenset({"stablehlo.while", "stablehlo.if", "stablehlo.case", "sdy.manual_computation"})
"""Ops whose regions are parts of the program like any other, so that the author's code computes operations in them too.
The regions of other ops, such as a reducer or a comparator, belong to their op.
"""


class Author(Protocol):
    """The author's code, asked while a program is compiled."""

    def wants(self, name: str) -> bool:
        """Whether the author may compute operations of a name; only these are parsed."""

    def kernel(self, operation: Operation, interpreted: Callable[[], Kernel], environment: bool) -> Kernel:
        """Return the kernel of an operation: the author's, or the interpreter's.

        Args:
            operation: the operation.
            interpreted: returns the interpreter's kernel; raises the error of an op that the interpreter lacks.
            environment: whether kernels of this op take the environment first.
        """

    def combine(
        self,
        pending: Sequence[Pending],
        outputs: Sequence[int],
        template: Sequence[Any],
        constant: Collection[int],
    ) -> list[Pending]:
        """Return the steps of a block, with one step in place of each run of operations that the author takes whole.

        Args:
            pending: the steps; those of operations that the author wants have their ``operation``.
            outputs: the slots of the block's results.
            template: the values in the slots of constants.
            constant: the slots of constants.
        """
