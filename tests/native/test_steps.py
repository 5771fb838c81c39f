"""Programs in steps on the example's chip: kernels of the driver, handlers of this process, and the interpreter."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import wait_until

import pjrt
from pjrt import native
from pjrt.api.client import Client
from pjrt.api.element_type import ElementType
from pjrt.conformance import Choice, check_device, values

COMPILER = Path(__file__).parents[2] / "examples" / "native_chip" / "compiler.py"
X = np.arange(4, dtype=np.float32)
F, TOKEN = "tensor<4xf32>", "!stablehlo.token"
NEW = "api_version = 4 : i32"
CALLS = """
func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {{
  %one = stablehlo.constant dense<1.0> : tensor<4xf32>
  %0 = stablehlo.add %x, %one : tensor<4xf32>
  %1 = stablehlo.custom_call @{} (%0) {{api_version = 4 : i32{}}} : (tensor<4xf32>) -> tensor<4xf32>
  %2 = stablehlo.multiply %1, %0 : tensor<4xf32>
  return %2, %x : tensor<4xf32>, tensor<4xf32>
}}"""


def calls(target: str, attributes: str = "") -> str:
    return CALLS.format(target, f", backend_config = {{{attributes}}}" if attributes else "")


def body(operations: str, results: str = "%r") -> str:
    types = ", ".join([F] * len(results.split(",")))
    return f"func.func @main(%x: {F}) -> ({types}) {{\n{operations}\n return {results} : {types}\n}}"


@pytest.fixture
def fresh(chip_library: Path) -> Iterator[Client]:
    with pjrt.load_plugin(chip_library).client() as client:
        yield client


def launches(driver: Path, device: int = 0) -> int:
    """Return how many kernels a device of the chip has taken."""
    counters = (ctypes.c_int64 * 3)()
    ctypes.CDLL(str(driver)).chip_read_counters(device, counters)
    return counters[0]


def test_a_handler_between_two_kernels(chip: Client, chip_driver: Path) -> None:
    seen: dict[str, Any] = {}

    def scale(x: Any, result: Any, **attributes: Any) -> None:
        assert not x.flags.writeable
        assert not result.any()
        seen.update(attributes)
        result[...] = x * 3

    chip.register_ffi_handler("steps.scale", scale)
    executable = chip.compile(calls("steps.scale", 'a = 3 : i64, b = "text", c = {d = 0.1 : f64}'))
    before = launches(chip_driver)
    product, same = executable(X)
    np.testing.assert_array_equal(product, 3 * (X + 1) ** 2)
    np.testing.assert_array_equal(same, X)
    assert seen == {"a": 3, "b": "text", "c": {"d": 0.1}}
    assert launches(chip_driver) - before == 3  # the last one copies the argument


def test_its_error_is_the_error_of_the_results(chip: Client) -> None:
    def refuse(x: Any, result: Any) -> None:
        raise pjrt.NotFoundError("there is no such thing")

    chip.register_ffi_handler("steps.refuse", refuse)
    results = chip.compile(calls("steps.refuse"))(X)
    for result in (*results, *chip.compile(calls("steps.refuse"))(results[0])):
        with pytest.raises(pjrt.NotFoundError, match="no such thing"):
            np.asarray(result)
    with pytest.raises(pjrt.NotFoundError, match="nobody_has_this"):
        np.asarray(chip.compile(calls("nobody_has_this"))(X)[0])


def test_nobody_is_called_with_the_results_of_a_kernel_that_failed(chip: Client) -> None:
    called = []
    chip.register_ffi_handler("steps.called", lambda x, result: called.append(x))
    failing = body(
        f" %0 = stablehlo.custom_call @chip.fail(%x) : ({F}) -> {F}\n"
        f" %r = stablehlo.custom_call @steps.called(%0) {{{NEW}}} : ({F}) -> {F}"
    )
    (failed,) = chip.compile(failing)(X)
    with pytest.raises(pjrt.PjrtError, match="told to fail"):
        np.asarray(failed)
    with pytest.raises(pjrt.PjrtError, match="told to fail"):
        np.asarray(chip.compile(calls("steps.called"))(failed)[0])
    assert not called


def test_what_the_driver_lacks_is_interpreted(chip: Client) -> None:
    """Operations, constants, types, control flow, and calls of handlers within."""
    program = f"""
    func.func private @body(%i: tensor<i32>, %x: {F}) -> {F} {{
      %0 = stablehlo.custom_call @steps.next(%x) {{{NEW}, backend_config = {{by = 0.1 : f64}}}} : ({F}) -> {F}
      return %0 : {F}
    }}
    func.func @main(%x: {F}) -> ({F}, {F}, tensor<4xi32>) {{
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %n = stablehlo.constant dense<5> : tensor<i32>
      %table = stablehlo.constant dense<[4, 3, 2, 1]> : tensor<4xi32>
      %cbrt = stablehlo.cbrt %x : {F}
      %wide = stablehlo.convert %cbrt : ({F}) -> tensor<4xf64>
      %0:2 = stablehlo.while(%i = %zero, %y = %cbrt) : tensor<i32>, {F}
        cond {{
          %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %c : tensor<i1>
        }} do {{
          %j = stablehlo.add %i, %one : tensor<i32>
          %z = func.call @body(%i, %y) : (tensor<i32>, {F}) -> {F}
          stablehlo.return %j, %z : tensor<i32>, {F}
        }}
      %narrow = stablehlo.convert %wide : (tensor<4xf64>) -> {F}
      %sum = stablehlo.add %0#1, %narrow : {F}
      return %sum, %0#1, %table : {F}, {F}, tensor<4xi32>
    }}"""
    chip.register_ffi_handler("steps.next", lambda x, result, by: np.add(x, np.float32(by), out=result))
    total, last, table = chip.compile(program)(X)
    np.testing.assert_allclose(last, np.cbrt(X) + 0.5, rtol=1e-6)
    np.testing.assert_allclose(total, 2 * np.cbrt(X) + 0.5, rtol=1e-6)
    np.testing.assert_array_equal(table, [4, 3, 2, 1])


@pytest.mark.parametrize("name", ["F6E2M3FN", "F6E3M2FN", "F4E2M1FN", "S4", "U2", "F8E3M4", "PRED"])
def test_a_handler_for_narrow_elements(chip: Client, name: str) -> None:
    """The runtime counts their bytes on the way to the function and back."""
    element_type = ElementType[name]
    x = values.mixed(element_type, (3, 5))
    chip.register_ffi_handler(f"steps.flip_{name}", lambda x, result: np.copyto(result, x[::-1]))
    type_ = f"tensor<3x5x{element_type.mlir}>"
    (result,) = chip.compile(f"""func.func @main(%x: {type_}) -> {type_} {{
      %r = stablehlo.custom_call @steps.flip_{name}(%x) {{{NEW}}} : ({type_}) -> {type_}
      return %r : {type_}
    }}""")(x)
    assert np.asarray(result).dtype == x.dtype
    np.testing.assert_array_equal(np.asarray(result).astype(np.float32), x[::-1].astype(np.float32))


def test_the_chip_passes_the_device_test(chip_library: Path) -> None:
    """Elements of less than a byte, and functions of types without infinity, which the interpreter runs."""
    filters = ("transfers of", "stablehlo.add f6E2M3FN scalar", "chlo.is_inf f4E2M1FN edge", "chlo.atanh f6E3M2FN edge")
    report = check_device(str(chip_library), choice=Choice(("operations", "behaviour"), filters))
    assert report.is_right, str(report)
    assert not report.skipped
    assert report.passed == len(values.EVERY) + 3


def test_effects_are_in_order(chip: Client) -> None:
    seen: list[float] = []
    chip.register_ffi_handler("steps.note", lambda token, x, result: seen.append(float(x[0])))
    program = f"""
    func.func @main(%t: !stablehlo.token, %x: {F}) -> (!stablehlo.token, {F}) {{
      %0 = stablehlo.custom_call @steps.note(%t, %x) {{{NEW}}} : ({TOKEN}, {F}) -> {TOKEN}
      %1 = stablehlo.add %x, %x : {F}
      %2 = stablehlo.custom_call @steps.note(%0, %1) {{{NEW}}} : ({TOKEN}, {F}) -> {TOKEN}
      return %2, %1 : !stablehlo.token, {F}
    }}"""
    executable = chip.compile(program)
    token = np.empty(0, bool)
    for _ in range(20):
        _, y = executable(token, X + 1)
    np.asarray(y)
    assert seen == [1, 2] * 20


OWN_STEPS = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("chip_compiler", {compiler!r})
chip = importlib.util.module_from_spec(spec)
spec.loader.exec_module(chip)
import pjrt
from pjrt.native import Code, HostCall, Kernel

def compile(program, options):
    twice = pjrt.stablehlo.parse(\"\"\"func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
      %0 = stablehlo.add %x, %x : tensor<4xf32>
      return %0 : tensor<4xf32>
    }}\"\"\")
    code = chip.compile_kernel(twice, options)
    kernel = lambda i, o: Kernel(code=code.code, inputs=[i], outputs=[o], scratch=code.scratch)
    value = pjrt.ShapeSpec((4,), pjrt.ElementType.F32)
    call = HostCall(target="steps.wait", inputs=[0], outputs=[3])
    return Code(steps=[call, kernel(0, 1), kernel(3, 2)], values=[value])
"""


