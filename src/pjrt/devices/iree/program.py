"""Programs: compiled modules, as functions on handles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pjrt.api.shape_spec import ShapeSpec
from pjrt.devices.iree.memory import Tensor
from pjrt.devices.iree.runtime import IreeDevice, Runtime
from pjrt.host import Enqueued, RunContext

Call = Callable[[Sequence[Tensor]], Any]


class IreeProgram:
    """A compiled module, loaded on each device at its first run there.

    Args:
        runtime: the runtime.
        vmfb: the module, as IREE's compiler writes it.
        function: the name of the function to call.
        results: the types of the results.
        asynchronous: whether the module was compiled for calls that return before their work is done.
    """

    def __init__(
        self, runtime: Runtime, vmfb: bytes, function: str, results: Sequence[ShapeSpec], asynchronous: bool
    ) -> None:
        self.vmfb = vmfb
        self._runtime = runtime
        self._function = function
        self._results = tuple(results)
        self._make = self._asynchronous if asynchronous else self._synchronous
        self._calls: dict[IreeDevice, Call] = {}

    def run(self, *tensors: Tensor) -> Any:
        """Return the results for these arguments, on their device."""
        return self._call(tensors[0].device)(tensors)

    def run_without_arguments(self, context: RunContext) -> Any:
        """Return the results of a program without arguments."""
        return self._call(self._runtime.devices[context.device.local_hardware_id])(())

    def _call(self, device: IreeDevice) -> Call:
        call = self._calls.get(device)
        if call is None:
            with device.lock:
                call = self._calls.get(device)
                if call is None:
                    call = self._calls[device] = self._make(device)
        return call

    def _synchronous(self, device: IreeDevice) -> Call:
        runtime, results, lock = self._runtime, self._results, device.lock
        context, function = runtime.load(self.vmfb, self._function, device)
        api = runtime.api
        new_list, invoke, view_type, count = api.VmVariantList, context.invoke, api.HalBufferView, len(results)

        def call(tensors: Sequence[Tensor]) -> Any:
            inputs = new_list(len(tensors))
            for tensor in tensors:
                inputs.push_ref(tensor.view(runtime))
            outputs = new_list(count)
            with lock:
                invoke(function, inputs, outputs)
            return [Tensor(device, spec, view=outputs.get_as_object(n, view_type)) for n, spec in enumerate(results)]

        return call

    def _asynchronous(self, device: IreeDevice) -> Call:
        runtime, results, lock = self._runtime, self._results, device.lock
        context, function = runtime.load(self.vmfb, self._function, device)
        api = runtime.api
        new_list, invoke, view_type, count = api.VmVariantList, context.invoke, api.HalBufferView, len(results)
        new_semaphore, fence_type = device.hal.create_semaphore, api.HalFence

        def call(tensors: Sequence[Tensor]) -> Any:
            inputs = new_list(len(tensors) + 2)
            fences = []
            for tensor in tensors:
                inputs.push_ref(tensor.view(runtime))
                if tensor.fence is not None:
                    fences.append(tensor.fence)
            done = fence_type.create_at(new_semaphore(0), 1)
            inputs.push_ref(fence_type.join(fences) if fences else fence_type(0))
            inputs.push_ref(done)
            outputs = new_list(count)
            with lock:
                invoke(function, inputs, outputs)
            values = [
                Tensor(device, spec, view=outputs.get_as_object(n, view_type), fence=done)
                for n, spec in enumerate(results)
            ]
            return Enqueued(values, done)

        return call
