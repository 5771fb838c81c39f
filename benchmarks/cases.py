"""The calls that `benchmarks.compare` times in two commits.

A case is a function that makes what it needs and returns the call to time. It uses public names only, so that it runs
on older commits, too; a commit that lacks one of the names has no time for the case.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.devices import DOUBLE, NOOP, TINY, client_of, doubling_program
from benchmarks.side_by_side import Call

CASES: dict[str, Callable[[], Call]] = {}
PYTHON = "python_noop"
_CHAIN = 200  # operations of the program whose compilation and evaluation is timed


def _case(name: str) -> Callable[[Callable[[], Call]], Callable[[], Call]]:
    def add(make: Callable[[], Call]) -> Callable[[], Call]:
        CASES[name] = make
        return make

    return add


def _executed(device: str, *, wait: bool) -> Call:
    """Return an execution of a tiny program on one device of `device`."""
    client = client_of(device)
    executable = client.compile(doubling_program(device, 4))
    x = client.buffer_from_host(np.ones(4, np.float32))
    if wait:
        return lambda: executable(x)[0].ready().result()
    return lambda: executable(x)


for _device in ("cpu", "reference", "exported-cpu", "exported-reference", TINY):
    for _wait in (False, True):
        _name = f"execute on {_device}, {'waiting' if _wait else 'returning'}"
        CASES[_name] = lambda device=_device, wait=_wait: _executed(device, wait=wait)


def _with_many_arguments(client: Any) -> tuple[Any, list[Any]]:
    """Return a program of 100 scalars, and arguments for it."""
    names = [f"%a{number}" for number in range(100)]
    parameters = ", ".join(f"{name}: tensor<f32>" for name in names)
    program = (
        f"func.func @main({parameters}) -> tensor<f32> {{\n"
        "  %s = stablehlo.add %a0, %a99 : tensor<f32>\n  return %s : tensor<f32>\n}"
    )
    return client.compile(program), [client.buffer_from_host(np.float32(1)) for _ in names]


@_case("execute with 100 arguments on cpu, returning")
def _many_arguments() -> Call:
    executable, row = _with_many_arguments(client_of("cpu"))
    return lambda: executable(*row)


@_case("execute with 100 arguments on a C plugin that does nothing, returning")
def _many_arguments_across() -> Call:
    client = client_of(NOOP)
    (executable, row), device = _with_many_arguments(client), client.devices[0]
    return lambda: executable.execute_sharded(row, device)


@functools.cache
def _exported_to_jax() -> dict[str, Any]:
    """Return JAX's devices of exported clients by name; all are registered before JAX is first used."""
    import jax

    import pjrt
    from benchmarks.export import nothing_in_python

    register = pjrt.frameworks.jax.register
    python = register(pjrt.export(nothing_in_python, name=PYTHON), experimental=False)
    names = {"cpu": register("cpu"), PYTHON: python}
    return {device: jax.devices(name)[0] for device, name in names.items()}


def _jitted(device: str, *, wait: bool) -> Call:
    """Return a tiny `jax.jit` on one exported device."""
    import jax

    place = _exported_to_jax()[device]
    function, x = jax.jit(lambda x: x + 1), jax.device_put(np.float32(2), place)
    if wait:
        return lambda: function(x).block_until_ready()
    return lambda: function(x)


for _device in ("cpu", PYTHON):
    for _wait in (False, True):
        _name = f"jax.jit on exported {_device}, {'waiting' if _wait else 'returning'}"
        CASES[_name] = lambda device=_device, wait=_wait: _jitted(device, wait=wait)


@_case("execute_sharded on cpu, returning")
def _sharded() -> Call:
    client = client_of("cpu")
    executable = client.compile(doubling_program("cpu", 4))
    x, device = client.buffer_from_host(np.ones(4, np.float32)), client.addressable_devices[0]
    return lambda: executable.execute_sharded([x], device)


@_case("4 KiB to cpu")
def _put() -> Call:
    client = client_of("cpu")
    array = np.ones(1024, np.float32)
    return lambda: client.buffer_from_host(array)


@_case("4 KiB from cpu")
def _get() -> Call:
    buffer = client_of("cpu").buffer_from_host(np.ones(1024, np.float32))
    return lambda: np.asarray(buffer)


@_case("compile a tiny program on reference")
def _compile_tiny() -> Call:
    client = client_of("reference")
    program = DOUBLE.format(size=4)
    return lambda: client.compile(program)


def _chain(count: int = _CHAIN) -> str:
    lines = [f"  %v{number + 1} = stablehlo.add %v{number}, %v0 : tensor<4xf32>" for number in range(count)]
    body = "\n".join(lines)
    return f"func.func @main(%v0: tensor<4xf32>) -> tensor<4xf32> {{\n{body}\n  return %v{count} : tensor<4xf32>\n}}"


@_case(f"compile {_CHAIN} operations on reference")
def _compile_chain() -> Call:
    client, program = client_of("reference"), _chain()
    return lambda: client.compile(program)


@_case("compile 10,000 operations on reference")
def _compile_long_chain() -> Call:
    client, program = client_of("reference"), _chain(10_000)
    return lambda: client.compile(program)


def _on_reference(body: str, x: np.ndarray) -> Call:
    """Return an execution of a program from `%x` to `%r`, both a `tensor<512x512xf32>`."""
    t = "tensor<512x512xf32>"
    client = client_of("reference")
    executable = client.compile(f"func.func @main(%x: {t}) -> {t} {{\n{body.format(t=t)}\n  return %r : {t}\n}}")
    buffer = client.buffer_from_host(x)
    return lambda: executable(buffer)[0].ready().result()


@_case("elementwise functions on reference, waiting")
def _elementwise() -> Call:
    body = """
  %a = stablehlo.tanh %x : {t}
  %b = stablehlo.remainder %a, %x : {t}
  %r = stablehlo.logistic %b : {t}"""
    return _on_reference(body, np.linspace(0.1, 9, 512 * 512, dtype=np.float32).reshape(512, 512))


@_case("sort by a comparator without keys on reference, waiting")
def _sort() -> Call:
    body = """
  %r = "stablehlo.sort"(%x) ({{
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %d = stablehlo.multiply %a, %b : tensor<f32>
      %e = stablehlo.add %a, %d : tensor<f32>
      %f = stablehlo.add %b, %d : tensor<f32>
      %c = stablehlo.compare LT, %e, %f : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
  }}) {{dimension = 1 : i64}} : ({t}) -> {t}"""
    return _on_reference(body, np.random.default_rng(0).standard_normal((512, 512), np.float32))


@_case(f"execute {_CHAIN} operations on reference, waiting")
def _execute_chain() -> Call:
    client = client_of("reference")
    executable = client.compile(_chain())
    x = client.buffer_from_host(np.ones(4, np.float32))
    return lambda: executable(x)[0].ready().result()


@_case("make a client of cpu")
def _client() -> Call:
    return lambda: client_of("cpu")


def _process(*arguments: str) -> Call:
    command = [sys.executable, *arguments]
    environment: dict[str, Any] = {**os.environ}
    return lambda: subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


@_case("process: import pjrt")
def _import() -> Call:
    return _process("-c", "import pjrt")


@_case("process: the first client of cpu")
def _first_client() -> Call:
    return _process("-c", "import pjrt; pjrt.client('cpu')")


@_case("process: the first client of the default device")
def _first_default_client() -> Call:
    return _process("-c", "import pjrt; pjrt.client()")


@_case("process: pjrt --help")
def _help() -> Call:
    return _process("-m", "pjrt", "--help")
