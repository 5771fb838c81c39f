"""Programs in steps: kernels of a driver, and what the host does between them.

A compiler that does not have all operations of a program divides it with ``with_fallback``, or writes the steps itself.
The runtime copies what a step of the host reads and writes; a kernel waits for the host only where the host gives it
something.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pjrt.api.compile_options import CompileOptions
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InternalError, UnimplementedError
from pjrt.api.protobuf import message_classes
from pjrt.api.shape_spec import ShapeSpec, TiledLayout
from pjrt.native.code import Code, asked_layouts, is_taken, spec_of
from pjrt.native.compiling import COLLECTIVES
from pjrt.native.questions import array_of, encoded_call
from pjrt.stablehlo.facts.signatures import LAYOUT_ATTRIBUTE
from pjrt.stablehlo.ir.operation import Block, Function, Operation, ParsedProgram, Value
from pjrt.stablehlo.ir.types import FunctionType, TensorType, TokenType
from pjrt.stablehlo.ir.unparsing import ANNOTATIONS, unparse

# The fields are read in C: see native/library/steps.c.
_Step = message_classes(
    "pjrt_native_steps",
    {
        "Step": {
            "code": (1, "optional bytes"),
            "program": (2, "optional bytes"),
            "call": (3, "optional bytes"),
            "inputs": (4, "[uint64]"),
            "outputs": (5, "[uint64]"),
            "input_arrays": (6, "[bytes]"),
            "output_arrays": (7, "[bytes]"),
        }
    },
)["Step"]


REPLICA_ID, PARTITION_ID = -2, -1
"""The numbers of two values that steps of the host can read: the place of the device in the program, of type u32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A step that the driver does.

    Attributes:
        code: the bytes that the driver's function ``load`` gets.
        inputs: the numbers of the values that it reads.
        outputs: the numbers of the values that it writes.
        scratch: the bytes of memory that it needs beside them.
    """

    code: bytes
    inputs: Sequence[int]
    outputs: Sequence[int]
    scratch: int = 0

    def serialize(self, specs: Sequence[ShapeSpec]) -> bytes:
        """Return the step as the runtime reads it."""
        return _serialized(self, (), code=self.code)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCall:
    """A call of a handler in the framework's process.

    Attributes:
        target: its name.
        inputs: the numbers of its arguments; ``None`` for a token.
        outputs: the numbers of its results; ``None`` for a token.
        attributes: its attributes.
    """

    target: str
    inputs: Sequence[int | None]
    outputs: Sequence[int | None]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def serialize(self, specs: Sequence[ShapeSpec]) -> bytes:
        """Return the step as the runtime reads it."""
        return _serialized(self, specs, call=encoded_call(self.target, self.attributes))


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProgram:
    """A program that the reference interpreter runs, in a Python process beside the framework's.

    Attributes:
        program: StableHLO; its arguments and results are arrays of static shape.
        inputs: the numbers of its arguments.
        outputs: the numbers of its results.
    """

    program: bytes
    inputs: Sequence[int]
    outputs: Sequence[int]

    def serialize(self, specs: Sequence[ShapeSpec]) -> bytes:
        """Return the step as the runtime reads it."""
        return _serialized(self, specs, program=self.program)


Step = Kernel | HostCall | HostProgram


def _serialized(step: Step, specs: Sequence[ShapeSpec], **what: bytes) -> bytes:
    def array(number: int | None) -> bytes:
        place = ShapeSpec((), ElementType.U32)
        return array_of(None if number is None else place if number < 0 else specs[number])

    def arrays(numbers: Sequence[int | None]) -> list[bytes]:
        return list(map(array, numbers))

    message = _Step(
        inputs=[0 if number is None else number + 3 for number in step.inputs],
        outputs=[0 if number is None else number + 3 for number in step.outputs],
        input_arrays=arrays(step.inputs) if specs else (),
        output_arrays=arrays(step.outputs) if specs else (),
        **what,
    )
    return bytes(message.SerializeToString())


# Dividing a program.

_WITH_OTHERS = frozenset({"stablehlo.infeed", "stablehlo.outfeed", "stablehlo.recv", "stablehlo.send"})
_ON_SEVERAL_DEVICES = frozenset(f"stablehlo.{name}" for name in (*COLLECTIVES, "partition_id", "replica_id"))
_PLACES = {"stablehlo.replica_id": REPLICA_ID, "stablehlo.partition_id": PARTITION_ID}
_RETURNS = ("func.return", "stablehlo.return")

CompileKernel = Callable[[ParsedProgram, CompileOptions], Code]
Covers = Callable[[ParsedProgram, CompileOptions], object]


def with_fallback(compile: CompileKernel, covers: Covers | None = None) -> CompileKernel:
    """Return a function that compiles all programs, from one that compiles some.

    A program for which ``compile`` raises ``UnimplementedError`` is divided: ``compile`` is asked for each operation,
    and then for the largest runs of those that it has. The reference interpreter runs the others, and a run that
    ``compile`` refuses after all. Handlers of the framework are called in its process. ``compile`` is not asked for
    tokens, tuples, arrays of unknown size, and operations without results.

    Args:
        compile: the function ``compile(program, options)``.
        covers: what is called for each operation in the place of ``compile``, where that takes long. It raises as
            ``compile`` does; what it returns is not looked at.
    """

    def compile_all(program: ParsedProgram, options: CompileOptions) -> Code:
        body = program.entry.body
        assert body is not None  # an entry has operations
        bodies = [function.body for function in program.functions.values() if function.body is not None]
        operations = [each for block in bodies for each in block.walk() if each.name not in _RETURNS]
        results = [value for each in operations for value in each.results]
        if all(each.results for each in operations) and all(map(_is_array, (*body.arguments, *results))):
            with contextlib.suppress(UnimplementedError):
                code = compile(program, options)
                if _takes_layouts(code, *asked_layouts(program)):
                    return code
        return _Division(program, options, compile, covers or compile).code()

    return compile_all


@dataclass(slots=True)
class _Part:
    """Operations that run together: a kernel, or a step of the host."""

    operations: list[Operation]
    is_kernel: bool


class _Division:
    """A program that is divided into steps."""

    def __init__(self, program: ParsedProgram, options: CompileOptions, compile: CompileKernel, covers: Covers) -> None:
        self._program = program
        self._options = options
        self._compile = compile
        self._asks = covers
        self._operations: list[Operation] = []
        self._results = self._flatten(program.entry.body, {})
        self._constants = {
            id(o.results[0]): o for o in self._operations if o.name == "stablehlo.constant" or o.name in _PLACES
        }
        self._asked = dict(enumerate(layout for asked in asked_layouts(program) for layout in asked))
        self._covered: set[int] = set()
        self._refusals: dict[int, str] = {}
        self._covered.update(id(operation) for operation in self._operations if self._covers(operation))
        partitioning = options.partitioning
        is_alone = partitioning.num_replicas * partitioning.num_partitions == 1
        self._check_steps(_WITH_OTHERS if is_alone else _WITH_OTHERS | _ON_SEVERAL_DEVICES)

    def _check_steps(self, lacking: frozenset[str]) -> None:
        for operation in self._operations:
            for each in (operation, *operation.walk()):
                is_known = id(operation) in self._covered or operation.name in _PLACES
                if each.name in lacking and not is_known:
                    refusal = self._refusals.get(id(operation))
                    raise UnimplementedError(
                        f"the device has no such {each.name}, and steps of the host reach nobody else "
                        f"[{each.location}]" + (f": {refusal}" if refusal else "")
                    )

    def _flatten(self, block: Block | None, names: dict[int, Value]) -> tuple[Value, ...]:
        """Add the operations of a block, with those of functions that it calls; return its results."""
        assert block is not None  # checked by the caller
        for operation in block.operations:
            operands = tuple(names.get(id(value), value) for value in operation.operands)
            if operation.name in _RETURNS:
                return operands
            callee = self._callee(operation)
            results: Sequence[Value]
            if operation.name in ANNOTATIONS:
                results = operands
            elif callee is not None:
                inner = dict(zip(map(id, callee.arguments), operands, strict=True))
                results = self._flatten(callee.body, inner)
            else:
                regions = tuple(region.renamed(names) for region in operation.regions)
                copy = Operation(operation.name, operands, operation.attributes, operation.location, (), regions)
                results = copy.results = tuple(Value(v.type, v.name, copy, v.index) for v in operation.results)
                self._operations.append(copy)
            names.update(zip(map(id, operation.results), results, strict=True))
        return ()

    def _callee(self, operation: Operation) -> Function | None:
        if operation.name != "func.call":
            return None
        function = self._program.functions[str(operation.attribute("callee")).lstrip("@")]
        return function if function.body is not None else None

    # What the driver's code covers.

    def _covers(self, operation: Operation) -> bool:
        if not operation.results or not all(map(_is_array, (*_inputs(operation), *operation.results))):
            return False
        constants = self._constants_of(_inputs(operation), is_kernel=True)
        try:
            self._asks(self._cut([*constants, operation], operation.results)[0], self._options)
        except UnimplementedError as error:
            self._refusals[id(operation)] = error.message
            return False
        return True

    def _constants_of(self, values: Sequence[Value], is_kernel: bool) -> list[Operation]:
        """Return the constants among values that a part has itself: the host has all of them."""
        constants = {id(v): self._constants[id(v)] for v in values if id(v) in self._constants}
        return [each for each in constants.values() if not is_kernel or id(each) in self._covered]

    def _cut(self, operations: Sequence[Operation], outputs: Sequence[Value]) -> tuple[ParsedProgram, list[Value]]:
        """Return the program of some operations, and the values that it takes."""
        made = {id(value) for operation in operations for value in operation.results}
        used = [value for operation in operations for value in _inputs(operation)]
        inputs = list({id(v): v for v in (*used, *outputs) if id(v) not in made}.values())
        location = operations[-1].location if operations else self._program.entry.location
        tokens = [
            Operation("stablehlo.create_token", (), {}, location, (value,))
            for value in inputs
            if isinstance(value.type, TokenType)
        ]
        inputs = [value for value in inputs if not isinstance(value.type, TokenType)]
        end = Operation("func.return", tuple(outputs), {}, location)
        body = Block(tuple(inputs), (*tokens, *operations, end)).renamed({})
        type_ = FunctionType(tuple(v.type for v in inputs), tuple(v.type for v in outputs))
        main = Function(
            "main", type_, True, ("",) * len(inputs), ({},) * len(inputs), ({},) * len(outputs), body, location
        )
        functions = {"main": main}
        self._add_called(body, functions)
        return ParsedProgram(self._program.name, functions, self._program.attributes), inputs

    def _add_called(self, block: Block, functions: dict[str, Function]) -> None:
        for operation in block.walk():
            names = [operation.attributes.get(name, "") for name in ("callee", "decomposition")]
            for name in (*names, *operation.attributes.get("called_computations", ())):
                function = self._program.functions.get(str(name).lstrip("@"))
                if function is not None and function.name not in functions:
                    functions[function.name] = function
                    if function.body is not None:
                        self._add_called(function.body, functions)

    # The order.

    def _parts(self) -> Iterator[_Part]:
        """Yield as few parts as there can be, with the host's operations in the order of the program."""
        known = {id(value) for value in self._program.entry.arguments}
        free = {key for key, operation in self._constants.items() if id(operation) in self._covered}
        needed = {id(value) for o in self._operations if id(o) in self._covered for value in _inputs(o)}
        needed |= {id(value) for value in self._results}
        calls = {id(value) for o in self._operations if _is_call(o) for value in o.operands}
        free -= calls  # a call has no place for constants: a step before it writes them
        needed |= calls
        constants = set(map(id, self._constants.values()))
        waiting = [
            operation
            for operation in self._operations
            if id(operation) not in constants
            or (id(operation.results[0]) not in free and id(operation.results[0]) in needed)
        ]
        while waiting:
            for is_kernel in (True, False):
                inner = {id(value) for o in waiting if _is_call(o) for value in o.operands}
                part = self._next_part(waiting, is_kernel, known, free if is_kernel else set(self._constants) - inner)
                taken = {id(operation) for operation in part.operations}
                waiting = [operation for operation in waiting if id(operation) not in taken]
                known.update(id(value) for operation in part.operations for value in operation.results)
                if part.operations:
                    yield part

    def _next_part(self, waiting: Sequence[Operation], is_kernel: bool, known: set[int], free: set[int]) -> _Part:
        part, inside = _Part([], is_kernel), known | free
        for operation in waiting:
            if (id(operation) in self._covered) != is_kernel:
                continue
            is_ready = all(id(value) in inside for value in _inputs(operation))
            if not is_kernel and (not is_ready or (part.operations and _is_call(operation))):
                break
            if is_ready:
                part.operations.append(operation)
                inside.update(id(value) for value in operation.results)
            if not is_kernel and _is_call(operation):
                break
        return part

    # The code.

    def code(self) -> Code:
        """Return the program in steps.

        Raises:
            UnimplementedError: a value between steps is no array of static shape.
        """
        arguments, parts = self._program.entry.arguments, list(self._parts())
        numbers = {id(value): number for number, value in enumerate(arguments)}
        made = {id(value) for part in parts for operation in part.operations for value in operation.results}
        copies: dict[int, Value] = {}
        for place, value in enumerate(self._results):
            number = len(arguments) + place
            if isinstance(value.type, TokenType):
                continue
            if id(value) in made and id(value) not in numbers:
                numbers[id(value)] = number
            else:  # an argument, a constant, or a result twice
                copies[number] = value
        readers = [{id(v) for o in part.operations for v in _inputs(o)} for part in parts]
        specs: list[ShapeSpec] = []
        between: list[Value] = []
        steps: list[Step] = []
        flops = 0.0
        for place, part in enumerate(parts):
            later = {id(value) for value in copies.values()}.union(*readers[place + 1 :])
            results = [v for operation in part.operations for v in operation.results]
            if not part.is_kernel and _is_call(part.operations[0]):  # all its results have a place
                later.update(map(id, results))
            outputs = [v for v in results if id(v) in numbers or (id(v) in later and isinstance(v.type, TensorType))]
            for value in outputs:
                if id(value) not in numbers:
                    numbers[id(value)] = len(arguments) + len(self._results) + len(between)
                    between.append(value)
                    specs.append(spec_of(value.type, f"the value {value.name} between steps"))
            if outputs or not part.is_kernel:
                step, cost = self._step(part, outputs, [numbers[id(value)] for value in outputs], numbers)
                steps.append(step)
                flops += cost
        if copies:
            step, _ = self._step(_Part([], True), list(copies.values()), list(copies), numbers)
            steps.append(step)
        orders = {n: each.minor_to_major for n, each in self._asked.items() if isinstance(each, TiledLayout)}
        return Code(
            steps=steps,
            values=specs,
            cost={"flops": flops} if flops else {},
            parameter_layouts={n: order for n, order in orders.items() if n < len(arguments)},
            output_layouts={n - len(arguments): order for n, order in orders.items() if n >= len(arguments)},
        )

    def _asked_of(self, numbers: Sequence[int]) -> list[TiledLayout | str]:
        return [self._asked.get(number, "") for number in numbers]

    def _step(
        self, part: _Part, outputs: Sequence[Value], outputs_numbers: Sequence[int], numbers: Mapping[int, int]
    ) -> tuple[Step, float]:
        if not part.is_kernel and _is_call(part.operations[0]):
            return _call_step(part.operations[0], outputs_numbers, outputs, numbers), 0.0
        used = [v for operation in part.operations for v in _inputs(operation)]
        inside = {id(operation) for operation in part.operations}
        constants = self._constants_of([*used, *outputs], part.is_kernel)
        operations = [*(each for each in constants if id(each) not in inside), *part.operations]
        places: dict[int, int] = {}
        if not part.is_kernel:  # the interpreter is told
            places = {id(o.results[0]): _PLACES[o.name] for o in operations if o.name in _PLACES}
            operations = [operation for operation in operations if operation.name not in _PLACES]
        program, inputs = self._cut(operations, outputs)
        inputs_numbers = [places[id(v)] if id(v) in places else numbers[id(v)] for v in inputs]
        if part.is_kernel:
            asked = [self._asked_of(inputs_numbers), self._asked_of(outputs_numbers)]
            main = replace(program.entry, argument_attributes=_stated(asked[0]), result_attributes=_stated(asked[1]))
            program = replace(program, functions={**program.functions, "main": main})
            try:
                code = self._compile(program, self._options)
            except UnimplementedError:
                code = None  # the driver has each operation, but not all together
            if code is not None and _takes_layouts(code, *asked):
                if code.code is None:
                    raise InternalError("expected the code of a kernel for a part of a program, found steps")
                cost = float(code.cost.get("flops", 0))
                return Kernel(
                    code=code.code, inputs=inputs_numbers, outputs=outputs_numbers, scratch=code.scratch
                ), cost
        return HostProgram(program=unparse(program).encode(), inputs=inputs_numbers, outputs=outputs_numbers), 0.0


