"""XLA's CPU client as `jaxlib` offers it, called directly and in its fastest known way: the rival below us."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

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


def result_handler(aval: Aval, sharding: _jax.GSPMDSharding) -> _jax.ResultHandler:
    """Return the handler that turns a result into an array."""
    try:
        return _jax.array_result_handler(aval, sharding, True, True)
    except TypeError:  # from 0.12 on there is no check to skip
        return _jax.array_result_handler(aval, sharding, True)


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
        handlers = [result_handler(Aval(shape, dtype), self.sharding) for shape, dtype in results]
        return RawExecutable(executable, handlers)


class RawExecutable:
    """A loaded executable with handlers made once, which saves jaxlib asking for types at each run."""

    def __init__(self, executable: _jax.LoadedExecutable, handlers: list[_jax.ResultHandler]) -> None:
        self._execute = executable.execute_sharded
        self._handlers = handlers

    def __call__(self, *arguments: _jax.ArrayImpl) -> list[_jax.ArrayImpl]:
        return self._execute(arguments).consume_with_handlers(self._handlers)


class RawJob:
    """One of several processes with a CPU client of one device each, over jaxlib's coordination service and gloo."""

    def __init__(self, address: str, rank: int, processes: int) -> None:
        port = address.rpartition(":")[2]
        self._service = _jax.get_distributed_runtime_service(f"[::]:{port}", processes) if rank == 0 else None
        self._agent = _jax.get_distributed_runtime_client(address, rank, shutdown_on_destruction=False)
        self._agent.connect()
        self.client = _jax.get_tfrt_cpu_client(
            distributed_client=self._agent,
            node_id=rank,
            num_nodes=processes,
            num_devices=1,
            collectives=_jax.make_gloo_tcp_collectives(distributed_client=self._agent),
        )
        (self.device,) = self.client.local_devices()
        self.devices = _jax.DeviceList(tuple(self.client.devices()))
        self.sharding = _jax.GSPMDSharding(self.devices, xla_client.HloSharding.replicate())

    def call(self, code: str, argument: np.ndarray) -> Callable[[], _jax.ArrayImpl]:
        """Return the call that runs a program of one argument and one result of the same type on all processes."""
        aval = Aval(argument.shape, argument.dtype)
        options = xla_client.CompileOptions()
        options.num_replicas = options.executable_build_options.num_replicas = len(self.devices)
        options.device_assignment = xla_client.DeviceAssignment.create(
            np.array([[device.id] for device in self.client.devices()])
        )
        executable = self.client.compile_and_load(code, self.devices, options)
        own = _jax.GSPMDSharding(_jax.DeviceList((self.device,)), xla_client.HloSharding.replicate())
        semantics = xla_client.HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL
        shard = _jax.batched_device_put(aval, own, [argument], [self.device], True, True, semantics, True)
        whole = _jax.ArrayImpl(aval, self.sharding, [shard], True, True)
        handler = result_handler(aval, self.sharding)

        def run() -> _jax.ArrayImpl:
            (result,) = executable.execute_sharded([whole]).consume_with_handlers([handler])
            result.block_until_ready()
            return result

        return run

    def close(self) -> None:
        """Leave, when all processes want to."""
        self._agent.shutdown()
        if self._service is not None:
            self._service.shutdown()
