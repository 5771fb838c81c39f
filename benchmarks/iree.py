"""Time what the `iree` device adds to IREE's own runtime: a tiny program, a product, ResNet-50, and transfers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import pjrt
from benchmarks.big_models import aligned
from benchmarks.lowering import Lowered, lower
from benchmarks.models import resnet50
from benchmarks.side_by_side import Aim, Call, Report, Timing, main, take_turns, timing_table
from pjrt.devices.iree.client import IreeClient

OURS, BARE, JIT, COPY = "pjrt", "IREE's runtime alone", "jax.jit on iree", "a copy"

TINY = """
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %one = stablehlo.constant dense<1.0> : tensor<8xf32>
  %0 = stablehlo.add %x, %one : tensor<8xf32>
  return %0 : tensor<8xf32>
}"""

WHY_TINY = (
    "Beyond IREE's call there are the buffer of the result, its accounting and its future, in Python; in JAX also its "
    "own way to a plugin, which takes 5 µs on JAX's own CPU, and the C API."
)
MEGABYTES = 64


class Bare:
    """IREE's own runtime with the module that ours has compiled: what its users write, without a copy.

    Args:
        driver: the driver.
        module: the module.
        function: the name of the function.
        arguments: the arguments; they are copied to the device once.
    """

    def __init__(self, driver: str, module: bytes, function: str, arguments: Sequence[np.ndarray]) -> None:
        import iree.runtime as api

        self._api = api
        self._device = api.get_device(driver, cache=False)
        instance = api.VmInstance()
        modules = [api.create_hal_module(instance, self._device), api.VmModule.copy_buffer(instance, module)]
        self._context = api.VmContext(instance, modules)
        self._function = modules[1].lookup_function(function)
        self._is_asynchronous = driver != "local-sync"
        self._arguments = [self.put(array) for array in arguments]

    def put(self, array: np.ndarray) -> Any:
        """Copy an array to the device."""
        api = self._api
        kind = int(api.MemoryType.DEVICE_LOCAL) | int(api.MemoryType.HOST_VISIBLE)
        usage = int(api.BufferUsage.DEFAULT) | int(api.BufferUsage.MAPPING)
        code = int(api.HalElementType.FLOAT_32)
        return self._device.allocator.allocate_buffer_copy(kind, usage, self._device, array, code)

    def __call__(self) -> Any:
        """Run once and wait; return the first result."""
        api = self._api
        inputs, outputs = api.VmVariantList(len(self._arguments) + 2), api.VmVariantList(1)
        for argument in self._arguments:
            inputs.push_ref(argument)
        if not self._is_asynchronous:
            self._context.invoke(self._function, inputs, outputs)
            return outputs.get_as_object(0, api.HalBufferView)
        done = api.HalFence.create_at(self._device.create_semaphore(0), 1)
        inputs.push_ref(api.HalFence(0))
        inputs.push_ref(done)
        self._context.invoke(self._function, inputs, outputs)
        done.wait()
        return outputs.get_as_object(0, api.HalBufferView)

    def value(self) -> np.ndarray:
        """Run once, and return the first result as an array."""
        view = self()
        array: np.ndarray = view.map().asarray(list(view.shape), np.dtype(np.float32)).copy()
        return array


def module_of(executable: Any) -> bytes:
    """Return IREE's module of an executable."""
    module: bytes = executable.compiled.run.__self__.module
    return module


def contestants(client: IreeClient, driver: str, program: Any, arguments: Sequence[np.ndarray]) -> dict[str, Call]:
    """Compile a program once, and return one run of it by ours and by IREE's own runtime."""
    executable = client.compile(program)
    bare = Bare(driver, module_of(executable), "main", arguments)
    buffers = [client.buffer_from_host(aligned(array)) for array in arguments]

    def ours() -> Any:
        (result, *_) = executable.execute([buffers])[0]
        result.ready().result()
        return result

    np.testing.assert_allclose(np.asarray(ours()), bare.value(), rtol=1e-5)
    return {OURS: ours, BARE: bare}


