"""Executions on devices with memory of their own: programs take handles and return handles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InternalError, PjrtError
from pjrt.api.shape_spec import ShapeSpec
from pjrt.host.device_errors import without_traceback
from pjrt.host.device_memory.allocation import Allocation, HandleTable, handle_of
from pjrt.host.device_memory.fence_waiter import Completion
from pjrt.host.device_memory.fences import Enqueued, waiting_function
from pjrt.host.device_memory.memory import Memory
from pjrt.host.execution import Execution, as_sequence
from pjrt.host.storage import TOKEN, Storage
from pjrt.host_memory import references


class DeviceExecution(Execution):
    """Calls a program's function with handles, and makes storages of the handles that it returns.

    A function that returns ``Enqueued`` has its outputs at once, and their definition when the fence says so.

    Attributes:
        outcome: what the function has returned or raised, if it was called before (see ``ShortPath``).
    """

    __slots__ = ("_completion", "_fence", "outcome")

    def __init__(self, *arguments: Any) -> None:
        self._fence: Any = None
        self.outcome: Any = None
        self._completion: Completion | None = None
        super().__init__(*arguments)

    def _compute(self) -> PjrtError | None:
        compiled = self._compiled
        if self.outputs is not None:
            self._reserve(self.outputs)
        arguments = self._allocations()
        values = arguments if compiled.takes_allocations else list(map(handle_of, arguments))
        results, self.outcome = self.outcome, None
        if results is None:
            results = self._call(values)
        while isinstance(results, MemoryError) and self._may_call_again and self.device.wait_for_memory():
            results = self._call(values)
        if isinstance(results, BaseException):
            return without_traceback(results)
        fence = None
        if isinstance(results, Enqueued):
            results, fence = results
        values = self._owned(as_sequence(results), arguments)
        if fence is not None:
            waiting_function(fence)  # a wrong one is an error now
            self._fence = fence
            self._completion = Completion(self.definition, self.inputs, self.launch_id)
            # The completion holds the arguments that the caller keeps. It does not hold the others, nor the outputs:
            # later work of the device may be given them, and may use their memory again.
            held = {id(storage.array) for storage in self.inputs}
            for value in (*arguments, *values):
                if isinstance(value, Allocation) and id(value) not in held:
                    value.busy_until(self._completion)
        self._store(values)
        return None

    def _call(self, values: Sequence[Any]) -> Any:
        """Return what the function returns, or the exception that it raises."""
        run = self._compiled.run
        try:
            return run(*values) if self._context is None else run(self._context, *values)
        except BaseException as error:
            return error

    @property
    def _may_call_again(self) -> bool:
        """Whether a function that had no room may be called again: it has written to no argument, and to no host."""
        return self._context is None and not self._compiled.aliases and not self._compiled.donated

    def _finish(self) -> PjrtError | None:
        if self._completion is None:
            self.inputs = []
            return super()._finish()
        self._context = None
        self._leave_launch()
        self._wait_for_fence()
        return self.definition._error  # It was poisoned while it ran.

    def _give_up(self) -> None:
        self._wait_for_fence()  # The work goes on, although its results are wrong.
        super()._give_up()

    def _wait_for_fence(self) -> None:
        """Leave enqueued work to the waiter for fences."""
        self.inputs = []
        fence, self._fence = self._fence, None
        if fence is not None and self._completion is not None:
            self.device.fences.add(fence, self._completion)

    def _allocations(self) -> list[Any]:
        """Return the arguments. The function may write to those that it declares as donated, so in place of one that
        the caller keeps, or that something else can see, it gets a copy.
        """
        inputs = self.inputs
        values: list[Any] = [None if s.is_token else s.array for s in inputs]
        for number in {*self._compiled.aliases, *self._compiled.donated}:
            if number < len(inputs) and not inputs[number].is_token:
                values[number] = None
                values[number] = self._own(inputs, number)
        return values

    def _own(self, inputs: list[Storage], number: int) -> Any:
        """Return the allocation of a storage that is donated, or a copy if something else uses it."""
        mine = number in self._donated and references.to_item(inputs, number) == 1 and inputs[number].mutable
        mine = mine and references.to_attribute(inputs[number], "array") == 1
        storage = inputs[number]
        value: Any = storage.array
        if mine and not value.is_shared:
            # The storage lives until the fence; the result alone may have the memory by then.
            storage.array = None
            return value
        return value.copied(value.space)

    def _owned(self, results: Sequence[Any], arguments: list[Any]) -> list[Any]:
        """Return the results with an allocation for each handle, so that it is freed whatever comes next."""
        compiled = self._compiled
        declared = compiled.outputs or ()
        memory = self._memory
        table = HandleTable(memory, arguments)
        values: list[Any] = []
        for number, result in enumerate(results):
            spec = declared[number] if number < len(declared) else None
            if spec is not None and spec.element_type is ElementType.TOKEN:
                values.append(TOKEN)
            elif result is None:
                values.append(None)
            elif isinstance(result, Allocation):
                space = self._space(number)
                values.append(result if result.space is space else result.copied(space))
            elif compiled.takes_allocations and isinstance(result, np.ndarray):
                values.append(Allocation.of_array(memory, result, spec or ShapeSpec.of(result), self._space(number)))
            else:
                values.append(table.own(result, spec, self._space(number)))
        return values

    def _store(self, values: list[Any]) -> None:
        """Check the results, and put them into the storages of the outputs.

        Raises:
            InternalError: the results are not those that the program declared.
        """
        compiled = self._compiled
        declared = compiled.outputs
        source = f"the device's function for {compiled.name!r}"
        if self.outputs is None or declared is None:
            self.outputs = [self._undeclared(number, value, source) for number, value in enumerate(values)]
            return
        if len(values) != len(declared):
            raise InternalError(f"{source} gave {len(values)} results, it declared {len(declared)}")
        for number, (value, spec) in enumerate(zip(values, declared, strict=True)):
            if value is None:
                raise InternalError(f"{source} gave None for output {number}, expected a handle of {spec}")
            if value is not TOKEN:
                value.check(f"{source}, output {number},", spec)
            self.outputs[number].array = value

    def _undeclared(self, number: int, value: Any, source: str) -> Storage:
        spec = None
        if value is not None:
            spec = value.spec = value.spec or self._memory.spec_of(value.handle)
        if spec is None:
            raise InternalError(
                f"{source} declares no outputs, and its memory does not know the types of handles: declare "
                "Compiled.outputs, or give the memory a method spec_of"
            )
        storage = Storage(self.definition)
        space = self._space(number)
        storage.charge(space.account, space.size_of(spec))
        storage.array = value
        return storage

    @property
    def _memory(self) -> Memory:
        memory = self.device.client.memory
        assert memory is not None  # else the execution is another one
        return memory
