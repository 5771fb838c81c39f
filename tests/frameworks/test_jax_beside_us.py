"""JAX works as without this package, whichever part of this package a process uses first."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

PREAMBLE = """
import sys, os, builtins, tempfile, pathlib
kept = builtins.__import__, list(sys.meta_path), list(sys.path_hooks), dict(vars(builtins))
"""

SHARDED = """
module attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<4xf32> {
    %0 = stablehlo.tanh %x : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}"""
ERF = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = chlo.erf %x : tensor<4xf32> -> tensor<4xf32>
  return %0 : tensor<4xf32>
}"""

OURS = f"""
import pjrt
import numpy as np
SHARDED, ERF = {SHARDED!r}, {ERF!r}
ones = np.ones(4, np.float32)
def shards(device):
    client = pjrt.client(device, num_devices=2)
    rows = [[client.buffer_from_host(ones[:2], device=each)] for each in client.devices]
    return [np.asarray(out) for (out,) in client.compile(SHARDED).execute(rows)]
"""

FIRST: dict[str, str] = {
    "the import": "",
    "cpu": "np.asarray(pjrt.client('cpu').compile(ERF)(ones)[0])",
    "sharded on cpu": "shards('cpu')",
    "sharded on reference": "shards('reference')",
    "a device of an author": """
pjrt.StableHloClient('mychip', kernels={}, fallback='reference').compile(ERF)(ones)
""",
    "iree": """
try:
    client = pjrt.client('iree')
except pjrt.PjrtError:
    client = pjrt.client('cpu')
client.compile(ERF)
""",
    "inspection": """
pjrt.stablehlo.inspect(pjrt.Program.of(SHARDED))
pjrt.stablehlo.parse(SHARDED)
""",
    "an export of cpu": "pjrt.export(lambda **options: pjrt.client('cpu', **options), name='mine').capsule",
    "arrays of many devices": """
client = pjrt.ifrt.Client(pjrt.client('cpu', num_devices=2))
client.compile(SHARDED)
""",
    "the command line": """
path = pathlib.Path(tempfile.mkdtemp()) / 'program.mlir'
path.write_text(ERF)
import pjrt.cli
for command in (['run', str(path), '-i', 'ones', '-d', 'cpu'], ['inspect', str(path)]):
    pjrt.cli.main(command, standalone_mode=False)
""",
    "registration with JAX": "pjrt.frameworks.jax.register(pjrt.client('reference', num_devices=2), platform='judge')",
}

JAX = """
assert builtins.__import__ is kept[0] and vars(builtins) == kept[3]
if "jax" not in sys.modules:  # JAX and its packages may add finders of their own
    assert (sys.meta_path, sys.path_hooks) == kept[1:3]
os.environ.setdefault("JAX_PLATFORMS", "cpu")
import importlib, pkgutil
import numpy as np
import jax, jax.export, jax.numpy as jnp
import jaxlib.mlir.dialects
from jax.sharding import NamedSharding, PartitionSpec as P
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
print("BEGIN")
for each in sorted(pkgutil.iter_modules(jaxlib.mlir.dialects.__path__), key=lambda each: each.name):
    if not each.name.startswith("_") and not each.ispkg:
        dialect = importlib.import_module("jaxlib.mlir.dialects." + each.name)
        print(each.name, *sorted(name for name in vars(dialect) if not name.startswith("_")))
x = jnp.arange(4.0)
mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
whole = NamedSharding(mesh, P())
across = jax.device_put(x, NamedSharding(mesh, P("x")))
def show(name, *values):
    print(name, *(np.asarray(value).tolist() for value in values))
show("solve", jnp.linalg.solve(jnp.eye(3) * 2, jnp.ones(3)))
show("eigh", jnp.linalg.eigh(jnp.eye(3))[0])
show("pmap", jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")(np.arange(2.0)))
show("jit", jax.jit(lambda x: x + 1)(x), jax.grad(lambda x: jnp.sin(x).sum())(x))
show("sharded", jax.jit(lambda x: x @ x)(across), jax.jit(lambda x: x * 2, out_shardings=whole)(across))
print(jax.jit(lambda x: x * 2)(across).sharding.spec, jax.jit(lambda x: x).lower(across).as_text())
mapped = jax.shard_map(lambda x: jax.lax.psum(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())
show("shard_map", jax.jit(mapped)(across))
exported = jax.export.export(jax.jit(lambda x: jnp.linalg.cholesky(x)))(jax.ShapeDtypeStruct((3, 3), np.float32))
show("export", jax.export.deserialize(exported.serialize()).call(jnp.eye(3)))
show("loop", jax.lax.fori_loop(0, 3, lambda i, x: x * 2, x), jax.lax.scan(lambda c, y: (c + y, c), 0.0, x)[1])
show("random", jax.random.normal(jax.random.key(0), (3,)), jax.random.permutation(jax.random.key(1), 5))
show("callback", jax.jit(lambda x: jax.pure_callback(lambda x: np.asarray(x) * 3, x, x))(x))
show("types", jnp.ones(3, jnp.bfloat16).astype(jnp.float32), jnp.ones(3, jnp.int4).astype(jnp.int32))
show("dlpack", jax.dlpack.from_dlpack(np.arange(3.0, dtype=np.float32)))
assert type(jax.dlpack.from_dlpack(np.arange(3)).aval) is jax.core.ShapedArray
print([(each.platform, each.id) for each in jax.devices()])
"""


def said(first: str) -> str:
    """Return what JAX's calls print in a new process, after some code."""
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + first + JAX], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("BEGIN")[2]


@pytest.fixture(scope="module")
def alone() -> str:
    """What JAX's calls print in a process without this package."""
    text = said("")
    assert "sdy" in text
    return text


@pytest.mark.full
@pytest.mark.parametrize("backwards", [False, True])
def test_jax_does_what_it_does_alone_after_all_parts(backwards: bool, alone: str) -> None:
    """Whatever is used first, something else comes after it; so in both orders."""
    parts = [f"if True:\n{textwrap.indent(part, '    ')}" for part in FIRST.values() if part]
    assert said(OURS + "\n".join(reversed(parts) if backwards else parts) + "\n") == alone


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(code, id=name, marks=pytest.mark.full if name == "the import" else pytest.mark.heavy)
        for name, code in FIRST.items()
    ],
)
def test_jax_does_what_it_does_alone(first: str, alone: str) -> None:
    assert said(OURS + first + "\n") == alone
