"""The code of an author: kernels, and a compiler for runs of operations, as the interpreter asks for them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from pjrt.api.capability import Capabilities, Feature
from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import DataLossError, InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.devices.author.values import ResultTypes, Values, places
from pjrt.devices.reference import compiler
from pjrt.devices.reference.core import block
from pjrt.devices.reference.core.block import INTERPRETER, Block, Pending, Step, assemble, context_of
from pjrt.devices.reference.core.module_compiler import CONTROL_FLOW
from pjrt.host import Compiled
from pjrt.stablehlo.ir.location import Location
from pjrt.stablehlo.ir.operation import Block as Body
from pjrt.stablehlo.ir.operation import Function, Operation, ParsedProgram, Value
from pjrt.stablehlo.ir.types import FunctionType, TensorType, ValueType


class DeclinedError(UnimplementedError):
    """A program that an author's ``compile`` leaves to the fallback, because of some of its operations.

    The other operations of a run are offered again, without these.

    Args:
        message: the reason.
        operations: the positions of the reasons among the operations of the program's entry function.
    """

    def __init__(self, message: str, operations: Collection[int] = ()) -> None:
        super().__init__(message)
        self.operations = frozenset(operations)


CompileParsed = Callable[[ParsedProgram, CompileOptions], "Compiled | Callable[..., Any]"]
"""An author's ``compile(program, options)``."""

DeserializeParsed = Callable[[bytes, ParsedProgram, CompileOptions], "Compiled | Callable[..., Any]"]
"""An author's ``deserialize(payload, program, options)``."""

_DIGEST_BYTES = 32


class CompilationRecord:
    """The calls of an author's ``compile`` for one program, in their order: what each returned, or why it declined.

    Args:
        compile: the author's function.
    """

    def __init__(self, compile: CompileParsed) -> None:
        self._compile = compile
        self._parts: list[Compiled | UnimplementedError] = []

    def compile(self, program: ParsedProgram, options: CompileOptions) -> Compiled:
        """Call the author's function, and record what it did."""
        try:
            compiled = Compiled.of(self._compile(program, options))
        except UnimplementedError as error:
            self._parts.append(error)
            raise
        self._parts.append(compiled)
        return compiled

    @property
    def serialize(self) -> Callable[[], bytes] | None:
        """A function that returns the record as bytes; ``None`` if a part of it cannot be serialized."""
        if any(isinstance(part, Compiled) and part.serialize is None for part in self._parts):
            return None
        return self._pack

    def _pack(self) -> bytes:
        header: list[dict[str, Any]] = []
        payloads: list[bytes] = []
        for part in self._parts:
            if isinstance(part, Compiled):
                assert part.serialize is not None  # asked before
                payloads.append(part.serialize())
                header.append({"size": len(payloads[-1])})
            else:
                operations = sorted(part.operations) if isinstance(part, DeclinedError) else []
                header.append({"declined": part.message, "operations": operations})
        body = json.dumps(header).encode() + b"\n" + b"".join(payloads)
        return hashlib.sha256(body).digest() + body


class CompilationReplay:
    """The calls that a ``CompilationRecord`` has, with the author's ``deserialize`` in place of ``compile``.

    Args:
        payload: the record as bytes.
        deserialize: the author's function.

    Raises:
        DataLossError: the bytes are damaged.
    """

    def __init__(self, payload: bytes, deserialize: DeserializeParsed) -> None:
        self._payload = payload
        self._deserialize = deserialize
        self._parts = iter(_unpack(payload))

    def compile(self, program: ParsedProgram, options: CompileOptions) -> Compiled:
        """Return what the recorded call made, or raise its error."""
        part = next(self._parts, None)
        if part is None:
            raise DataLossError("the serialized executable has fewer parts than its program")
        if isinstance(part, UnimplementedError):
            raise part
        return Compiled.of(self._deserialize(part, program, options))

    def serialize(self) -> bytes:
        """Return the record again."""
        return self._payload


