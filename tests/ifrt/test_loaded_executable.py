"""Programs on global arrays: shardings that are followed, arguments of all kinds, donation, errors, replicas."""

from __future__ import annotations

import numpy as np
import pytest

import pjrt
from pjrt import ifrt

X = np.arange(96, dtype=np.float32).reshape(8, 12)
W = np.arange(48, dtype=np.float32).reshape(12, 4) / 48
PRODUCT = """
module @product attributes {mhlo.num_partitions = 8 : i32} {
  sdy.mesh @mesh = <["x"=4, "y"=2]>
  func.func @main(%x: tensor<8x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}, %w: tensor<12x4xf32>)
      -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<f32>) {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<8x12xf32>, tensor<12x4xf32>) -> tensor<8x4xf32>
    %c = stablehlo.constant dense<0.0> : tensor<f32>
    %1 = stablehlo.reduce(%0 init: %c) applies stablehlo.add across dimensions = [0, 1]
      : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
    return %0, %1 : tensor<8x4xf32>, tensor<f32>
  }
}
"""


@pytest.fixture(scope="module")
def product(client: ifrt.Client) -> ifrt.LoadedExecutable:
    return client.compile(PRODUCT)


def test_the_program_says_the_shardings(product: ifrt.LoadedExecutable, mesh: ifrt.Mesh) -> None:
    assert product.name == "product"
    assert [spec.shape for spec in product.parameter_specs] == [(8, 12), (12, 4)]
    assert product.parameter_specs[0].sharding == mesh.sharding("x", "y")
    assert [spec.shape for spec in product.output_specs] == [(8, 4), ()]
    assert product.output_specs[0].sharding == mesh.sharding("x", None)
    assert product.output_specs[1].sharding.is_fully_replicated


def test_arrays_and_numpy_arrays(client: ifrt.Client, mesh: ifrt.Mesh, product: ifrt.LoadedExecutable) -> None:
    fitting = client.make_array(X, product.parameter_specs[0].sharding)
    for x in (X, fitting, client.make_array(X, mesh.sharding()), client.make_array(X), X.tolist()):
        if isinstance(x, list):
            x = np.asarray(x, np.float32)
        result, total = product(x, W)
        assert result.sharding == mesh.sharding("x", None)
        np.testing.assert_allclose(np.asarray(result), X @ W, rtol=1e-6)
        np.testing.assert_allclose(np.asarray(total), (X @ W).sum(), rtol=1e-6)


def test_shards_of_unknown_places_are_taken_as_they_are(
    client: ifrt.Client, mesh: ifrt.Mesh, product: ifrt.LoadedExecutable
) -> None:
    """They are those of the parameter if they are on its devices and of its shapes; else nobody knows them."""
    x, w = (
        client.make_array(value, spec.sharding) for value, spec in zip((X, W), product.parameter_specs, strict=True)
    )
    unknown = ifrt.ConcreteEvenSharding(x.sharding.devices, x.shape, x.sharding.shard_shape(x.shape))
    result, _ = product(client.assemble_array_from_single_device_arrays(x.shape, unknown, x.disassemble()), w)
    np.testing.assert_allclose(np.asarray(result), X @ W, rtol=1e-6)
    reversed_devices = ifrt.ConcreteEvenSharding(x.sharding.devices[::-1], x.shape, x.sharding.shard_shape(x.shape))
    moved = client.assemble_array_from_single_device_arrays(x.shape, reversed_devices, x.disassemble()[::-1])
    with pytest.raises(pjrt.UnimplementedError, match="index domains"):
        product(moved, w)


def test_results_are_arguments_of_the_next(client: ifrt.Client) -> None:
    step = client.compile("""
    module attributes {mhlo.num_partitions = 8 : i32} {
      sdy.mesh @mesh = <["z"=8]>
      func.func @main(%x: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z"}]>, tf.aliasing_output = 0 : i32})
          -> (tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z"}]>}) {
        %0 = stablehlo.add %x, %x : tensor<16xf32>
        return %0 : tensor<16xf32>
      }
    }""")
    first = state = client.make_array(np.ones(16, np.float32), step.parameter_specs[0].sharding)
    for _ in range(5):
        (state,) = step(state)
    np.testing.assert_array_equal(np.asarray(state), np.full(16, 32, np.float32))
    assert first.is_deleted
    with pytest.raises(pjrt.FailedPreconditionError):
        step(first)


def test_execute_tells_when_it_is_done(client: ifrt.Client, product: ifrt.LoadedExecutable) -> None:
    arguments = [
        client.make_array(value, spec.sharding) for value, spec in zip((X, W), product.parameter_specs, strict=True)
    ]
    outputs, status = product.execute(arguments)
    status.result()
    assert client.get_ready_future(outputs).done()


def test_arguments_that_do_not_fit(client: ifrt.Client, product: ifrt.LoadedExecutable) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match="'product' has 2 parameters, found 1 arguments"):
        product(X)
    with pytest.raises(
        pjrt.InvalidArgumentError, match=r"argument 1 of 'product' must be f32\[12,4\] .*, found f32\[4,12\]"
    ):
        product(X, W.T)
    with pytest.raises(
        pjrt.InvalidArgumentError,
        match=r"argument 0 of 'product' must be f32\[8,12\], found .* s32\[8,12\]; convert it",
    ):
        product(X.astype(np.int32), W)


def test_too_few_devices(client: ifrt.Client) -> None:
    with pytest.raises(pjrt.PjrtError, match="16"):
        client.compile(PRODUCT.replace("num_partitions = 8", "num_partitions = 16").replace('"x"=4', '"x"=8'))


