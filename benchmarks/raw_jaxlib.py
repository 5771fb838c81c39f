"""XLA's CPU client as `jaxlib` offers it, called directly and in its fastest known way: the rival below us."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # as jax and pjrt do: no news about devices on the standard error

from jaxlib import _jax, xla_client


class Aval:
    """The shape and dtype of a future array, as jaxlib takes them."""

    weak_type = False

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.shape = shape
        self.dtype = dtype
        self.ndim = len(shape)


class RawClient:
    """A CPU client with one device."""

    def __init__(self) -> None:
        self.client = xla_client.make_cpu_client()
        self.device = self.client.local_devices()[0]
        self.devices = _jax.DeviceList((self.device,))
        self.sharding = _jax.GSPMDSharding(self.devices, xla_client.HloSharding.replicate())

    def put(self, array: np.ndarray, *, copy: bool = True) -> _jax.ArrayImpl:
        """Put an array on the device; without `copy` the result shares the memory of a suitably aligned array."""
        semantics = xla_client.HostBufferSemantics
        return _jax.batched_device_put(
            Aval(array.shape, array.dtype),
            self.sharding,
            [array],
            [self.device],
            True,
            copy,
            semantics.IMMUTABLE_ONLY_DURING_CALL if copy else semantics.ZERO_COPY,
            True,
        )

    def compile(self, code: bytes | str, results: Sequence[tuple[tuple[int, ...], np.dtype]]) -> RawExecutable:
        """Compile with default options; `results` are the shapes and dtypes of what the program returns."""
        executable = self.client.compile_and_load(code, self.devices, xla_client.CompileOptions())
        handlers = [
            _jax.array_result_handler(Aval(shape, dtype), self.sharding, True, True) for shape, dtype in results
        ]
        return RawExecutable(executable, handlers)


class RawExecutable:
    """A loaded executable with handlers made once, which saves jaxlib asking for types at each run."""

    def __init__(self, executable: _jax.LoadedExecutable, handlers: list[_jax.ResultHandler]) -> None:
        self._execute = executable.execute_sharded
        self._handlers = handlers

    def __call__(self, *arguments: _jax.ArrayImpl) -> list[_jax.ArrayImpl]:
        return self._execute(arguments).consume_with_handlers(self._handlers)