def _unpack(payload: bytes) -> Sequence[bytes | UnimplementedError]:
    digest, content = payload[:_DIGEST_BYTES], payload[_DIGEST_BYTES:]
    if hashlib.sha256(content).digest() != digest:  # compiled code that is damaged may end the process
        raise DataLossError("the compiled code of the serialized executable is damaged; compile the program again")
    line, _, body = content.partition(b"\n")
    parts: list[bytes | UnimplementedError] = []
    begin = 0
    try:
        for entry in json.loads(line):
            if "declined" in entry:
                parts.append(DeclinedError(str(entry["declined"]), [int(each) for each in entry["operations"]]))
            else:
                size = int(entry["size"])
                parts.append(body[begin : begin + size])
                begin += size
    except (ValueError, KeyError, TypeError) as error:
        raise DataLossError(f"the parts of the serialized executable are damaged: {error}") from error
    return parts


Kernel = Callable[..., Any]
"""An author's kernel: ``kernel(operation, *arrays)`` returns an array for each result, or ``NotImplemented`` to leave
the operation to the fallback. On a device with memory of its own, it takes and returns handles.
"""


class AuthorKernel:
    """An author's kernel of one operation of a program, with the interpreter's as its fallback.

    Args:
        device: the name of the author's device.
        function: the kernel.
        operation: the operation.
        fallback: the interpreter's kernel, or the error of an operation that it lacks.
        fallback_environment: whether the interpreter's kernel takes the environment first.
        values: the form of the values that the kernel takes and returns.
        constants: the positions of operands that are the same in every run.

    Attributes:
        environment: whether a call has the environment first.
    """

    __slots__ = (
        "_constants",
        "_declined",
        "_device",
        "_fallback",
        "_fallback_environment",
        "_function",
        "_operation",
        "_source",
        "_step",
        "_types",
        "_values",
        "environment",
    )

    def __init__(
        self,
        device: str,
        function: Kernel,
        operation: Operation,
        fallback: block.Kernel | PjrtError,
        fallback_environment: bool,
        values: Values,
        constants: Collection[int],
    ) -> None:
        self._device = device
        self._function = function
        self._operation = operation
        self._fallback = fallback
        self._fallback_environment = fallback_environment
        self._values = values
        self._constants = places(constants)
        self._types = ResultTypes([value.type for value in operation.results])
        self._source = f"the kernel of {operation.name}"
        operands, results = (tuple(value.type for value in each) for each in (operation.operands, operation.results))
        self._step = Step(operation.name, str(operation.location), (), (), operands, results)
        self._declined = False
        self.environment = fallback_environment or values.needs_environment

    @property
    def device(self) -> str:
        """The device that computes the operation: the author's until the kernel declines."""
        return INTERPRETER if self._declined else self._device

    def interpreted(self, environment: block.Environment, operands: Sequence[Any]) -> Sequence[Any]:
        """Return the results of the fallback, each as one value of a sequence.

        Raises:
            UnimplementedError: the interpreter lacks the operation.
        """
        if isinstance(self._fallback, PjrtError):
            raise UnimplementedError(self._fallback.message)
        results = self._fallback(environment, *operands) if self._fallback_environment else self._fallback(*operands)
        return [results] if len(self._operation.results) == 1 else list(results)

    def __call__(self, *values: Any) -> Any:
        """Return the results of the operation."""
        environment, operands = (values[0], values[1:]) if self.environment else (None, values)
        if not self._declined:
            results: Any = NotImplemented
            try:
                arguments = self._values.arguments(environment, operands, self._constants, self._step)
            except UnimplementedError:  # the author's memory has no arrays of such a type
                arguments = []
            else:
                results = self._call(environment, arguments)
            if results is not NotImplemented:
                return self._values.results(environment, results, self._types, self._source, arguments, self._step)
            # The types and attributes are the same in every run, so the next run need not ask again.
            self._declined = True
        if isinstance(self._fallback, PjrtError):
            raise UnimplementedError(
                f"the kernel of {self._operation.name} declined the operation, and no other can run it: "
                f"{self._fallback.message}"
            )
        return self._fallback(environment, *operands) if self._fallback_environment else self._fallback(*operands)

    def _call(self, environment: block.Environment | None, arguments: Sequence[Any]) -> Any:
        while True:
            try:
                return self._function(self._operation, *self._values.bare(arguments))
            except MemoryError:
                if not self._values.wait_for_memory(environment):
                    raise


