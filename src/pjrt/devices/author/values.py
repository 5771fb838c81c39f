"""The values that an author's code takes and returns: numpy arrays, or handles of the device's memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

import numpy as np

from pjrt.api.device import MemorySpace
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InternalError, InvalidArgumentError
from pjrt.api.shape_spec import ShapeSpec, format_shape
from pjrt.devices.author.collectives import CollectiveKernel
from pjrt.devices.reference.core.block import TOKEN, Environment, Kernel, context_of
from pjrt.devices.reference.core.module_compiler import CONTROL_FLOW
from pjrt.host import Allocation, Enqueued, Memory
from pjrt.host.device_memory import HandleTable, handle_of, on_host
from pjrt.host.fences import RunWork, wait_for
from pjrt.stablehlo.ir.types import TensorType, TokenType, ValueType

PASSING = CONTROL_FLOW | {
    "func.call",
    "stablehlo.composite",
    "stablehlo.tuple",
    "stablehlo.get_tuple_element",
    "stablehlo.optimization_barrier",
}
"""Ops of the interpreter that pass values on and do not look at them, but for a condition or an index."""


class ResultTypes:
    """The types of the results of an author's function, in the forms in which each call compares them.

    Attributes:
        types: the types in the program.
        specs: for each, its shape and element type, or None for a type that is dynamic or no tensor.
        only: that of the one result; None if there are several, or if it has no fixed one.
        shape, dtype: its shape and dtype.
    """

    __slots__ = ("dtype", "only", "shape", "specs", "types")

    def __init__(self, types: Sequence[ValueType]) -> None:
        self.types = tuple(types)
        self.specs = [
            ShapeSpec(t.sizes, t.element) if isinstance(t, TensorType) and t.is_static else None for t in types
        ]
        self.only = only = self.specs[0] if len(self.specs) == 1 else None
        self.shape = None if only is None else only.shape
        self.dtype = None if only is None else only.element_type.dtype


class Values(Protocol):
    """The values of a device's author."""

    needs_environment: bool

    def arguments(
        self, environment: Environment | None, values: Sequence[Any], constants: dict[Any, Any], step: object
    ) -> list[Any]:
        """Return values of the program as those that ``bare`` turns into the author's arguments. Keep them while the
        author's function runs.

        Args:
            environment: the environment of the step, if ``needs_environment``.
            values: the values.
            constants: by its position, a place for each value that is the same in every run.
            step: the step, for messages.
        """

    def bare(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return the arguments of the author's function."""

    def results(
        self,
        environment: Environment | None,
        results: Any,
        types: ResultTypes,
        source: str,
        values: Sequence[Any],
        step: object,
    ) -> Any:
        """Return the author's results as values of the program, after a check of their types.

        Args:
            environment: the environment of the step, if ``needs_environment``.
            results: one result, or a sequence of them.
            types: the types in the program.
            source: the name of the author's function, for messages.
            values: what ``arguments`` returned.
            step: the step, for messages.

        Raises:
            InternalError: the number of results, an element type or a shape is not the program's.
        """

    def wait_for_memory(self, environment: Environment | None) -> bool:
        """Wait until work under way frees memory of the device; return whether there was such work."""

    def hosted(self, name: str, kernel: Kernel, environment: bool, captured: Sequence[int]) -> Kernel:
        """Return an interpreter's kernel in a form that takes values of every kind."""


class HostValues:
    """Numpy arrays, read-only: the interpreter may use their memory again."""

    needs_environment = False

    def arguments(
        self, environment: Environment | None, values: Sequence[Any], constants: dict[Any, Any], step: object
    ) -> list[Any]:
        """Return the values as read-only arrays."""
        arrays = []
        for value in values:
            # All values but tokens, tuples and scalars of loops. This is the hot path: about 0.2 µs for each.
            if type(value) is not np.ndarray:
                value = _read_only(value)
            elif value.flags.writeable:
                value = value.view()
                value.setflags(write=False)
            arrays.append(value)
        return arrays

    def bare(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return the arrays."""
        return values

    def results(
        self,
        environment: Environment | None,
        results: Any,
        types: ResultTypes,
        source: str,
        values: Sequence[Any],
        step: object,
    ) -> Any:
        """Return the results as arrays."""
        if type(results) is np.ndarray and results.shape == types.shape and results.dtype == types.dtype:
            return results
        if isinstance(results, Enqueued):
            wait_for(results.fence)
            results = results.results
        checked = [
            _checked(result, type_, source)
            for result, type_ in zip(_several(results, types.types, source), types.types, strict=True)
        ]
        return checked[0] if len(checked) == 1 else checked

    def wait_for_memory(self, environment: Environment | None) -> bool:
        """Return False: the arrays are numpy's."""
        return False

    def hosted(self, name: str, kernel: Kernel, environment: bool, captured: Sequence[int]) -> Kernel:
        """Return the kernel: all values are arrays."""
        return kernel


class DeviceValues:
    """Handles of a device's own memory. The interpreter's kernels get copies on the host, as few as possible.

    Args:
        device: the name of the author's device.
        memory: the author's allocator.
        waits: whether each step waits for the work that it enqueues, as those do that somebody observes.
    """

    needs_environment = True

    def __init__(self, device: str, memory: Memory, waits: bool = False) -> None:
        self.device = device
        self.waits = waits
        self._memory = memory

    def arguments(
        self, environment: Environment | None, values: Sequence[Any], constants: dict[Any, Any], step: object
    ) -> list[Any]:
        """Return the values as allocations; those that are on the host are copied into the memory."""
        allocations: list[Any] = []
        for position, value in enumerate(values):
            if type(value) is not Allocation:
                if position and value is values[0]:  # x + x
                    allocations.append(allocations[0])
                    continue
                space = _space(environment)
                if position in constants:
                    held = constants[position]
                    if space not in held:
                        held[space] = self._allocation(value, space)
                    value = held[space]
                else:
                    value = self._allocation(value, space, environment, step)
            allocations.append(value)
        return allocations

    def bare(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return the handles of allocations."""
        return list(map(handle_of, values))

    def results(
        self,
        environment: Environment | None,
        results: Any,
        types: ResultTypes,
        source: str,
        values: Sequence[Any],
        step: object,
    ) -> Any:
        """Return the handles with their types; a handle that came in as an argument stays the same value."""
        space = _space(environment)
        work = None
        if isinstance(results, Enqueued):
            results, fence = results
            if fence is not None:
                work = _work(environment).add(fence, step, source)
        allocations = self._owned(results, types, source, values, space)
        if work is not None:
            for value in values:
                if type(value) is Allocation:
                    value.used_by(work)
            for allocation in allocations:
                if type(allocation) is Allocation and allocation not in values:
                    allocation.busy_until(work)
            if self.waits:
                work.result()
        for allocation in allocations:
            if type(allocation) is Allocation:
                if allocation.handle is None:
                    raise InternalError(f"{source} returned None, expected a handle of {allocation.spec}")
                allocation.check(source, allocation.spec)
        return allocations[0] if len(allocations) == 1 else allocations

    def _owned(
        self, results: Any, types: ResultTypes, source: str, values: Sequence[Any], space: MemorySpace
    ) -> Sequence[Any]:
        """Return the results with an owner for each handle."""
        if types.only is not None and type(results) is not tuple and type(results) is not list:
            is_address = type(results) is int
            for value in values:
                if type(value) is Allocation:
                    handle = value.handle
                    if handle is results or (is_address and type(handle) is int and handle == results):
                        break
            else:  # nearly every result is one new handle
                return [Allocation(self._memory, results, types.only, space)]
        table = HandleTable(self._memory, values)
        # First own all, then check: a wrong handle does not keep the others from being freed.
        return [
            table.own(result, spec or ShapeSpec(type_.sizes, type_.element), space)
            if isinstance(type_, TensorType)
            else (TOKEN if isinstance(type_, TokenType) else result)
            for result, type_, spec in zip(
                _several(results, types.types, source), types.types, types.specs, strict=True
            )
        ]

    def hosted(self, name: str, kernel: Kernel, environment: bool, captured: Sequence[int]) -> Kernel:
        """Return the kernel with its arguments copied to the host, unless it only passes them on."""
        if name in PASSING:
            return kernel
        return CollectiveKernel.of(self._memory, self, kernel, _OnHost(kernel, environment, captured))

    def wait_for_memory(self, environment: Environment | None) -> bool:
        """Wait until work under way frees memory of the device."""
        return _space(environment).devices[0].wait_for_memory()  # type: ignore[attr-defined, no-any-return]

    def _allocation(
        self, value: Any, space: MemorySpace, environment: Environment | None = None, step: object = None
    ) -> Any:
        if value is TOKEN:
            return None
        if isinstance(value, Allocation):
            return value
        array = np.asarray(value)
        spec = ShapeSpec(array.shape, ElementType.of(array.dtype))
        if environment is None:
            return Allocation.of_array(self._memory, array, spec, space)
        return Allocation.begin_of_array(self._memory, array, spec, space, _work(environment), step)


class _OnHost:
    """An interpreter's kernel that takes allocations, too."""

    elementwise = False

    def __init__(self, kernel: Kernel, environment: bool, captured: Sequence[int]) -> None:
        self._kernel = kernel
        self._captured = tuple(captured)
        self.environment = environment

    def __call__(self, *values: Any) -> Any:
        if self.environment:
            environment: Environment = values[0]
            for slot in self._captured:
                environment[slot] = on_host(environment[slot])
            return self._kernel(environment, *map(on_host, values[1:]))
        return self._kernel(*map(on_host, values))


def _space(environment: Environment | None) -> MemorySpace:
    assert environment is not None  # the values need it
    space: MemorySpace = context_of(environment).host.device.default_memory_space
    return space


def _work(environment: Environment | None) -> RunWork:
    assert environment is not None  # the values need it
    work: RunWork = context_of(environment).host.work
    return work


def _several(results: Any, types: Sequence[ValueType], source: str) -> Sequence[Any]:
    """Return the results as a sequence of the right length."""
    if len(types) == 1 and not (isinstance(results, (tuple, list)) and len(results) == 1):
        return [results]
    if not isinstance(results, (tuple, list)) or len(results) != len(types):
        count = len(results) if isinstance(results, (tuple, list)) else f"one {type(results).__name__}"
        raise InternalError(f"{source}: expected a sequence of {len(types)} results, found {count}")
    return results


def _read_only(value: Any) -> Any:
    if value is TOKEN:
        return None
    if isinstance(value, tuple):
        return tuple(map(_read_only, value))
    view = np.asarray(value).view()
    view.flags.writeable = False
    return view


def _checked(result: Any, type_: ValueType, source: str) -> Any:
    if isinstance(type_, TokenType):
        return TOKEN
    if not isinstance(type_, TensorType):
        return result
    array = np.asarray(result)
    if array.dtype == type_.dtype and (
        array.shape == type_.shape
        or (
            array.ndim == type_.rank
            and all(want in (None, have) for want, have in zip(type_.shape, array.shape, strict=True))
        )
    ):
        return array
    raise InternalError(f"{source}: expected a result of type {type_}, found {_described(array)}")


def _described(array: Any) -> str:
    try:
        return format_shape(ElementType.of(array.dtype), array.shape)
    except InvalidArgumentError:
        return f"an array of numpy dtype {array.dtype} and shape {array.shape}"


def places(constants: Collection[int]) -> dict[int, dict[MemorySpace, Any]]:
    """Return a place for each argument that is the same in every run, by its position."""
    return {position: {} for position in constants}
