"""The code of an author, as the interpreter asks for it while it compiles a program."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import PjrtError, UnimplementedError
from pjrt.devices.author.declined import DeclinedError
from pjrt.devices.author.kernels import AuthorKernel, Kernel
from pjrt.devices.author.operation_runs import OperationRun, is_whole, operation_run, split, with_constants
from pjrt.devices.author.payloads import CompileParsed
from pjrt.devices.author.values import ResultTypes, Values, places
from pjrt.devices.reference.core import block
from pjrt.devices.reference.core.author import CONTROL_FLOW
from pjrt.devices.reference.core.block import context_of
from pjrt.devices.reference.core.liveness import Pending
from pjrt.host import Compiled
from pjrt.stablehlo.operation import Operation

PROGRAM_STRUCTURE = CONTROL_FLOW | {"func.call", "stablehlo.composite"}
"""Operations that run other parts of the program: the interpreter's, and never part of a run of operations."""


class AuthorCode:
    """An author's kernels, and the author's compiler for runs of operations.

    Args:
        device: the name of the author's device.
        kernels: the kernels by the names of their operations.
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
        return name in self._kernels or (
            name not in PROGRAM_STRUCTURE and (self._compile is not None or not self._fallback)
        )

    def kernel(
        self,
        operation: Operation,
        interpreted: Callable[[], block.Kernel],
        environment: bool,
        constants: Collection[int],
        captured: Sequence[int],
    ) -> block.Kernel:
        """Return the kernel of an operation; see ``pjrt.devices.reference.core.author``."""
        function = self._kernels.get(operation.name)
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
        """Return the steps of a block with its runs; see ``pjrt.devices.reference.core.author``."""
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
        arguments = self._values.arguments(environment, operands, self._constants)
        context = [context_of(values[0]).host] if self._takes_context else []
        results = self._function(*context, *self._values.bare(arguments))
        return self._values.results(environment, results, self._types, self._source, arguments)


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