class OperationRun(NamedTuple):
    """Operations that run one after the other, as a program.

    Attributes:
        program: the program: one function, whose results are those that the rest of the block needs.
        inputs: the slots of its arguments.
        step: the run as a step, but for its kernel.
        pending: the steps that it is made of.
    """

    program: ParsedProgram
    inputs: tuple[int, ...]
    step: Step
    pending: tuple[Pending, ...]


class Split(NamedTuple):
    """The steps of a block, cut around one run: those before it, those of it, and those after it."""

    before: list[Pending]
    run: list[Pending]
    after: list[Pending]


def split(pending: Sequence[Pending], accepts: Callable[[Pending], bool], longest: int | None = None) -> Split:
    """Return the first run of steps that the author accepts, as large as the order of the steps allows.

    A step that the author does not accept, and that does not need a result of the run, moves in front of it. A step
    that needs one moves behind it, and so do the steps that need that one's results. Steps with effects keep their
    order.
    """
    before: list[Pending] = []
    run: list[Pending] = []
    after: list[Pending] = []
    produced: set[int] = set()
    later: set[int] = set()
    effects_later = False
    for number, item in enumerate(pending):
        if longest is not None and len(run) >= longest:
            after.extend(pending[number:])
            break
        # What a region of the run captures comes from the block around, so it must be there when the run begins.
        if later.isdisjoint(item.uses) and produced.isdisjoint(item.captured) and accepts(item):
            run.append(item)
            produced.update(item.step.outputs)
        elif later.isdisjoint(item.uses) and produced.isdisjoint(item.uses) and (item.pure or not effects_later):
            before.append(item)
        else:
            after.append(item)
            later.update(item.step.outputs)
            effects_later = effects_later or not item.pure
    return Split(before, run, after)


def operation_run(
    name: str,
    device: str,
    run: Sequence[Pending],
    needed: Collection[int],
    template: Sequence[Any],
    constant: Collection[int],
    accepts: Callable[[Operation], bool],
) -> OperationRun:
    """Return a run of steps as a program.

    Args:
        name: the name of the program's function.
        device: the name of the author's device.
        run: the steps; each has its ``operation``.
        needed: the slots that the rest of the block reads.
        template: the values in the slots of constants.
        constant: the slots of constants.
        accepts: whether a constant becomes an operation of the program; otherwise it is an argument.
    """
    types = {slot: type_ for item in run for slot, type_ in zip(item.step.inputs, item.step.input_types, strict=True)}
    types |= {s: type_ for item in run for s, type_ in zip(item.step.outputs, item.step.output_types, strict=True)}
    types |= {slot: value.type for item in run for slot, value in item.captured.items()}
    produced = {slot for item in run for slot in item.step.outputs}
    used = (slot for item in run for slot in (*item.step.inputs, *item.captured))
    read = list(dict.fromkeys(slot for slot in used if slot not in produced))
    constants = {slot: _constant(types[slot], template[slot]) for slot in read if slot in constant}
    inside = {slot: operation for slot, operation in constants.items() if accepts(operation)}
    inputs = tuple(slot for slot in read if slot not in inside)
    outputs = tuple(slot for item in run for slot in item.step.outputs if slot in needed)
    program = _program(name, run, inputs, inside, outputs, types)
    if len(run) == 1:
        name_of_step, blocks = run[0].step.name, run[0].step.blocks
    else:
        block = Block(name, (), (), [], (), (), outputs, ())
        name_of_step, blocks = f"{len(run)} operations of {device}", (assemble(block, run, constant),)
    step = Step(
        name=name_of_step,
        location=run[-1].step.location,
        inputs=inputs,
        outputs=outputs,
        input_types=tuple(types[slot] for slot in inputs),
        output_types=tuple(types[slot] for slot in outputs),
        blocks=blocks,
    )
    return OperationRun(program, inputs, step, tuple(run))


