"""Single operations of a program, each run by the interpreter on its own."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from pjrt.api.errors import InvalidArgumentError
from pjrt.devices.reference.core.block import Context, run_fast
from pjrt.devices.reference.evaluator import Evaluator
from pjrt.host import RunContext
from pjrt.stablehlo import to_module
from pjrt.stablehlo.ir.operation import Operation, ParsedProgram
from pjrt.stablehlo.ir.types import TensorType
from pjrt.stablehlo.transforms.cutting import Cut, Cutter


class OperationEvaluator:
    """Runs single operations of a parsed program on numpy arrays, for a device that runs the others itself.

    Any operation that the interpreter has can be run, also collectives among the devices of a launch. Each operation
    is compiled once, when it is first asked for. Any thread may use it. A device with memory of its own copies its
    handles to the host before (``Memory.copy_out``), and the results into its memory behind.

    Args:
        program: a program from ``parse``, or one that a client gave to an author's ``compile``.

    Raises:
        InvalidArgumentError: the program does not keep its source: it is a run of operations of a larger one.
    """

    def __init__(self, program: ParsedProgram) -> None:
        if program.source is None:
            raise InvalidArgumentError(
                "expected a program with its source, from pjrt.stablehlo.parse or a client, found a part of a program"
            )
        self._program = program
        self._cutter = Cutter(program.source, trusted=True)
        self._lock = threading.Lock()
        self._compiled: dict[Operation, tuple[Cut, Evaluator]] = {}

    def cut(self, operations: Iterable[Operation]) -> Cut:
        """Return some operations of one block as a program of their own; ``Cut.arguments`` names its arguments."""
        chosen = list(operations)
        return self._cutter.cut_operations(chosen, function=self._function_of(chosen[0]))

    def evaluate(self, operation: Operation, *operands: Any, context: RunContext | None = None) -> list[Any]:
        """Return the results of an operation.

        Args:
            operation: an operation of the program.
            operands: an array for each operand.
            context: the run that it is a part of; collectives need it.

        Raises:
            UnimplementedError: the interpreter lacks the operation, or its regions take values from around it.
            InvalidArgumentError: an operand is no array, such as a handle of a device's own memory.
        """
        for value, operand in zip(operation.operands, operands, strict=True):
            if isinstance(value.type, TensorType) and not hasattr(operand, "dtype"):
                raise InvalidArgumentError(
                    f"{operation}: expected an array for {value.name}, found {type(operand).__name__}; copy what is in "
                    "memory of the device's own to the host first"
                )
        cut, evaluator = self._evaluator(operation)
        by_name = {value.name: operand for value, operand in zip(operation.operands, operands, strict=True)}
        missing = [name for name in cut.arguments if name not in by_name]
        if missing:
            raise InvalidArgumentError(
                f"{operation}: expected an operation that takes all values as operands, found that its regions take "
                f"{', '.join(missing)} from around it"
            )
        return evaluator.run(
            [by_name[name] for name in cut.arguments],
            Context(run_fast) if context is None else Context.of(run_fast, context),
        )

    def _evaluator(self, operation: Operation) -> tuple[Cut, Evaluator]:
        compiled = self._compiled.get(operation)
        if compiled is not None:
            return compiled
        with self._lock:  # The devices of a launch meet at one collective: it must not be compiled twice.
            if operation not in self._compiled:
                cut = self.cut([operation])
                with to_module(cut.program, trusted=True) as module:
                    self._compiled[operation] = cut, Evaluator(module)
            return self._compiled[operation]

    def _function_of(self, operation: Operation) -> str:
        for name, function in self._program.functions.items():
            if function.body is not None and any(each is operation for each in function.body.walk()):
                return name
        raise InvalidArgumentError(f"expected an operation of the program, found {operation}")