def test_a_kernel_does_not_wait_for_the_host(tmp_path: Path, chip_driver: Path) -> None:
    compiler = tmp_path / "own_steps.py"
    compiler.write_text(OWN_STEPS.format(compiler=str(COMPILER)))
    library = native.write_library(tmp_path / "own.so", f"{compiler}:compile", driver=chip_driver)
    with pjrt.load_plugin(library).client() as client:

        def wait(x: Any, result: Any) -> None:
            wait_until(lambda: launches(chip_driver) != before, "the launch of the kernel behind the call")
            result[...] = x + 1

        client.register_ffi_handler("steps.wait", wait)
        before = launches(chip_driver)
        first, second = client.compile(body("", "%x, %x"))(X)
        np.testing.assert_array_equal(first, 2 * X)
        np.testing.assert_array_equal(second, 2 * (X + 1))


def test_two_devices_call_at_the_same_time(fresh: Client) -> None:
    both = threading.Barrier(2)

    def meet(x: Any, result: Any) -> None:
        both.wait(60)
        result[...] = x

    fresh.register_ffi_handler("steps.meet", meet)
    inner = f"""func.func @main(%x: {F}) -> {F} {{
      %c = stablehlo.constant dense<true> : tensor<i1>
      %r = "stablehlo.if"(%c) ({{
        %a = stablehlo.custom_call @steps.meet(%x) {{{NEW}}} : ({F}) -> {F}
        stablehlo.return %a : {F}
      }}, {{ stablehlo.return %x : {F} }}) : (tensor<i1>) -> {F}
      return %r : {F}
    }}"""
    for program in (calls("steps.meet"), inner):
        executables = [fresh.compile(program, pjrt.CompileOptions(device_assignment=[[n]])) for n in (0, 1)]
        results = [executable(X)[0] for executable in executables]
        for result in results:
            np.asarray(result)