def _program(
    name: str,
    run: Sequence[Pending],
    inputs: Sequence[int],
    constants: Mapping[int, Operation],
    outputs: Sequence[int],
    types: Mapping[int, ValueType],
) -> ParsedProgram:
    body = Body()
    values = {slot: Value(types[slot], f"%arg{number}", body, number) for number, slot in enumerate(inputs)}
    operations: list[Operation] = []

    def add(operation: Operation, slots: Sequence[int]) -> None:
        prefix = f"%{len(operations)}"
        operation.results = tuple(
            Value(types[slot], f"{prefix}#{index}" if len(slots) > 1 else prefix, operation, index)
            for index, slot in enumerate(slots)
        )
        values.update(zip(slots, operation.results, strict=True))
        operations.append(operation)

    for slot, operation in constants.items():
        add(operation, [slot])
    for item in run:
        source = item.operation
        assert source is not None  # only such steps are taken
        operands = tuple(values[slot] for slot in item.step.inputs)
        # A region may take the operation's own operands from outside, too.
        names = dict(zip(map(id, source.operands), operands, strict=True))
        names.update((id(value), values[slot]) for slot, value in item.captured.items())
        regions = tuple(region.renamed(names) for region in source.regions)
        add(Operation(source.name, operands, source.attributes, source.location, (), regions), item.step.outputs)
    location = operations[-1].location
    operations.append(Operation("func.return", tuple(values[slot] for slot in outputs), {}, location))
    body.arguments = tuple(values[slot] for slot in inputs)
    body.operations = tuple(operations)
    type_ = FunctionType(tuple(types[slot] for slot in inputs), tuple(types[slot] for slot in outputs))
    attributes: tuple[dict[str, Any], ...] = ({},)
    function = Function(
        name, type_, True, ("",) * len(inputs), attributes * len(inputs), attributes * len(outputs), body, location
    )
    return ParsedProgram(name, {name: function}, {})


def _constant(type_: ValueType, value: Any) -> Operation:
    operation = Operation("stablehlo.constant", (), {"value": value}, Location("unknown"))
    operation.results = (Value(type_, "%0", operation, 0),)
    return operation


def with_constants(pending: Pending, template: Sequence[Any], constant: Collection[int]) -> Operation:
    """Return the operation of a step; operands that are constants have their constant as ``owner``, as in a program.

    Args:
        pending: the step; it has its ``operation``.
        template: the values in the slots of constants.
        constant: the slots of constants.
    """
    operation, step = pending.operation, pending.step
    assert operation is not None
    if not any(slot in constant for slot in step.inputs):
        return operation
    operands = tuple(
        _constant(type_, template[slot]).results[0] if slot in constant else operand
        for slot, type_, operand in zip(step.inputs, step.input_types, operation.operands, strict=True)
    )
    return dataclasses.replace(operation, operands=operands)


def is_whole(pending: Pending) -> bool:
    """Whether a step can be part of a run: its operation is known and has no effects, and all its types are static."""
    step = pending.step
    captured = (value.type for value in pending.captured.values())
    return (
        pending.operation is not None
        and (pending.pure or _is_pure_call(pending.operation))
        and all(isinstance(t, TensorType) and t.is_static for t in (*step.input_types, *step.output_types, *captured))
    )


def _is_pure_call(operation: Operation) -> bool:
    return bool(operation.call_target) and not operation.attribute("has_side_effect", False)


PROGRAM_STRUCTURE = CONTROL_FLOW | {"func.call", "stablehlo.composite"}
"""Operations that run other parts of the program: the interpreter's, and never part of a run of operations."""


