"""The compiler of programs with optimizations: constants, small functions, chains and faster kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from pjrt.api.element_type import AnyDType, ElementType
from pjrt.devices.reference.core.block import Block, Kernel, Pending, Step, assemble, run_fast
from pjrt.devices.reference.core.module_compiler import Author, BlockCompiler, ModuleCompiler
from pjrt.devices.reference.core.op_view import OpView, Region
from pjrt.devices.reference.core.registry import Rule
from pjrt.devices.reference.fast.integer_chain import OPERATIONS, IntegerChain
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

# On few elements a call of numpy takes longer than its work. Chains of integer operations, of which random numbers are
# made, run in compiled code there. Floats do not: which of two NaNs a result has depends on the compiler.

LARGEST_OF_INTEGERS = 1 << 9
"""Elements of an array in such a chain (measured: numpy's loops are faster from 1,024 to 2,048 on)."""

SHORTEST_OF_INTEGERS = 4
"""Steps of such a chain (measured: two and three take as long as the calls)."""

LONGEST_OF_INTEGERS = 512
"""Steps of such a chain, and ops of all rounds of a loop that becomes one."""


class Kind(NamedTuple):
    """A kind of chain: the shape that its steps have, and their dtype if they compute with integers on few elements."""

    shape: Shape
    integer: AnyDType | None


def fuse(
    pending: Sequence[Pending],
    outputs: Sequence[int],
    template: Sequence[Any],
    constant: Collection[int],
    *,
    integers: bool = True,
) -> list[Pending]:
    """Return the steps, with one step in place of each chain of elementwise ones on values of one kind.

    Chains that do not depend on one another grow at the same time, those on large values one after the other. A chain
    ends before the first step that depends on it and is no part of it. Pure steps that do not move in front of it.

    Args:
        pending: the steps.
        outputs: the slots of the block's results.
        template: the values in the slots of constants.
        constant: the slots of constants.
        integers: whether chains of integers on few elements are compiled, for the shapes that the program has.
    """
    done: list[Pending] = []
    chains: dict[Kind, list[Pending]] = {}
    written: dict[Kind, set[int]] = {}
    last = {slot: position for position, item in enumerate(pending) for slot in item.uses}
    last |= dict.fromkeys(outputs, len(pending))

    def close(position: int, *kinds: Kind) -> None:
        for kind in kinds:
            chain = chains.pop(kind)
            needed = {slot for slot in written.pop(kind) if last.get(slot, -1) >= position}
            done.extend((_fused if kind.integer is None else _compiled)(chain, needed, template, constant))

    for position, item in enumerate(pending):
        own = _kind_of(item)
        if not integers and own is not None and own.integer is not None:
            own = None
        if own is None and (item.environment or not item.pure):
            close(position, *chains)
        is_large = own is not None and own.integer is None
        others = [kind for kind in chains if kind != own]
        close(
            position, *(k for k in others if (is_large and k.integer is None) or not written[k].isdisjoint(item.uses))
        )
        if own is None:
            done.append(item)
            continue
        if len(chains.get(own, ())) == (LONGEST if is_large else LONGEST_OF_INTEGERS):
            close(position, own)
        chains.setdefault(own, []).append(item)
        written.setdefault(own, set()).update(item.step.outputs)
    close(len(pending), *chains)
    return done


def _kind_of(item: Pending) -> Kind | None:
    """Return the kind of chain that a step can be part of, or None if there is none."""
    step = item.step
    if item.environment or not item.pure or len(step.outputs) != 1:
        return None
    (output,) = step.output_types
    if not isinstance(output, TensorType) or not output.is_static or output.quantization:
        return None
    is_word = output.element in _WORDS and output.size <= min(LARGEST_OF_INTEGERS, SMALLEST - 1)
    if not is_word and output.size < SMALLEST:
        return None
    inputs = step.input_types
    kind = Kind(output.sizes, output.dtype if is_word else None)
    if step.name == "stablehlo.broadcast_in_dim":
        return kind if isinstance(inputs[0], TensorType) and inputs[0].rank == 0 else None
    if not item.elementwise or (is_word and step.name not in OPERATIONS):
        return None
    fits = all(isinstance(t, TensorType) and (t.shape == output.shape or t.rank == 0) for t in inputs)
    return kind if fits else None


_WORDS = (ElementType.S32, ElementType.U32, ElementType.S64, ElementType.U64)


def _fused(
    chain: Sequence[Pending], needed: Collection[int], template: Sequence[Any], constant: Collection[int]
) -> list[Pending]:
    """Return a chain as one step, or its steps where one would not be faster."""
    working = [item for item in chain if item.step.name not in ("stablehlo.broadcast_in_dim", "chlo.constant_like")]
    # One function of numpy holds nothing but its result. Others hold whole arrays on the way to it, unless in chunks.
    if not (working and needed) or (len(working) == 1 and isinstance(working[0].kernel, np.ufunc)):
        return list(chain)
    inputs, results, types = _ends(chain, needed)
    variable = [slot for slot in inputs if not (slot in constant and np.ndim(template[slot]) == 0)]
    block = _inner_block(chain, variable, inputs, results, template)
    kernel = _chunked(
        block, [t.rank > 0 for t in map(types.get, variable) if isinstance(t, TensorType)], _tensors(results, types)
    )
    return [_as_one(chain, kernel, variable, results, types, block)]


def _ends(chain: Sequence[Pending], needed: Collection[int]) -> tuple[list[int], list[int], dict[int, Any]]:
    """Return the slots that a chain reads, those of its results that are needed, and the types of all of its slots."""
    inner = {slot for item in chain for slot in item.step.outputs}
    inputs = list(dict.fromkeys(slot for item in chain for slot in item.step.inputs if slot not in inner))
    types = {s: t for item in chain for s, t in zip(item.step.inputs, item.step.input_types, strict=True)}
    types |= {s: t for item in chain for s, t in zip(item.step.outputs, item.step.output_types, strict=True)}
    return inputs, [slot for item in chain for slot in item.step.outputs if slot in needed], types


def _as_one(
    chain: Sequence[Pending],
    kernel: Kernel,
    inputs: Sequence[int],
    results: Sequence[int],
    types: dict[int, Any],
    *blocks: Block,
) -> Pending:
    step = Step(
        name=f"{len(chain)} fused elementwise ops",
        location=chain[-1].step.location,
        inputs=tuple(inputs),
        outputs=tuple(results),
        input_types=tuple(types[slot] for slot in inputs),
        output_types=tuple(types[slot] for slot in results),
        blocks=blocks,
    )
    return Pending(kernel, step, tuple(inputs), False, False, True)


def _compiled(
    chain: Sequence[Pending], needed: Collection[int], template: Sequence[Any], constant: Collection[int]
) -> list[Pending]:
    """Return a chain of integers on few elements as one step, or its steps where one would not be faster."""
    inputs, results, types = _ends(chain, needed)
    working = [item for item in chain if item.step.name in OPERATIONS]
    if len(working) < SHORTEST_OF_INTEGERS or not needed:
        return list(chain)
    variable = [slot for slot in inputs if slot not in constant]
    fixed = [slot for slot in inputs if slot in constant]
    registers = {slot: number for number, slot in enumerate([*variable, *fixed])}
    last = {slot: number for number, item in enumerate(chain) for slot in item.step.inputs}
    kept = {*inputs, *results}
    count, spare = len(registers), list[int]()
    instructions = []
    for number, item in enumerate(chain):
        (out,), operands = item.step.outputs, [registers[slot] for slot in item.step.inputs]
        if item.step.name not in OPERATIONS:  # a scalar stands for each of its copies
            registers[out] = operands[0]
            kept.update((out, *item.step.inputs))
            continue
        spare.extend({registers[slot] for slot in item.step.inputs if last[slot] == number and slot not in kept})
        if not spare:
            spare.append(count)
            count += 1
        registers[out] = spare.pop()
        instructions.append((OPERATIONS[item.step.name], registers[out], operands[0], operands[-1]))
    constants = [_one_or_all(template[slot]) for slot in fixed]
    output = types[results[0]]
    run = IntegerChain(instructions, len(inputs), [registers[slot] for slot in results], output.sizes, output.dtype)

    def kernel(*values: Any) -> Any:
        return run((*values, *constants))

    return [_as_one(chain, kernel, variable, results, types)]


def _one_or_all(constant: Any) -> Any:
    """Return a constant, or one element that stands for all."""
    array = np.asarray(constant)
    return array[(0,) * array.ndim] if array.size and not any(array.strides) else array


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

_LOOPED = frozenset(OPERATIONS) | {
    *("stablehlo.constant", "stablehlo.compare", "stablehlo.convert", "stablehlo.slice", "stablehlo.reshape"),
    *("stablehlo.broadcast_in_dim", "stablehlo.return", "func.return"),
}
"""Ops of loops that are unrolled: those of the rounds of a hash."""

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
    _unrolls = False  # whether the rounds of a loop are being added, with all functions inline

    def region(self) -> Region:
        region = super().region()
        return Region(self._module.kernels.with_updates_in_place(region.block), region.elementwise)

    def _combine(self) -> None:
        super()._combine()
        if self._module.fold:
            integers = not self._elementwise  # a scalar body may be given whole arrays
            self._pending = fuse(self._pending, self._outputs, self._template, self._constant, integers=integers)

    def _add(self, operation: Any) -> None:
        change = {"func.call": self._inline, "stablehlo.while": self._unroll}.get(operation.name)
        if not (change is not None and self._module.fold and change(operation)):
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
            fits = self._unrolls or len(block.operations) <= INLINE_LIMIT
            if fits:
                returned = self._add_all(block, [self.slot(value) for value in call.operands])
                self._slots.update(zip(call.results, returned, strict=True))
        return fits

    def _unroll(self, loop: Any) -> bool:
        """Put the rounds of a loop in its place if it computes with few integers a few times, and return whether that
        was done: the rounds are a chain then, and what the loop counts is constant.
        """
        condition, body = (region.blocks[0] for region in loop.regions)
        carried = [self.slot(value) for value in loop.operands]
        if self._author is not None or not _is_small([self._types[slot] for slot in carried], LARGEST_OF_INTEGERS):
            return False
        size = self._size_of_round(condition) + self._size_of_round(body)
        if size > LONGEST_OF_INTEGERS:
            return False
        slots, pending = len(self._template), len(self._pending)
        self._unrolls, ends = True, False
        for _ in range(1 + int(LONGEST_OF_INTEGERS / size)):
            (goes_on,) = self._add_all(condition, carried)
            ends = goes_on in self._constant and not self._template[goes_on]
            if ends or goes_on not in self._constant:
                break
            carried = self._add_all(body, carried)
        self._unrolls = False
        if ends:
            self._slots.update(zip(loop.results, carried, strict=True))
            return True
        del self._template[slots:], self._types[slots:], self._pending[pending:]
        self._constant = {slot for slot in self._constant if slot < slots}
        self._slots = {value: slot for value, slot in self._slots.items() if slot < slots}
        self._captures = {outside: inside for outside, inside in self._captures.items() if inside < slots}
        return False

    def _size_of_round(self, block: Any) -> float:
        """Return how many ops a block has, with those of the functions that it calls; infinity if a loop with one of
        them is not unrolled.
        """
        size = 0.0
        for view in block.operations:
            operation = view.operation
            if operation.name == "func.call":
                name = decode_attribute(operation.attributes["callee"])
                if not self._module.can_enter(name):
                    return math.inf
                with self._module.entered(name) as called:
                    size += self._size_of_round(called)
            elif operation.name not in _LOOPED:
                return math.inf
            size += 1
        return size

    def _add_all(self, block: Any, arguments: Sequence[int]) -> list[int]:
        """Add the operations of a block of MLIR whose arguments are in some slots; return the slots of its results."""
        self._slots.update(zip(block.arguments, arguments, strict=True))
        *operations, end = [view.operation for view in block.operations]
        for operation in operations:
            self._add(operation)
        return [self.slot(value) for value in end.operands]

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


def _is_small(types: Sequence[ValueType], limit: int = FOLD_LIMIT) -> bool:
    return all(isinstance(t, TensorType) and t.is_static and t.size <= limit for t in types)
