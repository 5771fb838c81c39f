"""Executions: a program's run on one device, as a task for its work queue."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InternalError, PjrtError
from pjrt.api.future import Future
from pjrt.api.shape_spec import ShapeSpec
from pjrt.host.compiled import Compiled
from pjrt.host.demand import wanted_executions
from pjrt.host.device_errors import without_traceback
from pjrt.host.device_memory.fences import Enqueued, wait_for
from pjrt.host.shutdown import is_lost
from pjrt.host.storage import TOKEN, Storage, freeze, take_writable
from pjrt.host_memory import references
from pjrt.host_memory.array import HostArray, aligned_copy, array_dtype, is_laid_out, order_of_spec

if TYPE_CHECKING:
    from pjrt.host.device_run import DeviceRun
    from pjrt.host.launch import Launch
    from pjrt.host.memory_space import HostMemorySpace
    from pjrt.host.run_context import RunContext

_log = logging.getLogger("pjrt")


class Execution:
    """Calls the program's function when its turn comes, and passes its results, or its error, to the outputs.

    Attributes:
        device: the device that runs it.
        definition: the definition event of all outputs: they come together.
        inputs: the arguments of the function; dropped as soon as it has returned.
        outputs: the storages of the results; ``None`` until it has run if the program does not declare them.
    """

    __slots__ = (
        "_compiled", "_context", "_donated", "_launch", "_sizes", "_spaces", "definition", "device", "inputs",
        "outputs",
    )  # fmt: skip

    def __init__(
        self,
        compiled: Compiled,
        run: DeviceRun,
        inputs: list[Storage],
        donated: frozenset[int],
        launch: Launch | None,
        context: RunContext | None,
    ) -> None:
        self._compiled = compiled
        self.device = run.device
        self._donated = donated
        self._launch = launch
        self._context = context
        self.inputs = inputs
        self._spaces = run.spaces
        self._sizes = run.sizes
        self.definition: Future[None] = Future()
        declared = compiled.outputs
        self.outputs = None if declared is None else [Storage(self.definition) for _ in declared]
        if launch is not None:
            launch.begin(self)
            if launch.launch_id:
                self.device.launches[self] = None

    @property
    def runs_on_caller(self) -> bool:
        """Whether it may run on the thread that enqueues it."""
        return self._compiled.runs_on_caller or (self.device.client.runs_on_caller and not self.spans_processes)

    @property
    def may_wait_for_caller(self) -> bool:
        """Whether the function may wait for what the caller does later: for values of the infeed, for example."""
        return self._compiled.takes_context

    @property
    def spans_processes(self) -> bool:
        """Whether devices of other processes take part in the launch."""
        return self._launch is not None and self._launch.processes is not None

    @property
    def launch_id(self) -> int:
        """The launch id that the caller gave, 0 for none."""
        return 0 if self._launch is None else self._launch.launch_id

    @property
    def is_wanted(self) -> bool:
        """Whether an owner of its results, or of values that are computed from them, is left."""
        return self in wanted_executions(self.device.client.dispatcher.unfinished())

    def run(self) -> None:
        """Do the work, on the device's thread."""
        error: PjrtError | None
        try:
            error = self._input_error() or self._compute()
        except PjrtError as raised:
            error = raised.with_traceback(None)
        except BaseException as raised:
            error = without_traceback(raised)
        if error is None:
            error = self._finish()
        if error is not None:
            self.fail(error)

    def fail(self, error: PjrtError) -> None:
        """Fail the outputs with this error, and end the waits of the launch's other devices."""
        self._give_up()
        if self._launch is not None:
            self._launch.abort(error)
        # Asked before the waiting threads get the error: one of them may end the interpreter at once.
        nobody_will_see = is_lost(error) and (self._launch is None or not self._launch.is_given_up)
        if self.definition._complete(None, error) and nobody_will_see:
            _log.error("an execution of %r failed while the interpreter ended: %s", self._compiled.name, error)

    def poison(self, error: PjrtError) -> bool:
        """Fail the outputs at once, whatever the function is doing; return whether they were still to come."""
        if not self.definition._complete(None, error):
            return False
        self.ask_to_end(error)
        return True

    def ask_to_end(self, error: PjrtError) -> None:
        """Ask the function and the other devices of the launch to end, because nobody waits for them any more."""
        if self._launch is not None:
            self._launch.give_up(error)

    def _finish(self) -> PjrtError | None:
        self._context = None
        self._leave_launch()
        if self.definition._complete(None):
            return None
        return self.definition._error  # It was poisoned while it ran.

    def _give_up(self) -> None:
        self.inputs = []
        self._context = None
        for storage in self.outputs or ():
            storage.array = None
            storage.give_back()
        self._leave_launch()

    def _leave_launch(self) -> None:
        if self._launch is not None:
            self._launch.end(self)
            self.device.launches.pop(self, None)

    def _input_error(self) -> PjrtError | None:
        for storage in self.inputs:
            error = storage.definition._error
            if error is not None:
                return error
        if self._launch is not None:
            self._launch.check_wanted()
        return self.definition._error  # It was poisoned or given up while it was waiting.

    def _compute(self) -> PjrtError | None:
        """Call the function and adopt its results; return the error that it raised."""
        compiled = self._compiled
        outputs = self.outputs
        if outputs is not None:
            self._reserve(outputs)
        arrays = self._arrays()
        try:
            results = as_sequence(
                compiled.run(*arrays) if self._context is None else compiled.run(self._context, *arrays)
            )
        except BaseException as error:
            return without_traceback(error)
        # From here on, donated arrays that the results reuse are held by the results alone.
        arrays.clear()
        self.inputs = []
        held = [results]
        del results
        exclusive = references.to_item(held, 0) == 1
        results = held[0]
        if outputs is None:
            self.outputs = self._adopt_undeclared(results, exclusive)
            return None
        declared = compiled.outputs
        assert declared is not None
        if len(results) != len(declared):
            raise InternalError(
                f"the device's function for {compiled.name!r} gave {len(results)} results, it declared {len(declared)}"
            )
        for number, spec in enumerate(declared):
            outputs[number].array = adopt(results, number, spec, exclusive)
        return None

    def _arrays(self) -> list[HostArray | None]:
        """Return the arguments of the function; for donated ones arrays that it may write to."""
        inputs = self.inputs
        arrays: list[HostArray | None] = [None if s.is_token else s.array for s in inputs]
        for number in self._donated:
            if number < len(inputs) and not inputs[number].is_token:
                arrays[number] = None
                arrays[number] = take_writable(inputs, number)
        return arrays

    def _reserve(self, outputs: list[Storage]) -> None:
        """Charge the memory of the outputs before anything is computed; that of aliased arguments is taken over."""
        compiled = self._compiled
        inherited: set[int] = set()
        for parameter, output in compiled.aliases.items():
            if parameter in self._donated and parameter < len(self.inputs):
                inherited.add(output)
                outputs[output].take_charge_of(self.inputs[parameter])
        for number, size in enumerate(self._sizes):
            if number not in inherited:
                outputs[number].charge(self._space(number).account, size)

    def _adopt_undeclared(self, results: Any, exclusive: bool) -> list[Storage]:
        storages = []
        for number in range(len(results)):
            storage = Storage(self.definition)
            array = adopt(results, number, None, exclusive)
            storage.charge(self._space(number).account, array.nbytes)
            storage.array = array
            storages.append(storage)
        return storages

    def _space(self, number: int) -> HostMemorySpace:
        return self._spaces[min(number, len(self._spaces) - 1)]


