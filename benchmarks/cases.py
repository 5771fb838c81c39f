"""The calls that `benchmarks.compare` times in two commits.

A case is a function that makes what it needs and returns the call to time. It uses public names only, so that it runs
on older commits, too; a commit that lacks one of the names has no time for the case.
"""

from __future__ import annotations

import atexit
import functools
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.devices import TINY, client_of, doubling_program
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
    for _wait in (False, True) if _device.endswith("cpu") else (True,):
        _name = f"execute on {_device}, {'waiting' if _wait else 'returning'}"
        CASES[_name] = lambda device=_device, wait=_wait: _executed(device, wait=wait)


@_case("execute with 100 arguments on cpu, returning")
def _many_arguments() -> Call:
    client = client_of("cpu")
    names = [f"%a{number}" for number in range(100)]
    parameters = ", ".join(f"{name}: tensor<f32>" for name in names)
    program = (
        f"func.func @main({parameters}) -> tensor<f32> {{\n"
        "  %s = stablehlo.add %a0, %a99 : tensor<f32>\n  return %s : tensor<f32>\n}"
    )
    executable, row = client.compile(program), [client.buffer_from_host(np.float32(1)) for _ in names]
    return lambda: executable(*row)


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
    for _wait in (False, True) if _device == "cpu" else (True,):
        _name = f"jax.jit on exported {_device}, {'waiting' if _wait else 'returning'}"
        CASES[_name] = lambda device=_device, wait=_wait: _jitted(device, wait=wait)


@_case("execute on cpu, numpy in and out")
def _numpy() -> Call:
    executable, x = client_of("cpu").compile(doubling_program("cpu", 4)), np.ones(4, np.float32)
    return lambda: np.asarray(executable(x)[0])


@_case("execute on 8 devices of cpu, waiting")
def _over_devices() -> Call:
    import pjrt

    client = pjrt.ifrt.Client(client_of("cpu", num_devices=8))
    sharding = pjrt.ifrt.Mesh(client.devices, {"x": 8}).sharding("x")
    x, y = "tensor<16xf32>", '{mhlo.sharding = "{devices=[8]<=[8]}"}'
    executable = client.compile(
        f"module attributes {{mhlo.num_partitions = 8 : i32}} {{ func.func @main(%x: {x} {y}) -> ({x} {y}) {{\n"
        f"  %y = stablehlo.add %x, %x : {x}\n  return %y : {x}\n}} }}"
    )
    array = client.make_array(np.ones(16, np.float32), sharding)
    return lambda: executable(array)[0].ready().result()


@_case("call a model with 100 nested weights on cpu, returning")
def _nested() -> Call:
    from benchmarks.dispatch import MODEL, with_nested_arguments

    return with_nested_arguments()[MODEL]


@_case("execute on a remote device and fetch")
def _remote() -> Call:
    server = subprocess.Popen([sys.executable, "-m", "pjrt", "serve", "cpu"], stdout=subprocess.PIPE, text=True)
    atexit.register(server.terminate)
    assert server.stdout is not None
    address = next(word for line in server.stdout for word in line.split() if word.startswith("grpc://"))
    client = client_of("remote", address=address)
    executable = client.compile(doubling_program("cpu", 4))
    x = client.buffer_from_host(np.ones(4, np.float32))
    return lambda: np.asarray(executable(x)[0])


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
    client, program = client_of("reference"), doubling_program("reference", 4)
    return lambda: client.compile(program)


def _chain() -> str:
    lines = [f"  %v{number + 1} = stablehlo.add %v{number}, %v0 : tensor<4xf32>" for number in range(_CHAIN)]
    body = "\n".join(lines)
    return f"func.func @main(%v0: tensor<4xf32>) -> tensor<4xf32> {{\n{body}\n  return %v{_CHAIN} : tensor<4xf32>\n}}"


@_case(f"compile {_CHAIN} operations on reference")
def _compile_chain() -> Call:
    client, program = client_of("reference"), _chain()
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


@_case(f"execute {_CHAIN} operations on reference, waiting")
def _execute_chain() -> Call:
    client = client_of("reference")
    executable = client.compile(_chain())
    x = client.buffer_from_host(np.ones(4, np.float32))
    return lambda: executable(x)[0].ready().result()


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


@_case("process: pjrt --help")
def _help() -> Call:
    return _process("-m", "pjrt", "--help")
