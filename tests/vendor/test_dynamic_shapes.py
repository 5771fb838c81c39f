"""Programs with dynamic shapes, compiled for TPUs that are not here."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pjrt

pytestmark = pytest.mark.vendor

EXPORT = """
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

jax.config.update("jax_num_cpu_devices", 4)
mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))


def sharded(shape, *axes):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*axes)))


def step(state, x):
    return jax.tree.map(lambda each: each * 0.5, state), jax.nn.relu(x @ state["w"])


b, = export.symbolic_shape("b", constraints=["mod(b, 2) == 0"])
arguments = {"w": sharded((256, 512), None, "model")}, sharded((b, 256), "data", None)
exported = export.export(jax.jit(step, donate_argnums=0), platforms=("cpu", "tpu"))(*arguments)
open(sys.argv[1], "wb").write(exported.serialize())
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dynamic") / "step.exported"
    environment = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": ""}
    subprocess.run([sys.executable, "-c", EXPORT, str(path)], env=environment, check=True, timeout=240)
    return path


@pytest.fixture(scope="module")
def topology() -> pjrt.TopologyDescription:
    return pjrt.topology("tpu", "v5e:2x2")


@pytest.mark.parametrize("batch", [2, 64])
def test_a_batch_of_any_size(topology: pjrt.TopologyDescription, model: Path, batch: int) -> None:
    exported = pjrt.stablehlo.read_jax_export(model)
    program = pjrt.stablehlo.select_platform(exported.program, exported.platform_index("tpu"))
    executable = topology.compile(program, shapes={"b": batch})
    assert executable.num_partitions == 4
    assert [tiles(proto) for proto in executable.parameter_shardings or ()] == [(1, 2), (2, 1)]
    assert sorted(executable.output_shapes) == sorted([(256, 256), (batch // 2, 256)])


def tiles(proto: bytes) -> Any:
    from pjrt.stablehlo.ir.sharding import Sharding

    return Sharding.from_proto(proto).tiles


def test_without_shapes_the_arguments_are_named(topology: pjrt.TopologyDescription, model: Path) -> None:
    program = pjrt.stablehlo.read_jax_export(model).program
    with pytest.raises(pjrt.InvalidArgumentError, match=r"x \[b, 256\]\); give their shapes.*\{'b': 8\}"):
        topology.compile(program)


def test_the_command_reports_the_memory_of_one_device(model: Path) -> None:
    from click.testing import CliRunner

    from pjrt.cli import main

    with contextlib.chdir(model.parent):
        done = CliRunner().invoke(main, ["compile", model.name, "-t", "tpu:v5e:2x2", "--shape", "b=64", "--json"])
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["num_partitions"] == 4
    assert facts["memory"]["argument_size_in_bytes"] == (256 * 256 + 32 * 256) * 4
    assert facts["memory"]["alias_size_in_bytes"] == 256 * 256 * 4
