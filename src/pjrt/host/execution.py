"""Executions: one device's share of a launch, as a task for its work queue."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InternalError, PjrtError
from pjrt.api.future import Future
from pjrt.api.shape_spec import ShapeSpec
from pjrt.host.compiled import Compiled
from pjrt.host.layout import array_dtype
from pjrt.host.queue import clean
from pjrt.host.storage import Array, Storage, copied, freeze, thaw

if TYPE_CHECKING:
    from pjrt.host.execution_context import ExecutionContext
    from pjrt.host.memory_space import HostMemorySpace


class Execution:
    """Calls the program's function when its turn comes, and hands its results, or its error, to the outputs.

    Attributes:
        definition: the definition event of all outputs: they come together.
        inputs: what the function is called with; given up as soon as it has returned.
        outputs: what is filled; ``None`` until it has run where the program does not declare them.
        spaces: the memory of each output; the last one serves for all further outputs.
    """

    __slots__ = ("_compiled", "_context", "_donated", "definition", "inputs", "outputs", "spaces")

    def __init__(
        self,
        compiled: Compiled,
        inputs: list[Storage],
        donated: Sequence[int],
        spaces: Sequence[HostMemorySpace],
        context: ExecutionContext | None,
    ) -> None:
        self._compiled = compiled
        self._context = context
        self._donated = donated
        self.inputs = inputs
        self.spaces = spaces
        self.definition: Future[None] = Future()
        self.outputs: list[Storage] | None = None
        if compiled.outputs is not None:
            self.outputs = [Storage(self.definition) for _ in compiled.outputs]

    @property
    def declared(self) -> Sequence[ShapeSpec] | None:
        """The types of the outputs, if the program declares them."""
        return self._compiled.outputs

    @staticmethod
    def spec_of(storage: Storage) -> ShapeSpec:
        """The type of an output that has run."""
        assert storage.array is not None
        return ShapeSpec.of(storage.array)

    def run(self) -> None:
        """Does the work, on the device's thread."""
        try:
            error = self._input_error()
            if error is None:
                self._compute()
        except BaseException as raised:
            error = clean(raised)
        if error is not None:
            self.fail(error)
            return
        self._context = None
        self.definition._complete(None)

    def fail(self, error: PjrtError) -> None:
        """The outputs fail with this error."""
        self.inputs = []
        context, self._context = self._context, None
        for storage in self.outputs or ():
            storage.give_back()
        if context is not None:
            context.launch.abort(error)
        self.definition._complete(None, error)

    def _input_error(self) -> PjrtError | None:
        for storage in self.inputs:
            error = storage.definition._error
            if error is not None:
                return error
        return self.definition._error  # poisoned while it was waiting

    def _compute(self) -> None:
        outputs = self.outputs
        if outputs is not None:
            self._reserve(outputs)
        arrays = self._take_arrays()
        if self._context is None:
            results = self._compiled.run(*arrays)
        else:
            results = self._compiled.run(self._context, *arrays)
        # From here on the results alone hold on to donated arrays that they reuse.
        arrays.clear()
        self.inputs = []
        if outputs is None:
            self.outputs = self._adopt_undeclared(results)
            return
        declared = self._compiled.outputs
        assert declared is not None
        results = as_sequence(results)
        if len(results) != len(declared):
            raise InternalError(
                f"the device's function for {self._compiled.name!r} gave {len(results)} results, it declared "
                f"{len(declared)}"
            )
        exclusive = sys.getrefcount(results) == 2
        for number, spec in enumerate(declared):
            outputs[number].array = adopt(results, number, spec, exclusive)

    def _reserve(self, outputs: list[Storage]) -> None:
        """Takes the memory of the outputs before anything is computed; that of aliased arguments goes over."""
        compiled = self._compiled
        assert compiled.outputs is not None
        inherited: set[int] = set()
        for parameter, output in compiled.aliases.items():
            if parameter in self._donated and parameter < len(self.inputs):
                inherited.add(output)
                outputs[output].take_charge_of(self.inputs[parameter])
        for number, spec in enumerate(compiled.outputs):
            if number not in inherited:
                outputs[number].charge(self._space(number).account, spec.size_in_bytes)

    def _take_arrays(self) -> list[Array | None]:
        arrays: list[Array | None] = [storage.array for storage in self.inputs]
        if self._donated:
            arrays.clear()
            for number, storage in enumerate(self.inputs):
                arrays.append(take_writable(storage) if number in self._donated else storage.array)
        return arrays

    def _adopt_undeclared(self, results: Any) -> list[Storage]:
        results = as_sequence(results)
        exclusive = sys.getrefcount(results) == 2
        made = []
        for number in range(len(results)):
            storage = Storage(self.definition)
            array = adopt(results, number, None, exclusive)
            storage.charge(self._space(number).account, array.nbytes)
            storage.array = array
            made.append(storage)
        return made

    def _space(self, number: int) -> HostMemorySpace:
        return self.spaces[min(number, len(self.spaces) - 1)]


def take_writable(storage: Storage) -> Array | None:
    """The array of a donated argument, to be written to: its own memory if nobody else sees it, otherwise a copy."""
    if storage.is_exclusive():
        array, storage.array = storage.array, None
        return None if array is None else thaw(array)
    return None if storage.array is None else copied(storage.array, storage.array.dtype)


def as_sequence(results: Any) -> Any:
    """The results of a device's function as a sequence: a lone array becomes a list of one."""
    if isinstance(results, (tuple, list)):
        return results
    return [results]


def adopt(results: Any, number: int, spec: ShapeSpec | None, exclusive: bool) -> Array:
    """A result as the array of an output: taken over without a copy if nobody else can see its memory, else copied.

    Args:
        results: the sequence that holds the result.
        number: where in it.
        spec: what it must be; ``None`` takes what comes.
        exclusive: whether the caller is the sequence's only holder.
    """
    if spec is not None and spec.element_type is ElementType.TOKEN:
        return np.empty(0, array_dtype(ElementType.TOKEN))
    result = results[number]
    array: Array = result if type(result) is np.ndarray else np.asarray(result)
    if spec is None:
        ElementType.of(array.dtype)
    elif array.shape != spec.shape or array.dtype != array_dtype(spec.element_type):
        raise InternalError(
            f"the device's function gave {array.dtype}{list(array.shape)} for output {number}, it declared {spec}"
        )
    # One reference is the sequence's, two are the local variables', one is the call's. An array that numpy made of
    # something else is a view of that or of nobody's.
    mine = exclusive and sys.getrefcount(result) == (4 if array is result else 3)
    del result
    flags = array.flags
    if not (mine and flags.c_contiguous and flags.aligned and array.dtype.isnative and _owns_memory(array)):
        array = copied(array, array.dtype.newbyteorder("="))
    return freeze(array)


def _owns_memory(array: Array) -> bool:
    base = array.base
    if base is None:
        return array.flags.owndata
    return type(base) is np.ndarray and sys.getrefcount(base) == 3 and _owns_memory(base)
