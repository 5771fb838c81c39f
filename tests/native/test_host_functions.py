"""Functions of the framework's process that programs call, in a worker and on a driver in C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pjrt
from pjrt import native
from pjrt.api.client import Client
from pjrt.api.element_type import ElementType

CALL = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
  %0 = stablehlo.custom_call @{} (%x) {{api_version = 4 : i32{}}} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}}"""
X = np.arange(4, dtype=np.float32)


def call(target: str, attributes: str = "") -> str:
    return CALL.format(target, f", backend_config = {{{attributes}}}" if attributes else "")


@pytest.fixture(scope="module", params=["reference", "cpu"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = {
        "reference": "pjrt.devices.reference.plugin:ReferencePlugin",
        "cpu": "pjrt.devices.xla.plugin:XlaPlugin",
    }[request.param]
    return native.write_library(tmp_path_factory.mktemp("worker") / "library.so", spec, driver="worker", name="worker")


@pytest.fixture(scope="module")
def client(library: Path) -> Any:
    with pjrt.load_plugin(library).client() as made:
        yield made


def run(client: Client, program: str, *arguments: Any) -> Any:
    (result,) = client.compile(program)(*arguments)
    return np.asarray(result)


def test_operands_results_and_attributes(client: Client) -> None:
    seen: dict[str, Any] = {}

    def handle(x: Any, result: Any, **attributes: Any) -> None:
        assert not x.flags.writeable
        seen.update(attributes)
        result[...] = x * attributes["factor"]

    client.register_ffi_handler("scaled", handle)
    text = 'factor = 3 : i64, name = "text", flag = true, sizes = array<i64: 1, 2>, inner = {a = 0.5 : f64, b = "c"}'
    np.testing.assert_array_equal(run(client, call("scaled", text), X), X * 3)
    np.testing.assert_array_equal(seen.pop("sizes"), [1, 2])
    assert seen == {"factor": 3, "name": "text", "flag": True, "inner": {"a": 0.5, "b": "c"}}


NO_PROGRAM_HAS = ("INVALID", "TOKEN", "S1", "U1")
TYPES = [each for each in ElementType if each.name not in NO_PROGRAM_HAS and each.bits != 6]


@pytest.mark.full
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_all_types_and_shapes(client: Client, data: st.DataObject) -> None:
    """The function gets what the program has, and the program what the function writes."""
    element_type = data.draw(st.sampled_from(TYPES))
    shape = tuple(data.draw(st.lists(st.integers(0, 4), max_size=3)))
    name = f"same_{element_type.name}_{'_'.join(map(str, shape))}"
    type_ = f"tensor<{''.join(f'{size}x' for size in shape)}{element_type.mlir}>"
    bits = np.random.default_rng(3).integers(0, 2 if element_type is ElementType.PRED else 256, 64 * 16, np.uint8)
    dtype = element_type.dtype
    values = bits[: int(np.prod(shape)) * dtype.itemsize]
    if element_type.bits < 8:
        values = values & np.uint8((1 << element_type.bits) - 1)
        if element_type.name[0] == "S":
            sign = np.uint8(1 << (element_type.bits - 1))
            values = (values ^ sign) - sign
    x = values.view(dtype).reshape(shape)
    seen = []

    def handle(operand: Any, result: Any) -> None:
        seen.append(operand.tobytes())
        result[...] = operand

    try:
        client.register_ffi_handler(name, handle)
    except pjrt.AlreadyExistsError:
        return  # hypothesis has tried these before
    program = f"""func.func @main(%x: {type_}) -> {type_} {{
      %0 = stablehlo.custom_call @{name}(%x) {{api_version = 4 : i32}} : ({type_}) -> {type_}
      return %0 : {type_}
    }}"""
    result = run(client, program, x)
    assert seen == [x.tobytes()] or not x.size  # XLA does not call for nothing
    assert result.tobytes() == x.tobytes()


def test_its_error_is_the_error_of_the_execution(client: Client) -> None:
    def refuse(x: Any, result: Any) -> None:
        raise pjrt.NotFoundError("there is no such thing")

    def fail(x: Any, result: Any) -> None:
        raise ValueError(f"not {x[1]}")

    client.register_ffi_handler("refuse", refuse)
    client.register_ffi_handler("fail", fail)
    with pytest.raises(pjrt.NotFoundError, match="no such thing"):
        run(client, call("refuse"), X)
    with pytest.raises(pjrt.InvalidArgumentError, match=r"not 1\.0"):
        run(client, call("fail"), X)
    with pytest.raises(pjrt.PjrtError, match="nobody_has_this"):
        run(client, call("nobody_has_this"), X)
    with pytest.raises(pjrt.AlreadyExistsError, match="refuse"):
        client.register_ffi_handler("refuse", fail)


def test_what_it_leaves_alone_is_zero(client: Client) -> None:
    def half(x: Any, result: Any) -> None:
        assert not result.any()
        result[:2] = x[2:]

    client.register_ffi_handler("half", half)
    np.testing.assert_array_equal(run(client, call("half"), X), [2, 3, 0, 0])


def test_many_megabytes(client: Client) -> None:
    client.register_ffi_handler("large", lambda x, result: np.negative(x, out=result))
    x = np.random.default_rng(1).standard_normal(1 << 20, np.float32)
    np.testing.assert_array_equal(run(client, call("large").replace("4xf32", f"{x.size}xf32"), x), -x)


@pytest.mark.parametrize("library", ["reference"], indirect=True)  # XLA computes a small program before the next one
def test_two_devices_call_at_the_same_time(library: Path) -> None:
    both = threading.Barrier(2)

    def meet(x: Any, result: Any) -> None:
        both.wait(60)
        result[...] = x + 1

    with pjrt.load_plugin(library).client(num_devices=2) as client:
        client.register_ffi_handler("meet", meet)
        executables = [client.compile(call("meet"), pjrt.CompileOptions(device_assignment=[[n]])) for n in (0, 1)]
        results = [executable(X)[0] for executable in executables]
        for result in results:
            np.testing.assert_array_equal(result, X + 1)


def test_the_worker_ends_during_a_call(library: Path) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def wait(x: Any, result: Any) -> None:
        begun.set()
        assert goes_on.wait(60)

    before = _children()
    client = pjrt.load_plugin(library).client()
    (worker,) = _children() - before
    client.register_ffi_handler("wait", wait)
    (result,) = client.compile(call("wait"))(X)
    assert begun.wait(60)
    os.kill(worker, signal.SIGKILL)
    with pytest.raises(pjrt.UnavailableError):
        np.asarray(result)
    client.close()
    goes_on.set()
    assert worker not in _children()
    with pjrt.load_plugin(library).client() as another:
        another.register_ffi_handler("again", lambda x, result: np.copyto(result, x))
        np.testing.assert_array_equal(run(another, call("again"), X), X)


def _children() -> set[int]:
    return {int(pid) for each in Path("/proc/self/task").glob("*/children") for pid in each.read_text().split()}


GARBAGE = """
import os, random, socket
import numpy as np
import pjrt
from pjrt.native import questions

def make_client():
    # Each program sends calls with some bytes changed, and then makes a right one.
    noise, connection = random.Random(7), socket.socket(fileno=os.dup(4))
    attributes = {"a": 1, "b": "text", "c": np.arange(2), "d": {"e": 1}}

    def compile(program, options):
        def run(x):
            # The number is the last field, and none of an open call: an answer is nobody's.
            right = questions.encoded("fine", [x], [np.zeros_like(x)], attributes, 1 << 62)
            for _ in range(50):
                changed = bytearray(right)
                for _ in range(noise.randrange(1, 8)):
                    changed[noise.randrange(len(changed) - 10)] = noise.randrange(256)
                questions.send(connection, bytes(changed))
            result = np.zeros_like(x)
            x.flags.writeable = False
            client.ffi_handlers.find("fine").function(x, result, **attributes)
            return result

        return run

    client = pjrt.host.HostClient("garbage", compile=compile)
    return client
"""


@pytest.mark.full
def test_the_host_survives_what_a_worker_asks(tmp_path: Path) -> None:
    """Bytes of a call are changed by chance: the host refuses the call, or makes it with other values."""
    (tmp_path / "garbage.py").write_text(GARBAGE)
    script = f"""
import numpy as np, pjrt
from pjrt import native
library = native.write_library({str(tmp_path / "garbage.so")!r}, {str(tmp_path / "garbage.py") + ":make_client"!r},
                               driver="worker", name="garbage")
calls = 0
def handle(*buffers, **attributes):
    global calls
    calls += 1
    if len(buffers) == 2 and buffers[0].shape == buffers[1].shape:
        buffers[1][...] = buffers[0] + 1
with pjrt.load_plugin(library).client() as client:
    client.register_ffi_handler("fine", handle)
    executable = client.compile({call("any")!r})
    for _ in range(40):
        result = np.asarray(executable(np.zeros(4, np.float32))[0])
        assert (result == 1).all(), result
assert calls > 100, calls
print("survived")
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert ended.stdout.strip().endswith("survived"), ended.stderr[-3000:]


JAX = """
import sys
import numpy as np
from pjrt.frameworks import jax as pjrt_jax
options = {} if "chip" in sys.argv[1] else {"num_devices": 2}
pjrt_jax.register(sys.argv[1], platform="worker", **options)
import jax
import jax.numpy as jnp
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback
from jax.sharding import Mesh, NamedSharding, PartitionSpec

def same(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-6)

devices = jax.devices("worker")
x = np.arange(4, dtype=np.float32)
shape = jax.ShapeDtypeStruct((4,), np.float32)
with jax.default_device(devices[1]):
    triple = lambda a: jax.pure_callback(lambda v: np.asarray(v) * 3, shape, a)
    same(jax.jit(triple)(x), x * 3)
    seen = []
    def ordered(a):
        for n in range(3):
            io_callback(lambda v, n=n: seen.append((n, float(np.asarray(v).sum()))), None, a + n, ordered=True)
        return io_callback(lambda v: np.float32(len(seen)), jax.ShapeDtypeStruct((), np.float32), a, ordered=True)
    assert jax.jit(ordered)(x) == 3
    assert seen == [(0, 6.0), (1, 10.0), (2, 14.0)], seen
    same(jax.vmap(lambda a: jax.pure_callback(np.sin, jax.ShapeDtypeStruct((), np.float32), a,
                                              vmap_method="sequential"))(x), np.sin(x))
    loop = lambda a: jax.lax.fori_loop(0, 20, lambda _, c: triple(c) / 3 + 1, a)
    same(jax.jit(loop)(x), x + 20)
    def add_five(context, result, a):
        np.asarray(result)[...] = np.asarray(a) + 5
    same(jax.jit(buffer_callback(add_five, shape))(x), x + 5)
    jax.debug.print("printed {}", jnp.sum(x))
    jax.effects_barrier()
    def fail(v):
        raise ValueError("my own error")
    try:
        jax.jit(lambda a: jax.pure_callback(fail, shape, a))(x).block_until_ready()
        raise SystemExit("no error came")
    except jax.errors.JaxRuntimeError as error:
        assert "my own error" in str(error)
mesh = Mesh(np.array(devices), ("i",))
xs = jax.device_put(np.arange(8, dtype=np.float32), NamedSharding(mesh, PartitionSpec("i")))
same(jax.jit(jax.shard_map(triple, mesh=mesh, in_specs=PartitionSpec("i"), out_specs=PartitionSpec("i")))(xs),
     np.arange(8) * 3)
print("done")
"""


@pytest.mark.full
def test_callbacks_of_jax(library: Path) -> None:
    check_callbacks_of_jax(library)


@pytest.mark.full
def test_callbacks_of_jax_on_a_chip(chip_library: Path) -> None:
    check_callbacks_of_jax(chip_library)


def check_callbacks_of_jax(library: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", JAX, str(library)], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "printed 6.0" in ended.stdout
    assert ended.stdout.strip().endswith("done")


SOLVE = """
import jax, numpy as np
from pjrt.frameworks import jax as devices
jax.config.update("jax_platforms", devices.register("worker:cpu"))
x = np.arange(4, dtype=np.float32)
np.testing.assert_allclose(jax.numpy.linalg.solve(jax.numpy.diag(x + 1), x), x / (x + 1), rtol=1e-6)
"""


@pytest.mark.full
def test_linear_algebra_of_jaxlib() -> None:
    """JAX gives its handlers to a platform of the name cpu: they look at the size of a call's frame, and the worker has
    its own."""
    ended = subprocess.run([sys.executable, "-c", SOLVE], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-3000:]


def test_narrow_elements(client: Client) -> None:
    seen = []

    def handle(x: Any, result: Any) -> None:
        seen.append(x.astype(np.int32).tolist())
        result[...] = x[::-1]

    client.register_ffi_handler("narrow", handle)
    x = np.array([7, -8, 3, -1, 0], ml_dtypes.int4)
    result = run(client, call("narrow").replace("4xf32", "5xi4"), x)
    assert seen == [[7, -8, 3, -1, 0]]
    np.testing.assert_array_equal(result, x[::-1])
