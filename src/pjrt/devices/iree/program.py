"""Programs: compiled modules, as functions on handles."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from pjrt.api.shape_spec import ShapeSpec
from pjrt.devices.iree.memory import Tensor, duplicate
from pjrt.devices.iree.runtime import IreeDevice, Runtime
from pjrt.host import Enqueued, RunContext

Call = Callable[[Sequence[Tensor]], Any]


class IreeProgram:
    """A compiled module, loaded on each device at its first run there.

    Args:
        runtime: the runtime.
        module: the module, as IREE's compiler writes it.
        function: the name of the function to call.
        results: the types of the results.
        asynchronous: whether the module was compiled for calls that return before their work is done.
        overwritten: the numbers of the arguments that a call may overwrite; it gets copies of them.

    Attributes:
        module: the module.
    """

    def __init__(
        self,
        runtime: Runtime,
        module: bytes,
        function: str,
        results: Sequence[ShapeSpec],
        asynchronous: bool,
        overwritten: Collection[int] = (),
    ) -> None:
        self.module = module
        self._runtime = runtime
        self._function = function
        self._results = tuple(results)
        self._overwritten = frozenset(overwritten)
        self._make = self._asynchronous if asynchronous else self._synchronous
        self._calls: dict[int, Call] = {}

    def run(self, *tensors: Tensor) -> Any:
        """Return the results for these arguments, on their device."""
        device = tensors[0].device
        if self._overwritten:
            tensors = tuple(
                duplicate(self._runtime, each) if number in self._overwritten else each
                for number, each in enumerate(tensors)
            )
        return (self._calls.get(device.index) or self._load(device))(tensors)

    def run_without_arguments(self, context: RunContext) -> Any:
        """Return the results of a program without arguments."""
        device = self._runtime.devices[context.device.local_hardware_id]
        return (self._calls.get(device.index) or self._load(device))(())

    def _load(self, device: IreeDevice) -> Call:
        with device.lock:
            call = self._calls.get(device.index)
            if call is None:
                call = self._calls[device.index] = self._make(device)
        return call

    # The two calls have the same steps. They are written out, because each runs in a few microseconds.

    def _synchronous(self, device: IreeDevice) -> Call:
        runtime, specs, lock = self._runtime, self._results, device.lock
        context, function = runtime.load(self.module, self._function, device)
        new_list, invoke, view_type = runtime.api.VmVariantList, context.invoke, runtime.api.HalBufferView
        count, numbered = len(specs), tuple(enumerate(specs))

        def call(tensors: Sequence[Tensor]) -> Any:
            inputs, outputs, shared = new_list(len(tensors)), new_list(count), False
            for tensor in tensors:
                inputs.push_ref(tensor.view(runtime))
                shared = shared or tensor.owner is not None
            with lock:
                invoke(function, inputs, outputs)
            results = [Tensor(device, spec, view=outputs.get_as_object(n, view_type)) for n, spec in numbered]
            if shared:
                _separate(runtime, results, tensors)
            return results

        return call

    def _asynchronous(self, device: IreeDevice) -> Call:
        runtime, specs, lock = self._runtime, self._results, device.lock
        context, function = runtime.load(self.module, self._function, device)
        new_list, invoke, view_type = runtime.api.VmVariantList, context.invoke, runtime.api.HalBufferView
        count, numbered = len(specs), tuple(enumerate(specs))
        new_semaphore, fence_type = device.hal.create_semaphore, runtime.api.HalFence

        def call(tensors: Sequence[Tensor]) -> Any:
            inputs, outputs, shared, fences = new_list(len(tensors) + 2), new_list(count), False, []
            for tensor in tensors:
                inputs.push_ref(tensor.view(runtime))
                shared = shared or tensor.owner is not None
                if tensor.fence is not None:
                    fences.append(tensor.fence)
            done = fence_type.create_at(new_semaphore(0), 1)
            # The work begins when the arguments are there; work on other arguments does not wait for it.
            inputs.push_ref(fence_type.join(fences) if fences else fence_type(0))
            inputs.push_ref(done)
            with lock:
                invoke(function, inputs, outputs)
            results = [
                Tensor(device, spec, view=outputs.get_as_object(n, view_type), fence=done) for n, spec in numbered
            ]
            if shared:
                _separate(runtime, results, tensors)
            return Enqueued(results, done)

        return call


def _separate(runtime: Runtime, results: Sequence[Tensor], arguments: Sequence[Tensor]) -> None:
    """Copy results that are memory of an argument, if that memory is its caller's: IREE returns an argument, or a
    reshaped one, as it is. The caller's memory has its contents, so nothing is waited for.
    """
    spans = [tensor.span for tensor in arguments if tensor.owner is not None]
    for result in results:
        try:
            begin = result.span[0] if result.spec.size else 0
        except RuntimeError:  # It has no memory yet, so it is not that of an argument.
            continue
        if any(first <= begin < end for first, end in spans):
            result.separate(runtime)
