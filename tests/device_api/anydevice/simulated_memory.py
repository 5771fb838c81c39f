"""A simulated device whose memory numpy cannot see, with the tiny format."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from typing import Any

import numpy as np

from anydevice.tiny_host import compile_tiny
from pjrt.api.compile_options import CompileOptions
from pjrt.api.device import MemorySpace
from pjrt.api.program import Program
from pjrt.api.shape_spec import ShapeSpec
from pjrt.host import MEMORY_KINDS, Compiled, HostClient, Memory, RunContext


class SimulatedMemory(Memory):
    """Addresses in memory that only this class reads and writes. It refuses addresses that are not in use."""

    kinds = MEMORY_KINDS

    def __init__(self) -> None:
        self._addresses = itertools.count(0x1000, 0x1000)
        self._lock = threading.Lock()
        self.contents: dict[int, bytes] = {}
        self.specs: dict[int, ShapeSpec] = {}

    def allocate(self, spec: ShapeSpec, space: MemorySpace) -> int:
        with self._lock:
            address = next(self._addresses)
            self.contents[address] = bytes(spec.size * spec.element_type.dtype.itemsize)
            self.specs[address] = spec
        return address

    def free(self, handle: int) -> None:
        with self._lock:
            del self.contents[handle], self.specs[handle]

    def copy_in(self, handle: int, array: Any) -> None:
        assert array.nbytes == len(self.contents[handle])
        self.contents[handle] = array.tobytes()

    def copy_out(self, handle: int, array: Any) -> None:
        array[...] = np.frombuffer(self.contents[handle], array.dtype).reshape(array.shape)

    def spec_of(self, handle: int) -> ShapeSpec | None:
        return self.specs[handle]

    def pointer(self, handle: int) -> int:
        return handle

    def read(self, handle: int) -> Any:
        spec = self.specs[handle]
        array = np.empty(spec.shape, spec.element_type.dtype)
        self.copy_out(handle, array)
        return array


class SimulatedClient(HostClient):
    """The client of the simulated device; when it is closed, no memory is in use."""

    def __init__(self, **options: Any) -> None:
        memory = SimulatedMemory()

        def compile(program: Program, compile_options: CompileOptions) -> Compiled:
            compiled = compile_tiny(program, compile_options)

            def run(context: RunContext, *handles: int) -> list[int]:
                arrays = [memory.read(handle) for handle in handles]
                for array in arrays:
                    array.flags.writeable = False
                results = [np.asarray(result) for result in compiled.run(context, *arrays)]
                taken = {output: handles[parameter] for parameter, output in compiled.aliases.items()}
                outputs = []
                for number, result in enumerate(results):
                    space = context.device.default_memory_space
                    handle = taken[number] if number in taken else memory.allocate(ShapeSpec.of(result), space)
                    memory.copy_in(handle, result)
                    outputs.append(handle)
                return outputs

            return dataclasses.replace(compiled, run=run)

        super().__init__("tiny-simulator", compile=compile, formats=["tiny"], memory=memory, **options)