_CUSTOM_CALL = "stablehlo.custom_call"

_DIALECTS = ("chlo.", "func.", "mhlo.", "sdy.", "stablehlo.")


def targets_in(names: Collection[str]) -> frozenset[str]:
    """Return those of an author's names that are targets of custom calls, and no operations."""
    return frozenset(name for name in names if not name.startswith(_DIALECTS))


def is_among(operation: Operation, names: Collection[str]) -> bool:
    """Whether an author's names have an operation: its name, or the target of a custom call."""
    return operation.name in names or (bool(operation.call_target) and operation.call_target in names)


class AuthorCode:
    """An author's kernels, and the author's compiler for runs of operations.

    Args:
        device: the name of the author's device.
        kernels: the kernels by the names of their operations, or by the targets of custom calls.
        compile: compiles a run of operations, as a program of one function; None if the author takes single
            operations only.
        accepts: whether a run may have an operation in it.
        longest: the most operations of a run; None for any number.
        fallback: whether the interpreter runs what the author's code does not; control flow it runs in any case.
        values: the form of the values that the author's code takes and returns.
        options: the options of the program.
    """

    def __init__(
        self,
        device: str,
        kernels: Mapping[str, Kernel],
        compile: CompileParsed | None,
        accepts: Callable[[Operation], bool],
        longest: int | None,
        fallback: bool,
        values: Values,
        options: CompileOptions,
    ) -> None:
        self._device = device
        self._kernels = kernels
        self._has_targets = bool(targets_in(kernels))
        self._compile = compile
        self._accepts = accepts
        self._longest = longest
        self._fallback = fallback
        self._values = values
        self._options = options
        self._runs = 0
        # The operations that the author's compiler named as reasons to decline a run. The operations live as long as
        # this does, so that their ids are theirs alone.
        self._declined: dict[int, Operation] = {}

    def wants(self, name: str) -> bool:
        """Whether the author may compute operations of a name."""
        if name in self._kernels or (self._has_targets and name == _CUSTOM_CALL):
            return True
        return name not in PROGRAM_STRUCTURE and (self._compile is not None or not self._fallback)

    def kernel(
        self,
        operation: Operation,
        interpreted: Callable[[], block.Kernel],
        environment: bool,
        constants: Collection[int],
        captured: Sequence[int],
    ) -> block.Kernel:
        """Return the kernel of an operation; see ``pjrt.devices.reference.core.module_compiler``."""
        function = self._kernels.get(operation.call_target) or self._kernels.get(operation.name)
        if function is None and not self._fallback and not self._may_run(operation):
            raise UnimplementedError(
                f"the device '{self._device}' does not run {operation.name} ({operation.location}), and has no "
                f"fallback; it runs {', '.join(sorted(self._kernels)) or 'what its compile function takes'}"
            )
        fallback: block.Kernel | PjrtError
        try:
            fallback = self.hosted(operation.name, interpreted(), environment, captured)
        except UnimplementedError as error:
            if function is None and not self._may_run(operation):
                raise
            fallback = error
        if function is not None:
            return AuthorKernel(self._device, function, operation, fallback, environment, self._values, constants)
        return _Missing(fallback) if isinstance(fallback, PjrtError) else fallback

    def hosted(self, name: str, kernel: block.Kernel, environment: bool, captured: Sequence[int]) -> block.Kernel:
        """Return an interpreter's kernel in a form that takes values of the author's device, too."""
        return self._values.hosted(name, kernel, environment, captured)

    def combine(
        self,
        pending: Sequence[Pending],
        outputs: Sequence[int],
        template: Sequence[Any],
        constant: Collection[int],
    ) -> list[Pending]:
        """Return the steps of a block with its runs; see ``pjrt.devices.reference.core.module_compiler``."""
        done: list[Pending] = []
        rest = list(pending)
        decisions: dict[int, bool] = {}

        def takes(item: Pending) -> bool:  # asked again for each run that is split off; the author may take long
            if id(item) not in decisions:
                decisions[id(item)] = self._takes(item, template, constant)
            return decisions[id(item)]

        while self._compile is not None and rest:
            before, run, rest = split(rest, takes, self._longest)
            done.extend(before)
            if run:
                done.extend(self._compiled_run(run, {*outputs, *_uses(rest)}, template, constant))
        return [_complete(item) for item in [*done, *rest]]

    def _may_run(self, operation: Operation) -> bool:
        return self._compile is not None and self._accepts(operation)

    def _takes(self, pending: Pending, template: Sequence[Any], constant: Collection[int]) -> bool:
        return (
            is_whole(pending)
            and id(pending.operation) not in self._declined
            and self._may_run(with_constants(pending, template, constant))
        )

    def _compiled_run(
        self, run: Sequence[Pending], needed: Collection[int], template: Sequence[Any], constant: Collection[int]
    ) -> Sequence[Pending]:
        """Return a run as one step, or its steps if the author declines it."""
        assert self._compile is not None
        name = f"{self._device}_run_{self._runs}"
        self._runs += 1
        planned = operation_run(name, self._device, run, needed, template, constant, self._accepts)
        if not planned.step.outputs:  # nothing reads their results
            return run
        try:
            compiled = Compiled.of(self._compile(planned.program, self._options))
        except UnimplementedError as error:
            _log.info("%s declined %d operations: %s", self._device, len(run), error.message)
            return self._without_declined(error, planned, needed, template, constant)
        if self._values.needs_environment and any(
            spec.layout is not None for spec in (*(compiled.parameters or ()), *(compiled.outputs or ()))
        ):
            raise InvalidArgumentError(
                f"{self._device} declares layouts for {name}, a part of a program: expected them for whole programs "
                "only, where one asks for them"
            )
        constants = [position for position, slot in enumerate(planned.inputs) if slot in constant]
        kernel = RunKernel(self._device, planned, compiled, self._values, constants, template)
        step = planned.step._replace(runner=kernel)
        return [Pending(kernel, step, planned.inputs, kernel.environment, False, True)]

    def _without_declined(
        self,
        error: UnimplementedError,
        run: OperationRun,
        needed: Collection[int],
        template: Sequence[Any],
        constant: Collection[int],
    ) -> Sequence[Pending]:
        """Return the steps of a run that the author declined, with runs of those that are not the reason."""
        body = run.program.entry.body
        assert body is not None
        # The first operations of the program are constants that became operations of it.
        first = len(body.operations) - 1 - len(run.pending)
        numbers = error.operations if isinstance(error, DeclinedError) else frozenset()
        reasons = [run.pending[n - first].operation for n in numbers if first <= n < len(body.operations) - 1]
        if not reasons or len(reasons) == len(run.pending):
            return run.pending
        self._declined |= {id(operation): operation for operation in reasons if operation is not None}
        return self.combine(run.pending, list(needed), template, constant)


