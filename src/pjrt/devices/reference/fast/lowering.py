"""The compiler of programs with optimizations: constants, small functions, chains and faster kernels."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from pjrt.devices.reference.core.author import Author
from pjrt.devices.reference.core.block import Kernel
from pjrt.devices.reference.core.liveness import Pending
from pjrt.devices.reference.core.lowering import BlockLowering, ModuleLowering
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.core.region import Region
from pjrt.devices.reference.core.registry import Rule
from pjrt.devices.reference.fast.fusion import fuse
from pjrt.devices.reference.fast.kernels import faster_kernel
from pjrt.stablehlo.mlir_attributes import decode_attribute
from pjrt.stablehlo.types import TensorType, ValueType

INLINE_LIMIT = 64
"""Functions of up to this many ops take the place of their calls; larger ones would only be compiled many times."""

FOLD_LIMIT = 1 << 16
"""Results of up to this many elements are computed at compile time where they can be; larger ones would only hold
memory.
"""

_VIEWS = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.broadcast"})
"""Ops whose result, however large, is a view that takes no memory."""


class FastModuleLowering(ModuleLowering):
    """The compiler of a module, with faster kernels.

    With ``fold`` it changes the steps of the program too; without, each step is an op as the program has it.
    """

    def __init__(
        self, module: Any, *, fold: bool = True, handlers: Collection[str] = (), author: Author | None = None
    ) -> None:
        # Registers the kernels; not at the top: they need the ops, which are imported with the first program.
        from pjrt.devices.reference.fast import in_place, select, sorting  # noqa: F401

        super().__init__(module, handlers=handlers, author=author)
        self.fold = fold

    def lower(self, block: Any, name: str, parent: BlockLowering | None) -> BlockLowering:
        return FastBlockLowering(self, block, name, parent)

    def kernel(self, rule: Rule, view: OpView) -> Kernel:
        return faster_kernel(view) or super().kernel(rule, view)


class FastBlockLowering(BlockLowering):
    """The compiler of one block of MLIR, with changes to its steps."""

    _module: FastModuleLowering

    def region(self) -> Region:
        from pjrt.devices.reference.fast.in_place import with_updates_in_place

        region = super().region()
        return Region(with_updates_in_place(region.block), region.elementwise)

    def _combine(self) -> None:
        super()._combine()
        if self._module.fold:
            self._pending = fuse(self._pending, self._outputs, self._template, self._constant)

    def _add(self, operation: Any) -> None:
        if not (operation.name == "func.call" and self._module.fold and self._inline(operation)):
            super()._add(operation)

    def _append(self, pending: Pending) -> None:
        if not (self._module.fold and self._fold(pending)):
            super()._append(pending)

    def _inline(self, call: Any) -> bool:
        """Put the steps of a small function in the place of a call, and return whether that was done.

        There is no block to enter at each run then, constants are known to more of the program, and so is which step
        reads a value last.
        """
        name = decode_attribute(call.attributes["callee"])
        if not self._module.can_enter(name):
            return False
        with self._module.entered(name) as block:
            operations = [item.operation for item in block.operations]
            if len(operations) <= INLINE_LIMIT:
                self._slots.update(
                    {argument: self.slot(v) for argument, v in zip(block.arguments, call.operands, strict=True)}
                )
                for operation in operations[:-1]:
                    self._add(operation)
                returned = [self.slot(value) for value in operations[-1].operands]
                self._slots.update(zip(call.results, returned, strict=True))
        return len(operations) <= INLINE_LIMIT

    def _fold(self, pending: Pending) -> bool:
        """Run a step now if its operands are constants, and return whether that was done."""
        step = pending.step
        if pending.environment or not pending.pure or not self._constant.issuperset(step.inputs):
            return False
        if step.runner is not None:  # an author's kernel runs on the author's device, which may not be there yet
            return False
        if step.name not in _VIEWS and not _is_small(step.output_types):
            return False
        try:
            with np.errstate(all="ignore"):
                value = pending.kernel(*(self._template[slot] for slot in step.inputs))
        except Exception:  # an op that fails here fails when it runs, if it runs: that is where the error belongs
            return False
        for slot, item in zip(step.outputs, (value,) if len(step.outputs) == 1 else value, strict=True):
            self._set_constant(slot, item)
        return True


def _is_small(types: Sequence[ValueType]) -> bool:
    return all(isinstance(t, TensorType) and t.is_static and t.size <= FOLD_LIMIT for t in types)