def test_a_handler_may_compile_and_run(chip: Client) -> None:
    inner = chip.compile(body(f" %r = stablehlo.cbrt %x : {F}"))

    def nested(x: Any, result: Any) -> None:
        again = chip.compile(body(f" %0 = stablehlo.cbrt %x : {F}\n %r = stablehlo.add %0, %x : {F}"))
        assert again  # it runs behind this call
        result[...] = x

    chip.register_ffi_handler("steps.nested", nested)
    np.testing.assert_array_equal(chip.compile(calls("steps.nested"))(X)[0], (X + 1) ** 2)
    np.testing.assert_allclose(inner(X)[0], np.cbrt(X), rtol=1e-6)


def test_donated_arguments(chip: Client) -> None:
    text = body(f" %r = stablehlo.cbrt %x : {F}").replace(f"%x: {F}", f"%x: {F} {{tf.aliasing_output = 0 : i32}}")
    x = chip.buffer_from_host(X)
    (result,) = chip.compile(text)(x)
    assert x.is_deleted
    np.testing.assert_allclose(result, np.cbrt(X), rtol=1e-6)


def test_memory_is_given_back(fresh: Client) -> None:
    fresh.register_ffi_handler("steps.same", lambda x, result: np.copyto(result, x))
    executable = fresh.compile(calls("steps.same"))
    x = fresh.buffer_from_host(X)
    for _ in range(3):
        results = executable(x)
        np.asarray(results[0])
        del results
        used = fresh.devices[0].memory_stats().bytes_in_use
    assert used == 8 * 128 * 4


