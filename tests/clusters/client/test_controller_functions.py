"""Functions of this process as handlers of programs that run on the workers."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt.api.client import LocalHandler
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.errors import InvalidArgumentError, PjrtError
from pjrt.clusters.client.client import ClusterClient

LIMIT = 60


def calling(name: str, size: int = 4) -> str:
    return f"""func.func @main(%x: tensor<{size}xf32>) -> tensor<{size}xf32> {{
  %y = stablehlo.custom_call @{name}(%x) {{api_version = 4 : i32, backend_config = {{factor = 3 : i64}}}}
    : (tensor<{size}xf32>) -> tensor<{size}xf32>
  return %y : tensor<{size}xf32> }}"""


def run(client: ClusterClient, program: str, values: Any, device: pjrt.Device) -> Any:
    options = CompileOptions(device_assignment=DeviceAssignment(((device.id,),)))
    executable = client.compile(program, options)
    ((result,),) = executable.execute([[client.buffer_from_host(values, device=device)]])
    return result


@pytest.mark.parametrize("place", [0, 3])
@pytest.mark.parametrize("size", [4, 300_000])
def test_a_program_on_a_worker_calls_a_function_here(shared_cluster: ClusterClient, place: int, size: int) -> None:
    processes = []

    def scale(x: Any, y: Any, *, factor: int) -> None:
        processes.append(os.getpid())
        y[...] = x * factor

    name = f"scale_here_{place}_{size}"
    shared_cluster.register_ffi_handler(name, LocalHandler(scale))
    values = np.arange(size, dtype=np.float32)
    result = run(shared_cluster, calling(name, size), values, shared_cluster.devices[place])
    np.testing.assert_array_equal(np.asarray(result), values * 3)
    assert processes == [os.getpid()]


def test_an_error_of_the_function_is_that_of_the_result(shared_cluster: ClusterClient) -> None:
    def fail(*buffers: Any, factor: int) -> None:
        raise ValueError("out of paper")

    handler = LocalHandler(fail)
    for _ in range(2):  # the same handler may be registered again
        shared_cluster.register_ffi_handler("fail_here", handler)
    result = run(shared_cluster, calling("fail_here"), np.zeros(4, np.float32), shared_cluster.devices[2])
    with pytest.raises(InvalidArgumentError, match=r"ValueError: out of paper \(test_controller_functions.py"):
        np.asarray(result)


@pytest.mark.full
def test_a_function_that_raises_on_one_worker_holds_up_no_other() -> None:
    def broken(x: Any, y: Any, *, factor: int) -> None:
        if x[0] == 0:
            raise ValueError("out of paper")
        y[...] = x

    program = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      %y = stablehlo.custom_call @broken_here(%x) {api_version = 4 : i32, backend_config = {factor = 3 : i64}}
        : (tensor<4xf32>) -> tensor<4xf32>
      %z = "stablehlo.all_reduce"(%y) ({
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          %c = stablehlo.add %a, %b : tensor<f32>
          stablehlo.return %c : tensor<f32>
      }) {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>,
          channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>} : (tensor<4xf32>) -> tensor<4xf32>
      return %z : tensor<4xf32> }"""

    with pjrt.cluster(2, "cpu", num_devices=1, logs="hide", progress=False) as client:
        client.register_ffi_handler("broken_here", LocalHandler(broken))
        executable = client.compile(program, CompileOptions(num_replicas=2))

        def execute(*numbers: int) -> list[Any]:
            pairs = zip(numbers, client.devices, strict=True)
            put = client.buffer_from_host
            rows = executable.execute(
                [[put(np.full(4, number, np.float32), device=device)] for number, device in pairs]
            )
            return [row[0].to_host() for row in rows]

        assert [each.result(LIMIT)[0] for each in execute(1, 2)] == [3, 3]
        results = execute(1, 0)
        for number in (1, 0):  # the one that raised knows it first
            with pytest.raises(InvalidArgumentError, match="out of paper"):
                results[number].result(LIMIT)
        for result in execute(1, 2):  # what the first worker had sent would count as its part of this one
            with pytest.raises(InvalidArgumentError, match="process 1 has failed its part of a program"):
                result.result(LIMIT)
        for device in client.devices:
            assert np.asarray(run(client, calling("broken_here"), np.ones(4, np.float32), device)).tolist() == [1] * 4


@pytest.mark.parametrize("end", ["the client is closed", "the worker is killed"])
def test_a_function_may_outlive_the_worker_that_waits_for_it(end: str) -> None:
    begun, gate, ended = threading.Event(), threading.Event(), threading.Event()

    def wait(x: Any, y: Any, *, factor: int) -> None:
        begun.set()
        gate.wait(LIMIT)
        ended.set()

    with pjrt.cluster(1, "cpu", logs="hide", progress=False) as client:
        client.register_ffi_handler("wait_here", LocalHandler(wait))
        (pid,) = client.call_on_hosts("os:getpid")
        result = run(client, calling("wait_here"), np.zeros(4, np.float32), client.devices[0])
        ready = result.ready()
        assert begun.wait(LIMIT)
        if end == "the worker is killed":
            os.kill(pid, signal.SIGKILL)
        else:
            client.close()
        assert isinstance(ready.exception(LIMIT), PjrtError)
        gate.set()
        assert ended.wait(LIMIT)


@pytest.mark.full
def test_workers_of_a_tree_call_functions_of_the_controller() -> None:
    def double(x: Any, y: Any, *, factor: int) -> None:
        y[...] = 2 * x

    with pjrt.cluster(3, "cpu", fan_out=2, logs="hide", progress=False) as client:
        client.register_ffi_handler("double_here", LocalHandler(double))
        for device in client.devices:
            result = run(client, calling("double_here"), np.full(4, device.id, np.float32), device)
            assert np.asarray(result).tolist() == [2 * device.id] * 4
