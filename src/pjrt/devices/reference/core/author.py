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

    def kernel(
        self,
        operation: Operation,
        interpreted: Callable[[], Kernel],
        environment: bool,
        constants: Collection[int],
        captured: Sequence[int],
    ) -> Kernel:
        """Return the kernel of an operation: the author's, or the interpreter's.

        If it has an attribute ``environment``, this says whether it takes the environment first.

        Args:
            operation: the operation.
            interpreted: returns the interpreter's kernel; raises the error of an op that the interpreter lacks.
            environment: whether the interpreter's kernel takes the environment first.
            constants: the positions of operands that are the same in every run.
            captured: the slots that regions of the operation read.
        """

    def hosted(self, name: str, kernel: Kernel, environment: bool, captured: Sequence[int]) -> Kernel:
        """Return an interpreter's kernel in a form that takes values of the author's device, too.

        Args:
            name: the name of the op.
            kernel: the kernel.
            environment: whether the kernel takes the environment first.
            captured: the slots that regions of the op read.
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