def _takes_layouts(code: Code, parameters: Sequence[TiledLayout | str], results: Sequence[TiledLayout | str]) -> bool:
    """Return whether the code takes and gives arrays in the layouts that are asked for."""
    return all(
        is_taken(asked, orders.get(number))
        for layouts, orders in ((parameters, code.parameter_layouts), (results, code.output_layouts))
        for number, asked in enumerate(layouts)
    )


def _stated(asked: Sequence[TiledLayout | str]) -> tuple[Mapping[str, Any], ...]:
    return tuple({LAYOUT_ATTRIBUTE: str(each)} if isinstance(each, TiledLayout) else {} for each in asked)


def _is_array(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.is_static


def _inputs(operation: Operation) -> list[Value]:
    """Return the operands, and what the regions take from outside."""
    inputs = list(operation.operands)
    if operation.regions:
        inner = list(operation.walk())
        own = {id(value) for each in inner for value in each.results}
        blocks = [region for each in (operation, *inner) for region in each.regions]
        own |= {id(value) for block in blocks for value in block.arguments}
        inputs += [value for each in inner for value in each.operands if id(value) not in own]
    return inputs


def _is_call(operation: Operation) -> bool:
    """Whether the framework's process is asked, and not the interpreter, which has many custom calls itself."""
    if operation.name != "stablehlo.custom_call":
        return False
    from pjrt.devices.reference.core.registry import load_chapters, targets  # here: few programs have such calls

    load_chapters()
    return (
        operation.attribute("call_target_name") not in targets()
        and not operation.attribute("output_operand_aliases", ())
        and isinstance(_attributes(operation), Mapping)
        and all(
            isinstance(value.type, TokenType)
            or (
                isinstance(value.type, TensorType)
                and (value.type.element.bits >= 8 or value.type.element.name == "PRED")
            )
            for value in (*operation.operands, *operation.results)
        )
    )


def _attributes(operation: Operation) -> Any:
    for name in ("mhlo.backend_config", "backend_config"):
        if value := operation.attribute(name, None):
            return value
    return {}


def _call_step(
    call: Operation, outputs_numbers: Sequence[int], outputs: Sequence[Value], numbers: Mapping[int, int]
) -> HostCall:
    given = dict(zip(map(id, outputs), outputs_numbers, strict=True))
    return HostCall(
        target=call.attribute("call_target_name"),
        inputs=[numbers[id(value)] if isinstance(value.type, TensorType) else None for value in call.operands],
        outputs=[given.get(id(value)) for value in call.results],
        attributes=_attributes(call),
    )