def jitted() -> Call:
    """Return ``jax.jit`` of ``x + 1`` on ``iree``, with a wait for the result."""
    import jax

    platform = pjrt.frameworks.jax.register("iree", num_devices=1, driver="local-sync")
    function, x = jax.jit(lambda x: x + 1), jax.device_put(np.zeros(8, np.float32), jax.devices(platform)[0])
    return lambda: function(x).block_until_ready()


def product() -> Lowered:
    """Return the product of two matrices of 1024 × 1024."""
    random = np.random.default_rng(0)
    x, y = (random.standard_normal((1024, 1024)).astype(np.float32) for _ in range(2))
    return lower(lambda x, y: x @ y, x, y)


def transfers(client: IreeClient, bare: Bare) -> dict[str, dict[str, Call]]:
    """Return copies to the device and back, of 64 MiB."""
    array = aligned(np.ones(MEGABYTES << 18, np.float32))
    buffer, view = client.buffer_from_host(array), bare.put(array)
    sharing = pjrt.HostBufferSemantics.IMMUTABLE_ZERO_COPY
    return {
        "to the device": {
            OURS: lambda: client.buffer_from_host(array).ready().result(),
            BARE: lambda: bare.put(array),
            "pjrt, in place": lambda: client.buffer_from_host(array, semantics=sharing).ready().result(),
        },
        "to the host": {
            OURS: lambda: np.asarray(buffer),
            BARE: lambda: view.map().asarray([MEGABYTES << 18], np.dtype(np.float32)),
            COPY: lambda: np.array(buffer),
        },
    }


def measure(quick: bool) -> Report:
    """Compare ours with IREE's runtime on the same compiled modules."""
    report = Report(
        "IREE",
        "Modules that the device compiled, run by ours and by IREE's own Python runtime in one process, with the "
        "arguments on the device, until the result is there.",
    )
    rounds = 3 if quick else 31

    def add(title: str, calls: dict[str, Call], seconds: float = 0.05) -> dict[str, Timing]:
        timings = take_turns(calls, rounds=rounds, round_seconds=seconds)
        report.tables.append(f"**{title}**\n\n{timing_table(timings, ours=OURS)}")
        return timings

    with tempfile.TemporaryDirectory() as cache:
        for driver in ("local-sync", "local-task"):
            client = pjrt.client("iree", driver=driver, cache=cache)
            tiny = contestants(client, driver, TINY, [np.zeros(8, np.float32)])
            if driver == "local-sync":
                tiny[JIT] = jitted()
            timings = add(f"A tiny program, {driver}", tiny, 0.02)
            for name in (OURS, JIT):
                if name in timings:
                    ratio = timings[name].ratio_to(timings[BARE])
                    report.aims.append(Aim(f"tiny program, {driver}, {name}: at most 3×", ratio, 3, reason=WHY_TINY))
            large: dict[str, Callable[[], Lowered]] = {"A product of 1024³": product}
            if driver == "local-task":
                large["ResNet-50, batch 1"] = lambda: lower(resnet50.inference, resnet50.weights(), resnet50.images(1))
            for title, make in large.items():
                program = make()
                timings = add(f"{title}, {driver}", contestants(client, driver, program.code, program.arguments), 0.2)
                ratio = timings[OURS].ratio_to(timings[BARE])
                report.aims.append(Aim(f"{title}, {driver}: within 5%", ratio, 1.05))
            if driver == "local-sync":
                bare = Bare(driver, module_of(client.compile(TINY)), "main", [])
                for title, calls in transfers(client, bare).items():
                    timings = add(f"{MEGABYTES} MiB {title}", calls)
                    rival, limit = (COPY, 0.01) if COPY in timings else (BARE, 1.1)
                    ratio = timings[OURS].ratio_to(timings[rival])
                    report.aims.append(Aim(f"{title}: at most {limit}× of {rival}", ratio, limit))
            client.close()
    return report


if __name__ == "__main__":
    main(measure)