def as_sequence(results: Any) -> Any:
    """Return the results of a device's function as a sequence: a single array becomes a list of one.

    Work that the function has enqueued is waited for.
    """
    if isinstance(results, Enqueued):
        wait_for(results.fence)
        return as_sequence(results.results)
    if isinstance(results, (tuple, list)):
        return results
    return [results]


def adopt(results: Any, number: int, spec: ShapeSpec | None, exclusive: bool) -> HostArray:
    """Return a result as the array of an output, without a copy if its memory has no other user.

    Args:
        results: the sequence that holds the result.
        number: the result's position in it.
        spec: the declared type; ``None`` accepts every type.
        exclusive: whether the caller is the sequence's only holder.
    """
    if spec is not None and spec.element_type is ElementType.TOKEN:
        return TOKEN
    mine = exclusive and references.to_item(results, number) == 1
    result = results[number]
    array: HostArray = result if type(result) is np.ndarray else np.asarray(result)
    if spec is None:
        ElementType.of(array.dtype)
    elif array.shape != spec.shape or not _has_dtype(array, spec.element_type):
        raise InternalError(
            f"the device's function gave {array.dtype}{list(array.shape)} for output {number}, it declared {spec}"
        )
    # An array that numpy made of another object is a view of that object, or owns its memory alone.
    flags = array.flags
    mine = mine and (flags.owndata or type(array.base) is np.ndarray) and references.is_sole_base(array)
    if spec is not None and spec.layout is not None:
        order = order_of_spec(spec)
        if not (mine and is_laid_out(array, order)):
            array = aligned_copy(array, array.dtype.newbyteorder("="), order)
        return freeze(array)
    if not (mine and flags.c_contiguous and flags.aligned and array.dtype.isnative):
        array = aligned_copy(array, array.dtype.newbyteorder("="))
    return freeze(array)


def _has_dtype(array: HostArray, element_type: ElementType) -> bool:
    expected = array_dtype(element_type)
    return array.dtype is expected or array.dtype.newbyteorder("=") == expected