def test_one_device(client: ifrt.Client) -> None:
    tanh = client.compile("""
    func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      %0 = stablehlo.tanh %x : tensor<4xf32>
      return %0 : tensor<4xf32>
    }""")
    (result,) = tanh(X[0, :4])
    assert isinstance(result.sharding, ifrt.SingleDeviceSharding)
    np.testing.assert_allclose(np.asarray(result), np.tanh(X[0, :4]), rtol=1e-6)


def test_an_error_in_an_argument_reaches_the_results(client: ifrt.Client, product: ifrt.LoadedExecutable) -> None:
    (failed,) = client.make_error_arrays(pjrt.DataLossError("the disk is gone"), [product.parameter_specs[0]])
    result, _ = product(failed, W)
    with pytest.raises(pjrt.PjrtError, match="the disk is gone"):
        np.asarray(result)


def test_facts_of_an_executable(client: ifrt.Client, product: ifrt.LoadedExecutable) -> None:
    assert product.num_devices == 8
    assert product.addressable_devices == tuple(client.devices)
    assert product.donatable_input_indices == frozenset()
    assert product.cost_analysis()["flops"] > 0
    assert product.memory_stats().argument_size_in_bytes > 0
    assert product.fingerprint() == client.compile(PRODUCT).fingerprint()


def test_an_executable_goes_round_as_bytes(client: ifrt.Client, product: ifrt.LoadedExecutable) -> None:
    again = client.deserialize(product.serialize(), PRODUCT)
    np.testing.assert_allclose(np.asarray(again(X, W)[0]), X @ W, rtol=1e-6)
    again.delete()
    assert again.is_deleted
    with pytest.raises(pjrt.FailedPreconditionError):
        again(X, W)
    with pytest.raises(pjrt.PjrtError):
        client.deserialize(b"none", PRODUCT)


def test_replicas_have_data_of_their_own(client: ifrt.Client) -> None:
    doubled = client.compile("""
    module attributes {mhlo.num_replicas = 4 : i32} {
      func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
        %0 = stablehlo.add %x, %x : tensor<3xf32>
        return %0 : tensor<3xf32>
      }
    }""")
    (spec,) = doubled.parameter_specs
    parts = [np.full(3, number, np.float32) for number in range(4)]
    (result,) = doubled(client.make_array_from_host_buffer_shards(spec, parts))
    assert [np.asarray(shard)[0] for shard in result.disassemble()] == [0, 2, 4, 6]


REPLICAS_OF_PARTITIONS = """
module attributes {mhlo.num_replicas = 2 : i32, mhlo.num_partitions = 4 : i32} {
  sdy.mesh @mesh = <["z"=4]>
  func.func @main(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z"}]>})
      -> (tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z"}]>}) {
    %0 = stablehlo.add %x, %x : tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}"""


def test_replicas_of_partitions(client: ifrt.Client) -> None:
    """Two replicas of four partitions: the devices of the first replica come first."""
    if client.platform_name == "cpu":  # XLA's compiler ends the process over it
        with pytest.raises(pjrt.UnimplementedError, match=r"2 replicas × 4 partitions .* compile it for one replica"):
            client.compile(REPLICAS_OF_PARTITIONS)
        return
    doubled = client.compile(REPLICAS_OF_PARTITIONS)
    (spec,) = doubled.parameter_specs
    assert spec.sharding.shard_shape((8,)) == (2,)
    values = np.arange(16, dtype=np.float32).reshape(8, 2)
    (result,) = doubled(client.make_array_from_host_buffer_shards(spec, list(values)))
    np.testing.assert_array_equal([np.asarray(shard) for shard in result.disassemble()], values * 2)


def test_a_replicated_array_of_one_device_is_taken_as_it_is() -> None:
    """JAX describes an array on one device of a server so; a donated one would not be deleted if it were resharded."""
    program = """func.func @main(%x: tensor<2xf32> {tf.aliasing_output = 0 : i32}) -> tensor<2xf32> {
      %0 = stablehlo.add %x, %x : tensor<2xf32>
      return %0 : tensor<2xf32>
    }"""
    with pjrt.client("reference") as below:
        client = ifrt.Client(below)
        sharding = ifrt.HloSharding.from_proto(client.devices[:1], b"\x08\x00")
        executable = client.compile(program)
        for _ in range(2):
            array = client.make_array(np.float32([1, 2]), sharding)
            (result,) = executable(array)
            assert np.asarray(result).tolist() == [2, 4]
            assert array.is_deleted


@pytest.mark.parametrize("count", [1, 8])
def test_a_token_that_is_handed_on(client: ifrt.Client, count: int) -> None:
    """A chain of tokens begins with an empty array, which a program that does nothing with it gives back."""
    program = """func.func @main(%token: !stablehlo.token, %x: tensor<f32>) -> (!stablehlo.token, tensor<f32>) {
      return %token, %x : !stablehlo.token, tensor<f32>
    }"""
    executable = client.compile(program, pjrt.CompileOptions(num_partitions=count))
    replicated = ifrt.HloSharding.from_proto(client.devices[:count], b"\x08\x00")
    token = client.make_array(np.zeros(0, bool), replicated)
    for _ in range(2):
        token, x = executable(token, client.make_array(np.float32(1), replicated))
        assert x.shape == ()
        parts = token.disassemble()
        assert [part.ready().result() for part in parts] == [None] * count
