"""Executions on devices with memory of their own: programs take handles and return handles."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InternalError, PjrtError
from pjrt.api.shape_spec import ShapeSpec
from pjrt.host.device_errors import without_traceback
from pjrt.host.device_memory.allocation import Allocation, handle_of
from pjrt.host.device_memory.fence_waiter import Completion
from pjrt.host.device_memory.fences import Enqueued, waiting_function
from pjrt.host.execution import Execution, as_sequence
from pjrt.host.storage import TOKEN, Storage

if TYPE_CHECKING:
    from pjrt.host.memory_space import HostMemorySpace


class DeviceExecution(Execution):
    """Calls a program's function with handles, and makes storages of the handles that it returns.

    A function that returns ``Enqueued`` has its outputs at once, and their definition when the fence says so.
    """

    __slots__ = ("_fence",)

    def _compute(self) -> PjrtError | None:
        self._fence: Any = None
        compiled = self._compiled
        outputs = self.outputs
        if outputs is not None:
            self._reserve(outputs)
        allocations = self._allocations()
        values = allocations if compiled.takes_allocations else list(map(handle_of, allocations))
        try:
            results = compiled.run(*values) if self._context is None else compiled.run(self._context, *values)
        except BaseException as error:
            return without_traceback(error)
        values.clear()
        if isinstance(results, Enqueued):
            results, self._fence = results
            waiting_function(self._fence)  # a wrong one is an error now
        known = {id(value.handle): value for value in allocations if isinstance(value, Allocation)}
        results = as_sequence(results)
        declared = compiled.outputs
        if outputs is None or declared is None:
            self.outputs = [self._undeclared(number, result, known) for number, result in enumerate(results)]
            return None
        if len(results) != len(declared):
            raise InternalError(
                f"the device's function for {compiled.name!r} gave {len(results)} results, it declared {len(declared)}"
            )
        for number, (result, spec) in enumerate(zip(results, declared, strict=True)):
            outputs[number].array = self._adopt(result, number, spec, known)
        return None

    def _finish(self) -> PjrtError | None:
        fence, self._fence = self._fence, None
        if fence is None:
            self.inputs = []
            return super()._finish()
        # The work may use the arguments until the fence. The outputs are not held: later work of the device may be
        # given them, and may use their memory again.
        completion = Completion(self.definition, self.inputs)
        self._context = None
        self.inputs = []
        self._leave_launch()
        self.device.fences.add(fence, completion)
        return self.definition._error  # It was poisoned while it ran.

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
        storage = inputs[number]
        value: Any = storage.array
        # A storage: the list's reference, the local variable's, and the call's. An allocation: the storage's, the
        # local variable's and the call's.
        mine = number in self._donated and storage.mutable
        if mine and sys.getrefcount(storage) == 3 and sys.getrefcount(value) == 3:
            # The storage lives until the fence; the result alone may have the memory by then.
            storage.array = None
            return value
        return value.copied(value.space)

    def _adopt(self, result: Any, number: int, spec: ShapeSpec, known: dict[int, Allocation]) -> Any:
        """Return a result as the value of an output. A handle that came in as an argument is shared."""
        if spec.element_type is ElementType.TOKEN:
            return TOKEN
        source = f"the device's function for {self._compiled.name!r}, output {number},"
        if isinstance(result, Allocation):
            if (result.spec.shape, result.spec.element_type) != (spec.shape, spec.element_type):
                raise InternalError(f"{source} gave {result.spec}, it declared {spec}")
            return result
        plain = ShapeSpec(spec.shape, spec.element_type)
        memory = self.device.client.memory
        assert memory is not None  # else the execution is another one
        if self._compiled.takes_allocations and isinstance(result, np.ndarray):
            return Allocation.of_array(memory, result, plain, self._space(number))
        allocation = known.get(id(result))
        if allocation is None or allocation.spec != plain:
            allocation = Allocation(memory, result, plain, self._space(number)).check(source)
            known[id(result)] = allocation
        return allocation

    def _undeclared(self, number: int, result: Any, known: dict[int, Allocation]) -> Storage:
        memory = self.device.client.memory
        assert memory is not None
        spec = result.spec if isinstance(result, Allocation) else memory.spec_of(result)
        if spec is None:
            raise InternalError(
                f"the device's function for {self._compiled.name!r} declares no outputs, and its memory does not know "
                "the types of handles: declare Compiled.outputs, or give the memory a method spec_of"
            )
        storage = Storage(self.definition)
        space: HostMemorySpace = self._space(number)
        storage.charge(space.account, spec.size_in_bytes)
        storage.array = self._adopt(result, number, spec, known)
        return storage