def test_calls_need_no_python_elsewhere(chip: Client, chip_driver: Path, tmp_path: Path) -> None:
    """An executable that only calls handlers runs without a compiler; one that is interpreted says what it lacks."""
    runner = native.write_library(tmp_path / "runner.so", driver=chip_driver)
    called = chip.compile(calls("steps.elsewhere")).executable.serialize()
    interpreted = chip.compile(body(f" %r = stablehlo.cbrt %x : {F}")).executable.serialize()
    with pjrt.load_plugin(runner).client() as client:
        client.register_ffi_handler("steps.elsewhere", lambda x, result: np.copyto(result, x))
        np.testing.assert_array_equal(client.deserialize(called)(X)[0], (X + 1) ** 2)
        with pytest.raises(pjrt.UnimplementedError, match="runs the host's steps"):
            np.asarray(client.deserialize(interpreted)(X)[0])


def test_the_process_of_the_host_ends(fresh: Client) -> None:
    executable = fresh.compile(body(f" %r = stablehlo.cbrt %x : {F}"))
    before = _children()
    np.asarray(executable(X)[0])
    (process,) = _children() - before
    os.kill(process, signal.SIGKILL)
    with pytest.raises(pjrt.UnavailableError, match=r"runs the host's steps .* signal 9"):
        np.asarray(executable(X)[0])
    np.testing.assert_allclose(executable(X)[0], np.cbrt(X), rtol=1e-6)


def _children() -> set[int]:
    return {int(pid) for each in Path("/proc/self/task").glob("*/children") for pid in each.read_text().split()}


def test_changed_steps(chip: Client) -> None:
    """Bytes of an executable are changed by chance, under a right checksum: each loads, or is refused."""
    serialized = chip.compile(calls("steps.changed")).executable.serialize()
    content, noise = serialized[:-5], np.random.default_rng(1)
    first = content.index(b"CHIPCODE")
    refused = 0
    for _ in range(600):
        changed = bytearray(content)
        for place in noise.integers(first - 30, len(content), 3):
            changed[place] = noise.integers(256)
        whole = bytes(changed) + serialized[-5:-4] + zlib.crc32(changed).to_bytes(4, "little")
        try:
            chip.deserialize(whole)
        except pjrt.PjrtError:
            refused += 1
    assert refused > 50


def test_what_cannot_be_divided(chip: Client) -> None:
    reduced = f"""func.func @main(%x: {F}) -> {F} {{
      %r = "stablehlo.all_reduce"(%x) <{{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}}> ({{
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          %s = stablehlo.multiply %a, %b : tensor<f32>
          stablehlo.return %s : tensor<f32>
      }}) : ({F}) -> {F}
      return %r : {F}
    }}"""
    with pytest.raises(pjrt.UnimplementedError, match="reach nobody else"):
        chip.compile(reduced, pjrt.CompileOptions(num_replicas=2))
    with pytest.raises(pjrt.InvalidArgumentError, match="code or steps"):
        native.Code()