class RunKernel:
    """The author's function for a run of operations.

    Args:
        device: the name of the author's device.
        run: the run.
        compiled: the author's function.
        values: the form of the values that it takes and returns.
        constants: the positions of arguments that are the same in every run of the program.
        template: the values in the slots of constants.

    Attributes:
        device: the name of the author's device.
        environment: whether a call has the environment first.
    """

    __slots__ = (
        "_constants",
        "_function",
        "_run",
        "_source",
        "_takes_context",
        "_template",
        "_types",
        "_values",
        "device",
        "environment",
    )

    def __init__(
        self,
        device: str,
        run: OperationRun,
        compiled: Compiled,
        values: Values,
        constants: Collection[int],
        template: Sequence[Any],
    ) -> None:
        self.device = device
        self._run, self._template = run, template
        self._function = compiled.run
        self._takes_context = compiled.takes_context
        self._types = ResultTypes(run.step.output_types)
        self._source = f"the function that {device} compiled"
        self._values = values
        self._constants = places(constants)
        self.environment = compiled.takes_context or values.needs_environment

    @property
    def num_operations(self) -> int:
        """The number of operations of the run."""
        return len(self._run.pending)

    def interpreted(self, environment: block.Environment, operands: Sequence[Any]) -> Sequence[Any]:
        """Return the results of the interpreter's kernels, one after the other.

        Raises:
            UnimplementedError: the interpreter lacks an operation of the run.
        """
        slots = dict(zip(self._run.inputs, operands, strict=True))
        for item in self._run.pending:
            arguments = [slots[slot] if slot in slots else self._template[slot] for slot in item.step.inputs]
            value = item.kernel(environment, *arguments) if item.environment else item.kernel(*arguments)
            slots.update(zip(item.step.outputs, [value] if len(item.step.outputs) == 1 else value, strict=True))
        return [slots[slot] for slot in self._run.step.outputs]

    def __call__(self, *values: Any) -> Any:
        """Return the results of the run."""
        environment, operands = (values[0], values[1:]) if self.environment else (None, values)
        arguments = self._values.arguments(environment, operands, self._constants, self._run.step)
        context = [context_of(values[0]).host] if self._takes_context else []
        results = self._function(*context, *self._values.bare(arguments))
        return self._values.results(environment, results, self._types, self._source, arguments, self._run.step)


