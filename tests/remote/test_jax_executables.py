"""Programs of stock JAX on served devices: donation, facts about executables, errors, the name of the platform."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from remote_fixtures import RunJax

import pjrt


@pytest.mark.full
def test_donation_and_facts_about_executables(served_cpu: str, run_jax: RunJax) -> None:
    source = """
def step(state, gradient):
    return jax.tree.map(lambda a, b: a - b, state, gradient)

mesh = Mesh(np.array(devices), ("x",))
update = jax.jit(step, donate_argnums=0)
state = {"w": jax.device_put(np.arange(8.0, dtype="f4"), NamedSharding(mesh, P("x")))}
state["b"] = jax.device_put(np.ones(3, "f4"), NamedSharding(mesh, P()))
gradient = jax.tree.map(jnp.ones_like, state)
for _ in range(3):
    before, state = state, update(state, gradient)
    print(jax.tree.leaves(jax.tree.map(lambda a: a.is_deleted(), (before, gradient))))
print(np.asarray(state["w"]).tolist(), np.asarray(state["b"]).tolist())
try:
    update(before, gradient)
except (RuntimeError, ValueError) as error:
    print("deleted" in str(error))

x = jnp.ones((4, 4))
compiled = jax.jit(lambda x: jnp.sin(x) @ x).lower(x).compile()
executable = compiled.runtime_executable()
print(compiled.cost_analysis()["flops"] >= 112, compiled.memory_analysis().argument_size_in_bytes)
print("HloModule" in compiled.as_text(), len(executable.fingerprint) > 0, executable.local_devices())
print(compiled.input_formats[0][0].layout.major_to_minor, compiled.output_formats.layout.major_to_minor)
result = executable.execute_sharded([x], with_tokens=True)
result.consume_token().block_until_ready()
try:
    jax.jit(lambda x: jax.ffi.ffi_call("no_such_target", x)(x))(x)
except jax.errors.JaxRuntimeError as error:
    print("no_such_target" in str(error))
"""
    assert run_jax(served_cpu, source) == [
        *["[True, True, False, False]"] * 3,
        "[-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0] [-2.0, -2.0, -2.0]",
        "True",
        "True 64",
        "True True [cpu:0]",
        "(0, 1) (0, 1)",
        "True",
    ]


@pytest.mark.full
def test_ordered_effects(served_cpu: str, run_jax: RunJax) -> None:
    """They are a chain of tokens that JAX begins with an empty array, and that a program may hand on as it came."""
    source = """
from jax._src import effects
from jax._src.interpreters import mlir
from jax.extend.core import Primitive

class Note(effects.Effect):
    __str__ = lambda self: "note"

note = Note()
for allowed in (effects.lowerable_effects, effects.ordered_effects, effects.shardable_ordered_effects):
    allowed.add_type(Note)

def lower(context):
    context.set_tokens_out(context.tokens_in)
    return []

write = Primitive("write")
write.multiple_results = True
write.def_effectful_abstract_eval(lambda: ([], {note}))
mlir.register_lowering(write, lower)

@jax.jit
def step(x):
    write.bind()
    return x + 1

for x in (jnp.zeros(4), jax.device_put(np.zeros(4, "f4"), NamedSharding(Mesh(np.array(devices), ("x",)), P("x")))):
    for _ in range(2):
        x = step(x)
    jax.effects_barrier()
    print(x)
"""
    assert run_jax(served_cpu, source) == ["[2. 2. 2. 2.]"] * 2


def test_functions_of_the_client_that_a_compiler_asks(served_cpu: str, run_jax: RunJax) -> None:
    """The program has their addresses, at which the server's process has something else."""
    source = """
from jax.experimental.custom_partitioning import custom_partitioning

@custom_partitioning
def double(x):
    return x * 2

double.def_partition(
    infer_sharding_from_operands=lambda mesh, arguments, result: arguments[0].sharding,
    partition=lambda mesh, arguments, result: (mesh, lambda x: x * 2, result.sharding, (arguments[0].sharding,)),
    sharding_rule="i -> i",
)

def inspected(x):
    jax.debug.inspect_array_sharding(x * 2, callback=print)
    return x

x = jax.device_put(np.arange(8, dtype="f4"), NamedSharding(Mesh(np.array(devices), ("x",)), P("x")))
for function in (double, inspected):
    try:
        jax.jit(function)(x)
    except jax.errors.JaxRuntimeError as error:
        print(str(error))
print((x + 1).sum())
"""
    *refused, result = run_jax(served_cpu, source)
    expected = "INVALID_ARGUMENT: expected a program that needs no Python of another process, found a call of "
    assert [line.removeprefix(expected).partition(":")[0] for line in refused] == [
        "'CustomSPMDPartitioning'",
        "'InspectSharding'",
    ]
    assert "JAX's custom_partitioning; run it with JAX in the process of that function" in refused[0]
    assert result == "36.0"


def sine(operation: Any, x: np.ndarray[Any, Any]) -> Any:
    if (x < 0).any():
        raise ValueError("the chip is on fire")
    return np.sin(x)


@pytest.mark.full
def test_devices_that_jax_does_not_know(run_jax: RunJax) -> None:
    """The error of a device arrives where a result is used, and in all results that depend on it.

    JAX has no ``eigh`` for platforms that it does not know, and no donation. For the platform ``tpu`` it lowers
    callbacks as values that a program sends: jaxlib's client takes part in that, and refuses to call the function.
    """
    source = """
print([jax.devices(name)[0].platform for name in ("proxy", "proxy1", "proxy2")])
sine = jax.jit(jnp.sin)
for x in (-1.0, 1.0, -1.0):
    result = sine(jnp.float32(x))
    for each in (result, result + 1):
        try:
            print(round(float(each.block_until_ready()), 4))
        except jax.errors.JaxRuntimeError as error:
            print(str(error).partition(" (test_jax_executables.py")[0])

with jax.default_device(jax.devices("proxy1")[0]):
    x = jnp.eye(3) * 4
    print(jnp.linalg.eigh(x)[0])
    y = jax.jit(lambda v: v + 1, donate_argnums=0)(x)
    print(x.is_deleted(), y[0])

with jax.default_device(jax.devices("proxy2")[0]):
    function = jax.jit(lambda x: jax.pure_callback(lambda a: a * 2, x, x) + 1)
    for _ in range(2):
        try:
            function(jnp.ones(3)).block_until_ready()
        except jax.errors.JaxRuntimeError as error:
            print(str(error).partition(" (in")[0])
    print(jnp.ones(2) + 1)
"""
    mine = pjrt.StableHloClient("mychip", kernels={"stablehlo.sine": sine}, fallback="reference")
    with ExitStack() as stack:
        reference = stack.enter_context(pjrt.client("reference"))
        own = stack.enter_context(pjrt.remote.serve(stack.enter_context(mine)))
        as_cpu = stack.enter_context(pjrt.remote.serve(reference, platform_name="cpu"))
        as_tpu = stack.enter_context(pjrt.remote.serve(reference, platform_name="tpu"))
        lines = run_jax(own.address, source, as_cpu.address, as_tpu.address)
    fire = "INVALID_ARGUMENT: ValueError: the chip is on fire"
    refusal = "UNIMPLEMENTED: ExecuteLoadedHostCallback is unsupported."
    assert lines == [
        "['mychip', 'cpu', 'tpu']",
        *(fire, fire, "0.8415", "1.8415", fire, fire),
        *("[4. 4. 4.]", "True [5. 1. 1.]"),
        *(refusal, refusal, "[2. 2.]"),
    ]
