"""Programs of one device, without shardings."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

import pjrt
from pjrt import stablehlo

X = np.arange(8, dtype=np.float32)


def mesh_of_one() -> Any:
    return jax.sharding.Mesh(np.array(jax.devices("cpu")[:1]), ("a",))


def constrained(x: Any) -> Any:
    sharding = NamedSharding(mesh_of_one(), PartitionSpec("a"))
    return jnp.tanh(jax.lax.with_sharding_constraint(x * 2, sharding))


def mapped(x: Any) -> Any:
    def inner(part: Any) -> Any:
        return jax.lax.psum(jnp.sin(part), "a") + 1

    return jax.shard_map(inner, mesh=mesh_of_one(), in_specs=PartitionSpec("a"), out_specs=PartitionSpec())(x)


@pytest.mark.parametrize("function", [constrained, mapped, lambda x: jnp.sort(x)[::-1]])
@pytest.mark.parametrize("shardy", [True, False])
def test_what_is_computed_stays(function: Any, shardy: bool) -> None:
    with jax.enable_x64(False):
        before = jax.config.jax_use_shardy_partitioner
        jax.config.update("jax_use_shardy_partitioner", shardy)
        try:
            program = jax.jit(function).lower(X).as_text()
            expected = np.asarray(jax.jit(function)(X))
        finally:
            jax.config.update("jax_use_shardy_partitioner", before)
    text = stablehlo.to_text(stablehlo.plain(program))
    assert "sdy" not in text
    assert "sharding" not in text.lower()
    assert "mhlo.num_partitions" not in text
    with pjrt.client("reference") as client:
        (result,) = client.compile(text)(X)
        np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-6)


def test_donation_and_names_stay() -> None:
    program = jax.jit(lambda state, x: state + x, donate_argnums=0).lower(X, X).as_text(debug_info=True)
    info = stablehlo.signature(stablehlo.plain(program))
    assert [argument.name for argument in info.arguments] == ["state", "x"]
    assert info.arguments[0].aliases_output == 0 or info.arguments[0].is_donor


def test_a_version_makes_a_portable_artifact() -> None:
    program = jax.jit(constrained).lower(X).as_text()
    artifact = stablehlo.plain(program, "1.0.0")
    assert str(stablehlo.artifact_version(artifact)) == "1.0.0"


def test_a_program_of_several_devices_is_refused() -> None:
    mesh = AbstractMesh((2,), ("a",))
    sharding = NamedSharding(mesh, PartitionSpec("a"))
    traced = jax.jit(lambda x: x * 2, in_shardings=sharding).trace(jax.ShapeDtypeStruct((8,), np.float32))
    program = traced.lower(lowering_platforms=("cpu",)).as_text()
    with pytest.raises(pjrt.InvalidArgumentError, match=r"found one of 1 replicas × 2 partitions; .*partition"):
        stablehlo.plain(program)
    parts = stablehlo.partition(stablehlo.read(program.encode()), pjrt.CompileOptions(num_partitions=2))
    assert parts is not None
