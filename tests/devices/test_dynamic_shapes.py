"""Programs with dynamic shapes on every kind of device: compiled for given shapes, or refused with advice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pjrt
from pjrt import capi, ifrt
from pjrt.host import Compiled
from pjrt.stablehlo import ParsedProgram

SCALED = """
func.func @main(%x: tensor<?x3xf32> loc("x"), %y: tensor<f32>) -> (tensor<?x3xf32>, tensor<3xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %size = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x3xf32>) -> tensor<i32>
  %rows = stablehlo.reshape %size : (tensor<i32>) -> tensor<1xi32>
  %three = stablehlo.constant dense<3> : tensor<1xi32>
  %shape = stablehlo.concatenate %rows, %three, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
  %scale = stablehlo.dynamic_broadcast_in_dim %y, %shape, dims = [] : (tensor<f32>, tensor<2xi32>) -> tensor<?x3xf32>
  %scaled = stablehlo.multiply %x, %scale : tensor<?x3xf32>
  %sum = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0]
    : (tensor<?x3xf32>, tensor<f32>) -> tensor<3xf32>
  return %scaled, %sum : tensor<?x3xf32>, tensor<3xf32>
}
"""


def python_device(num_devices: int = 1) -> pjrt.Client:
    """Return a client of a device in Python that runs ``SCALED`` alone."""

    def compile(_: ParsedProgram, __: pjrt.CompileOptions) -> Compiled:
        return Compiled(run=lambda x, y: [x * y, x.sum(0)])

    return pjrt.StableHloClient("python", compile=compile, num_devices=num_devices)


def exported(name: str) -> pjrt.Client:
    """Return a client of a built-in device behind the C API."""
    plugin = pjrt.export(lambda **options: pjrt.client(name, **options), name=f"dynamic-{name}")
    return capi.load_capsule(plugin.capsule).client()


CLIENTS = {
    "cpu": lambda: pjrt.client("cpu"),
    "reference": lambda: pjrt.client("reference"),
    "python": python_device,
    "exported-cpu": lambda: exported("cpu"),
    "exported-reference": lambda: exported("reference"),
}


@pytest.fixture(scope="module", params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Iterator[pjrt.Client]:
    with CLIENTS[request.param]() as client:
        yield client


def check(results: Any, x: Any, y: Any) -> None:
    scaled, total = map(np.asarray, results)
    np.testing.assert_allclose(scaled, x * y, rtol=1e-6)
    np.testing.assert_allclose(total, x.sum(0), rtol=1e-5, atol=1e-5)


@pytest.mark.full
@settings(max_examples=3, deadline=None)
@given(batch=st.integers(0, 20))
def test_compiled_for_the_shapes_of_its_arguments(client: pjrt.Client, batch: int) -> None:
    x, y = np.random.default_rng(batch).standard_normal((batch, 3)).astype(np.float32), np.float32(2)
    executable = client.compile(SCALED, shapes=[x.shape, None])
    assert list(executable.output_shapes) == [(batch, 3), (3,)]
    check(executable(x, y), x, y)


def test_compiled_for_a_topology(client: pjrt.Client) -> None:
    executable = client.topology.compile(SCALED, shapes={"x": (5, 3)})
    assert list(executable.output_shapes) == [(5, 3), (3,)]


def test_compiled_for_global_arrays(client: pjrt.Client) -> None:
    x, y = np.ones((4, 3), np.float32), np.float32(3)
    devices = ifrt.Client(client)
    executable = devices.compile(SCALED, shapes={0: x.shape})
    check(executable(devices.make_array(x), devices.make_array(y)), x, y)


def test_wrong_shapes_are_refused(client: pjrt.Client) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=r"fits argument 0 \(x\) of shape \[\?, 3\], found \[4, 4\]"):
        client.compile(SCALED, shapes={"x": (4, 4)})


def test_a_program_without_shapes_runs_or_names_what_to_give(client: pjrt.Client) -> None:
    x, y = np.ones((4, 3), np.float32), np.float32(3)
    if client.platform_name == "reference" and isinstance(client, pjrt.host.HostClient):
        check(client.compile(SCALED)(x, y), x, y)
        return
    with pytest.raises(pjrt.InvalidArgumentError) as caught:
        client.compile(SCALED)
    message = caught.value.message
    assert "x [?, 3]" in message
    assert message.count("compile(program, shapes={0: (8, 3)})") == 1


def test_a_device_without_a_function_for_shapes_is_unimplemented() -> None:
    with (
        pjrt.host.HostClient("plain", compile=lambda program, options: lambda: ()) as client,
        pytest.raises(pjrt.UnimplementedError, match=r"takes no shapes of arguments; .*option 'refine'"),
    ):
        client.compile("anything", shapes={})


@pytest.mark.full
def test_the_cache_keeps_an_executable_for_each_shape(tmp_path: Any) -> None:
    cache = pjrt.CompilationCache(tmp_path)
    with pjrt.client("cpu") as client:
        for batch in (2, 3, 2):
            x, y = np.ones((batch, 3), np.float32), np.float32(3)
            check(cache.compile(client, SCALED, shapes={0: x.shape})(x, y), x, y)
    assert (cache.hits, cache.misses) == (1, 2)
