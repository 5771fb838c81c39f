"""The compiler of programs with optimizations: constants, small functions, chains and faster kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from pjrt.api.element_type import AnyDType
from pjrt.devices.reference.core.block import Block, Kernel, Pending, Step, assemble, run_fast
from pjrt.devices.reference.core.module_compiler import Author, BlockCompiler, ModuleCompiler
from pjrt.devices.reference.core.op_view import OpView, Region
from pjrt.devices.reference.core.registry import Rule
from pjrt.stablehlo.ir.mlir_attributes import decode_attribute
from pjrt.stablehlo.ir.types import TensorType, ValueType

# Step by step, every intermediate value of a chain of elementwise steps goes out to memory and comes back. In chunks
# that fit into the processor's cache it does not, and no memory is allocated for it. The result is the same, bit by
# bit: the same kernels see the same elements.

SMALLEST = 1 << 21
"""Arrays of fewer elements stay in the cache anyway (measured: from here on chains are twice as fast)."""

CHUNK = 1 << 15
"""Elements of a chunk."""

LONGEST = 64
"""Steps of a chain."""

Shape = tuple[int, ...]


def fuse(
    pending: Sequence[Pending], outputs: Sequence[int], template: Sequence[Any], constant: Collection[int]
) -> list[Pending]:
    """Return the steps, with one step in place of each chain of elementwise ones on values of one large shape.

    Pure steps that do not depend on a chain move in front of it.
    """
    done: list[Pending] = []
    chain: list[Pending] = []
    written: set[int] = set()
    shape: Shape | None = None

    def close(rest: Sequence[Pending]) -> None:
        nonlocal shape
        if chain:
            needed = {slot for item in rest for slot in item.uses}.union(outputs)
            done.extend(_fused(chain, needed, template, constant))
        chain.clear()
        written.clear()
        shape = None

    for position, item in enumerate(pending):
        own = _shape_of(item)
        if own is not None and shape in (None, own) and len(chain) < LONGEST:
            shape = own
            chain.append(item)
            written.update(item.step.outputs)
        elif item.pure and not item.environment and written.isdisjoint(item.uses) and own is None:
            done.append(item)
        else:
            close(pending[position:])
            if own is None:
                done.append(item)
            else:
                shape, written = own, set(item.step.outputs)
                chain.append(item)
    close(())
    return done


def _shape_of(item: Pending) -> Shape | None:
    """Return the shape that a step works on, or None if it cannot be part of a chain."""
    step = item.step
    if item.environment or not item.pure or len(step.outputs) != 1:
        return None
    (output,) = step.output_types
    if not (
        isinstance(output, TensorType) and output.is_static and output.size >= SMALLEST and not output.quantization
    ):
        return None
    inputs = step.input_types
    if step.name == "stablehlo.broadcast_in_dim":
        return output.sizes if isinstance(inputs[0], TensorType) and inputs[0].rank == 0 else None
    if not item.elementwise:
        return None
    fits = all(isinstance(t, TensorType) and (t.shape == output.shape or t.rank == 0) for t in inputs)
    return output.sizes if fits else None


def _fused(
    chain: Sequence[Pending], needed: Collection[int], template: Sequence[Any], constant: Collection[int]
) -> list[Pending]:
    """Return a chain as one step, or its steps where one would not be faster."""
    working = [item for item in chain if item.step.name not in ("stablehlo.broadcast_in_dim", "chlo.constant_like")]
    # One function of numpy holds nothing but its result. Others hold whole arrays on the way to it, unless in chunks.
    if not working or (len(working) == 1 and isinstance(working[0].kernel, np.ufunc)):
        return list(chain)
    inner = {slot for item in chain for slot in item.step.outputs}
    inputs = list(dict.fromkeys(slot for item in chain for slot in item.step.inputs if slot not in inner))
    types = {s: t for item in chain for s, t in zip(item.step.inputs, item.step.input_types, strict=True)}
    types |= {s: t for item in chain for s, t in zip(item.step.outputs, item.step.output_types, strict=True)}
    variable = [slot for slot in inputs if not (slot in constant and np.ndim(template[slot]) == 0)]
    results = [slot for item in chain for slot in item.step.outputs if slot in needed]
    block = _inner_block(chain, variable, inputs, results, template)
    kernel = _chunked(
        block, [t.rank > 0 for t in map(types.get, variable) if isinstance(t, TensorType)], _tensors(results, types)
    )
    step = Step(
        name=f"{len(chain)} fused elementwise ops",
        location=chain[-1].step.location,
        inputs=tuple(variable),
        outputs=tuple(results),
        input_types=tuple(types[slot] for slot in variable),
        output_types=tuple(types[slot] for slot in results),
        blocks=(block,),
    )
    return [Pending(kernel, step, tuple(variable), False, False, True)]


def _tensors(slots: Sequence[int], types: dict[int, Any]) -> list[tuple[Shape, AnyDType]]:
    return [(types[slot].sizes, types[slot].dtype) for slot in slots]


def _inner_block(
    chain: Sequence[Pending],
    variable: Sequence[int],
    inputs: Sequence[int],
    results: Sequence[int],
    outer: Sequence[Any],
) -> Block:
    """Return the chain as a block with slots of its own: first the inputs, then constants and results."""
    number = {slot: i + 1 for i, slot in enumerate(variable)}
    template: list[Any] = [None] * (len(variable) + 1)
    constant = []
    for slot in [*inputs, *(slot for item in chain for slot in item.step.outputs)]:
        if slot not in number:
            number[slot] = len(template)
            if slot in inputs:
                constant.append(len(template))
            template.append(outer[slot] if slot in inputs else None)
    steps = []
    for item in chain:
        renamed = item.step._replace(
            inputs=tuple(number[s] for s in item.step.inputs), outputs=tuple(number[s] for s in item.step.outputs)
        )
        scalar = item.step.name == "stablehlo.broadcast_in_dim"
        kernel = _scalar_as_it_is if scalar else item.kernel
        steps.append(Pending(kernel, renamed, renamed.inputs, False, True, True))
    empty = Block("a chain", (), (), template, (), (), tuple(number[s] for s in results), ())
    return assemble(empty, steps, constant)


def _scalar_as_it_is(value: Any) -> Any:
    return value


def _chunked(block: Block, whole: Sequence[bool], results: Sequence[tuple[Shape, AnyDType]]) -> Callable[..., Any]:
    """Return the kernel of a chain. ``whole`` is True for inputs that are arrays; the others are scalars."""
    shape = results[0][0]
    size, row = math.prod(shape), math.prod(shape[1:])

    def run(*inputs: Any) -> Any:
        arrays: list[Any] = list(inputs)
        outs: list[Any] = [np.empty(shape, dtype) for _, dtype in results]
        targets, length, chunk = outs, shape[0], max(1, CHUNK // row) if row else 1
        if row > 4 * CHUNK or all(x.flags.c_contiguous for x, is_whole in zip(inputs, whole, strict=True) if is_whole):
            arrays = [
                np.ascontiguousarray(x).reshape(-1) if is_whole else x
                for x, is_whole in zip(inputs, whole, strict=True)
            ]
            targets, length, chunk = [out.reshape(-1) for out in outs], size, CHUNK
        for start in range(0, length, chunk):
            part = slice(start, start + chunk)
            slots = block.template.copy()
            slots[1 : 1 + len(arrays)] = [x[part] if is_whole else x for x, is_whole in zip(arrays, whole, strict=True)]
            run_fast(block, slots)
            for target, slot in zip(targets, block.outputs, strict=True):
                target[part] = slots[slot]
        return outs[0] if len(outs) == 1 else outs

    return run


INLINE_LIMIT = 64
"""Functions of up to this many ops take the place of their calls; larger ones would only be compiled many times."""

FOLD_LIMIT = 1 << 16
"""Results of up to this many elements are computed at compile time where they can be; larger ones would only hold
memory.
"""

_VIEWS = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.broadcast"})
"""Ops whose result, however large, is a view that takes no memory."""


class FastModuleCompiler(ModuleCompiler):
    """The compiler of a module, with faster kernels.

    With ``fold`` it changes the steps of the program too; without, each step is an op as the program has it.
    """

    def __init__(
        self, module: Any, *, fold: bool = True, handlers: Collection[str] = (), author: Author | None = None
    ) -> None:
        # Registers the kernels; not at the top: they need the ops, which are imported with the first program.
        from pjrt.devices.reference.fast import kernels, sorting  # noqa: F401

        super().__init__(module, handlers=handlers, author=author)
        self.fold = fold
        self.kernels = kernels

    def compile_block(self, block: Any, name: str, parent: BlockCompiler | None) -> BlockCompiler:
        return FastBlockCompiler(self, block, name, parent)

    def kernel(self, rule: Rule, view: OpView) -> Kernel:
        return self.kernels.faster_kernel(view) or super().kernel(rule, view)


class FastBlockCompiler(BlockCompiler):
    """The compiler of one block of MLIR, with changes to its steps."""

    _module: FastModuleCompiler

    def region(self) -> Region:
        region = super().region()
        return Region(self._module.kernels.with_updates_in_place(region.block), region.elementwise)

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