def test_a_call_does_not_overtake_one_that_waits(chip: Client) -> None:
    seen: list[float] = []
    chip.register_ffi_handler("steps.plus", lambda x, result: np.add(x, 1, out=result))
    chip.register_ffi_handler("steps.see", lambda x: seen.append(float(x[0])))
    see = f"{{{NEW}, has_side_effect = true}} : ({F}) -> ()"
    executable = chip.compile(
        body(
            f" %r = stablehlo.custom_call @steps.plus(%x) {{{NEW}}} : ({F}) -> {F}\n"
            f" stablehlo.custom_call @steps.see(%r) {see}\n stablehlo.custom_call @steps.see(%x) {see}"
        )
    )
    np.asarray(executable(X)[0])
    assert seen == [1, 0]


@pytest.mark.parametrize("replicas", [1, 2])
def test_values_for_others_are_refused(chip: Client, replicas: int) -> None:
    """The interpreter has nobody to send them to."""
    program = f"""
    func.func @main(%x: {F}, %t: {TOKEN}) -> {TOKEN} {{
      %0 = "stablehlo.send"(%x, %t) {{
        channel_handle = #stablehlo.channel_handle<handle = 3, type = 2>, is_host_transfer = true
      }} : ({F}, {TOKEN}) -> {TOKEN}
      return %0 : {TOKEN}
    }}"""
    with pytest.raises(pjrt.UnimplementedError, match=r"no such stablehlo\.send"):
        chip.compile(program, pjrt.CompileOptions(num_replicas=replicas))


def test_annotations_of_shardings_are_no_operations(chip: Client) -> None:
    """Their meshes are not in the programs of steps."""
    constraint = f"sdy.sharding_constraint %{{}} <@mesh, [{{{{}}}}]> : {F}"
    program = f"""
    sdy.mesh @mesh = <[]>
    func.func @main(%x: {F}) -> {F} {{
      %0 = {constraint.format("x")}
      %1 = stablehlo.cbrt %0 : {F}
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %2 = "stablehlo.case"(%zero) ({{
        %3 = {constraint.format("1")}
        stablehlo.return %3 : {F}
      }}) : (tensor<i32>) -> {F}
      return %2 : {F}
    }}"""
    np.testing.assert_allclose(chip.compile(program)(X)[0], np.cbrt(X), rtol=1e-6)


def test_an_execution_ends_behind_the_effects_of_the_interpreter(chip: Client) -> None:
    """It has no results for which anybody would wait; arrays of such elements go through the interpreter."""
    seen: list[int] = []
    chip.register_ffi_handler("steps.seen", lambda x: seen.append(int(x[0])))
    program = f"""
    func.func private @see(%x: tensor<4xi4>) {{
      stablehlo.custom_call @steps.seen(%x) {{{NEW}, has_side_effect = true}} : (tensor<4xi4>) -> ()
      return
    }}
    func.func @main(%x: tensor<4xi4>) {{
      func.call @see(%x) : (tensor<4xi4>) -> ()
      return
    }}"""
    executable = chip.compile(program)
    for number in range(1, 4):
        futures: list[pjrt.Future[None]] = []
        x = np.full(4, number, pjrt.ElementType.S4.dtype)
        executable.execute([[chip.buffer_from_host(x)]], returned_futures=futures)
        futures[0].result(60)
        assert seen == list(range(1, number + 1))


def test_a_call_of_a_function_without_results_inside_of_one_with_some(chip: Client) -> None:
    """The compiler is not asked for operations without results, wherever they are."""
    seen: list[float] = []
    chip.register_ffi_handler("steps.inside", lambda x: seen.append(float(x[1])))
    program = f"""
    func.func private @see(%x: {F}) -> {F} {{
      stablehlo.custom_call @steps.inside(%x) {{{NEW}, has_side_effect = true}} : ({F}) -> ()
      %0 = stablehlo.add %x, %x : {F}
      return %0 : {F}
    }}
    func.func @main(%x: {F}) -> {F} {{
      %0 = func.call @see(%x) : ({F}) -> {F}
      return %0 : {F}
    }}"""
    np.testing.assert_array_equal(chip.compile(program)(X)[0], 2 * X)
    assert seen == [1]