class _Missing:
    """The kernel of an operation that the interpreter lacks: the operation must become part of a run."""

    def __init__(self, error: PjrtError) -> None:
        self.error = error

    def __call__(self, *values: Any) -> Any:
        raise self.error


def _complete(pending: Pending) -> Pending:
    """Return a step that has a kernel.

    Raises:
        UnimplementedError: neither the author nor the interpreter computes the operation.
    """
    if isinstance(pending.kernel, _Missing):
        raise pending.kernel.error
    return pending


def _uses(pending: Sequence[Pending]) -> set[int]:
    return {slot for item in pending for slot in item.uses}


_log = logging.getLogger("pjrt")


def shares(block: Block) -> dict[str, float]:
    """Return the number of ``operations`` of a program, and of those that the fallback runs by ``fallback NAME``.

    An operation in a loop counts once, and the loop itself counts too; calls, and constants, do not.

    Args:
        block: the program as the interpreter compiled it.
    """
    counts: dict[str, float] = {"operations": 0.0}
    _add(block, counts)
    return counts


def _add(block: Block, counts: dict[str, float]) -> None:
    for step in block.steps:
        own = step.runner is not None and step.runner.device != INTERPRETER
        if step.name != "func.call":
            counts["operations"] += _operations(step)
            if not own:
                counts[f"fallback {step.name}"] = counts.get(f"fallback {step.name}", 0.0) + 1
        if step.name in PROGRAM_STRUCTURE:
            for inner in step.blocks:
                _add(inner, counts)


def _operations(step: Step) -> int:
    return step.runner.num_operations if isinstance(step.runner, RunKernel) else 1


def capabilities_of(
    kernels: Mapping[str, Kernel] | None, operations: Collection[str] | None, fallback: bool, handlers: Collection[str]
) -> Capabilities:
    """Return the capabilities of a device.

    Args:
        kernels: the author's kernels.
        operations: the names of the operations that the author's compiler takes; None for all.
        fallback: whether the interpreter runs everything else.
        handlers: names of functions of the host that custom calls may call.
    """
    compiled = frozenset() if operations is None else frozenset(operations)
    own = compiled | frozenset(kernels or ())
    targets = targets_in(own)
    native = (own - targets) | ({_CUSTOM_CALL} if targets else set()) if own else None
    if fallback:
        return Capabilities(native_operations=native).completed(compiler.capabilities({*handlers, *targets}))
    return Capabilities(
        operations=None if native is None else dict.fromkeys(native),
        native_operations=native,
        custom_calls=frozenset({*handlers, *targets}) if targets else None,
        features={Feature.PARTITIONING: True},
    )
