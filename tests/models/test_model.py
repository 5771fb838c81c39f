"""Models: calling the program in a file."""

from __future__ import annotations

import logging
import re
import threading
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import pjrt
from pjrt import ifrt
from pjrt.api.printable import html_table

ADD = """
func.func @main(%x: tensor<3xf32> loc("x"), %y: tensor<3xf32> loc("y"))
    -> (tensor<3xf32> {jax.result_info = "result['sum']"}) {
  %0 = stablehlo.add %x, %y : tensor<3xf32>
  return %0 : tensor<3xf32>
}
"""
DYNAMIC = """
func.func @main(%x: tensor<?x2xf32> loc("x"), %w: tensor<2xf32> loc("w")) -> tensor<?x2xf32> {
  %0 = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x2xf32>) -> tensor<i32>
  %1 = stablehlo.reshape %0 : (tensor<i32>) -> tensor<1xi32>
  %2 = stablehlo.constant dense<2> : tensor<1xi32>
  %3 = stablehlo.concatenate %1, %2, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
  %4 = stablehlo.dynamic_broadcast_in_dim %w, %3, dims = [1] : (tensor<2xf32>, tensor<2xi32>) -> tensor<?x2xf32>
  %5 = stablehlo.multiply %x, %4 : tensor<?x2xf32>
  return %5 : tensor<?x2xf32>
}
"""
DONATING = """
func.func @main(%x: tensor<4xf32> {tf.aliasing_output = 0 : i32}, %y: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %y : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""
REPLICAS = """
module attributes {mhlo.num_replicas = 2 : i32} {
  func.func @main(%x: tensor<ui32>) -> tensor<ui32> {
    %0 = stablehlo.replica_id : tensor<ui32>
    %1 = stablehlo.add %x, %0 : tensor<ui32>
    return %1 : tensor<ui32>
  }
}
"""


@pytest.fixture(params=["cpu", "reference"])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_file_is_called(tmp_path: Path, device: str) -> None:
    (tmp_path / "add.mlir").write_text(ADD)
    with pjrt.load_model(tmp_path / "add.mlir", device) as model:
        (total,) = model(np.float32([1, 2, 3]), np.float32([10, 20, 30]))
        np.testing.assert_array_equal(total, [11, 22, 33])
        (again,) = model(total, np.float32([1, 1, 1]))
        np.testing.assert_array_equal(again, [12, 23, 34])
        assert [each.shapes for each in model.compilations] == [((3,), (3,))]
        assert model.file.signature.result_names() == ("result['sum']",)


def test_arguments_by_name_and_numbers_of_python() -> None:
    with pjrt.load_model(ADD, "cpu") as model:
        (total,) = model(y=[1, 2, 3], x=[1.5, 0, True])
        np.testing.assert_array_equal(total, [2.5, 2, 4])
        (total,) = model([1, 2, 3], y=np.zeros(3, np.float32))
        np.testing.assert_array_equal(total, [1, 2, 3])


def test_nested_arguments_without_a_stated_structure() -> None:
    text = """
    #x = loc("weights['a']")
    #y = loc("weights['b']")
    func.func @main(%0: tensor<f32> loc(#x), %1: tensor<f32> loc(#y)) -> tensor<f32> {
      %2 = stablehlo.subtract %0, %1 : tensor<f32>
      return %2 : tensor<f32>
    }
    """
    with pjrt.load_model(text, "cpu") as model:
        assert [each.name for each in model.parameters] == ["weights['a']", "weights['b']"]
        for (result,) in (model({"b": 1, "a": 5}), model(weights={"b": 1, "a": 5}), model(5, 1), model(b=1, a=5)):
            assert float(np.asarray(result)) == 4
        for put in (model.put({"b": 1, "a": 5}), model.put({"b": 1, "a": 5}, "weights")):
            assert isinstance(put["a"], ifrt.Array)
            assert float(np.asarray(model(put)[0])) == 4
        with pytest.raises(pjrt.InvalidArgumentError, match="expected the name of the nested argument 1"):
            model.put({"a": 1}, 1)
        with pytest.raises(pjrt.InvalidArgumentError, match="expected 2 arguments"):
            model.put([np.float32(1)] * 3)
        with pytest.raises(
            pjrt.InvalidArgumentError, match=r"expected the names of arguments \(weights\['a'\], .* found"
        ):
            model(weights={"a": 1, "c": 2})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 2, 3],), r"expected 2 arguments \(argument 0 \(x\): f32\[3\]; .*\), found 1"),
        (([1, 2, 3], [1, 2]), r"expected argument 1 \(y\): f32\[3\], found f32\[2\]"),
        ((np.zeros(3), [1, 2, 3]), r"argument 0 \(x\): f32\[3\], found f64\[3\]: convert it, .*astype.'float32'."),
        (("text", [1, 2, 3]), r"expected argument 0 \(x\): f32\[3\], found <U4\[\]"),
        ((object(), [1, 2, 3]), r"expected argument 0 \(x\): f32\[3\], found object"),
        (([1, 2, 3j], [1, 2, 3]), r"argument 0 \(x\): f32\[3\]: expected real numbers"),
        (([1, 2, [3]], [1, 2, 3]), "expected lists of equal lengths"),
    ],
)
def test_arguments_that_do_not_fit(arguments: tuple[object, ...], message: str) -> None:
    with (
        pjrt.load_model(ADD, "cpu") as model,
        pytest.raises(pjrt.InvalidArgumentError, match=message),
    ):
        model(*arguments)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"z": 1}, "expected the names of arguments .x, y., found z"),
        ({"x": [1, 2, 3]}, "expected one value for the argument x, found two"),
    ],
)
def test_names_that_do_not_match(keywords: dict[str, object], message: str) -> None:
    with pjrt.load_model(ADD, "cpu") as model, pytest.raises(pjrt.InvalidArgumentError, match=message):
        model([1, 2, 3], **keywords)


def test_each_set_of_shapes_is_compiled_once(device: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pjrt.models"), pjrt.load_model(DYNAMIC, device, shapes_kept=2) as model:
        for rows in (3, 5, 3):
            (scaled,) = model(np.ones((rows, 2), np.float32), [2, 3])
            np.testing.assert_array_equal(scaled, [[2, 3]] * rows)
        assert [each.dynamic for each in model.compilations] == [{"x": (3, 2)}, {"x": (5, 2)}]
        model(np.ones((7, 2), np.float32), [2, 3])  # now 5, the least recently used, is dropped
        model(np.ones((3, 2), np.float32), [2, 3])
        assert len(model.compilations) == 3
        model(np.ones((5, 2), np.float32), [2, 3])
        assert len(model.compilations) == 4
    assert "for x=3x2 in" in caplog.text


def test_calls_at_the_same_time_compile_once() -> None:
    with pjrt.load_model(DYNAMIC, "cpu") as model:
        barrier = threading.Barrier(8)
        sums = []

        def call() -> None:
            barrier.wait()
            (scaled,) = model(np.ones((4, 2), np.float32), [2, 3])
            sums.append(np.asarray(scaled).sum())

        threads = [threading.Thread(target=call) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sums == [20] * 8
        assert len(model.compilations) == 1


def test_a_compilation_that_fails_is_tried_again() -> None:
    text = DYNAMIC.replace("dense<2> : tensor<1xi32>", "dense<3> : tensor<1xi32>")
    with pjrt.load_model(text, "cpu") as model:
        for _ in range(2):
            with pytest.raises(pjrt.InvalidArgumentError):
                model(np.ones((4, 2), np.float32), [2, 3])
        assert not model.compilations


def test_an_array_is_donated_and_a_callers_array_is_not(device: str) -> None:
    with pjrt.load_model(DONATING, device) as model:
        x, y = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
        (first,) = model(x, y)
        (second,) = model(first, y)
        np.testing.assert_array_equal(second, [2, 3, 4, 5])
        np.testing.assert_array_equal(x, [0, 1, 2, 3])
        assert first.is_deleted
        with pytest.raises(pjrt.FailedPreconditionError):
            model(first, y)


def test_devices_are_made_for_the_program(device: str) -> None:
    with pjrt.load_model(REPLICAS, device) as model:
        executable = model.compile()
        results = model.execute([5])
        assert executable.num_devices == 2
        assert model.values(executable, results) == {"result_0_of_replica_0": 5, "result_0_of_replica_1": 6}


def test_too_few_devices() -> None:
    message = r"1 partitions need 2 devices, the client of 'cpu' has 1: give it more, with the option num_devices"
    with pytest.raises(pjrt.InvalidArgumentError, match=message):
        pjrt.load_model(REPLICAS, "cpu", num_devices=1)
    with pjrt.client("cpu") as client, pytest.raises(pjrt.InvalidArgumentError, match=message):
        pjrt.load_model(REPLICAS, client)


def test_a_client_stays_the_callers() -> None:
    with pjrt.client("cpu") as client:
        with pjrt.load_model(ADD, client) as model:
            buffer = client.buffer_from_host(np.float32([1, 2, 3]))
            (total,) = model(buffer, buffer)
            np.testing.assert_array_equal(total, [2, 4, 6])
        with pytest.raises(pjrt.FailedPreconditionError, match="the model is closed; load it again"):
            model([1, 2, 3], [1, 2, 3])
        assert client.buffer_from_host(np.float32(1)).shape == ()
        with pytest.raises(
            pjrt.InvalidArgumentError, match=r"with a device's name, found .'num_devices'. with a client"
        ):
            pjrt.load_model(ADD, client, num_devices=2)


def test_arrays_of_another_client() -> None:
    with pjrt.client("cpu") as client, pjrt.load_model(ADD, "cpu") as model:
        foreign = ifrt.Client(client).make_array(np.float32([1, 2, 3]))
        with pytest.raises(pjrt.InvalidArgumentError, match=r"copy it to the host with numpy\.asarray first"):
            model(foreign, [1, 2, 3])
        (total,) = model(client.buffer_from_host(np.float32([1, 2, 3])), [1, 2, 3])  # a buffer is copied
        np.testing.assert_array_equal(total, [2, 4, 6])


def test_no_executables_to_keep() -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match="expected to keep at least 1 executable, found 0"):
        pjrt.load_model(ADD, "cpu", shapes_kept=0)


def test_text_is_no_array() -> None:
    x = np.ones(3, np.float32)
    with (
        pjrt.load_model(ADD, "reference") as model,
        pytest.raises(pjrt.InvalidArgumentError, match="give an array of numbers"),
    ):
        model(x, "abcd")


def test_results_whose_shapes_are_known_after_a_run() -> None:
    text = """
func.func public @main(%n: tensor<i32>, %x: tensor<2xf32>) -> (tensor<?xi32>, tensor<2xf32>) {
  %s = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
  %0 = stablehlo.dynamic_iota %s, dim = 0 : (tensor<1xi32>) -> tensor<?xi32>
  return %0, %x : tensor<?xi32>, tensor<2xf32>
}"""
    with pjrt.load_model(pjrt.stablehlo.read(text), "reference") as model:
        for count in (3, 0, 5):
            numbers, same = model(count, [1, 2])
            assert numbers.shape == (count,)
            np.testing.assert_array_equal(numbers, np.arange(count))
            np.testing.assert_array_equal(same, [1, 2])
    with pjrt.client("reference") as client:
        first, second = ifrt.Client(client).compile(text).output_specs
        assert first is None
        assert second is not None


def test_what_stays_the_same_is_put_once(device: str) -> None:
    with pjrt.load_model(ADD, device) as model:
        x = np.float32([1, 2, 3])
        put = model.put(x, "x")
        assert isinstance(put, ifrt.Array)
        assert isinstance(model.put(put), ifrt.Array)
        x[:] = 0
        for number in range(3):
            np.testing.assert_array_equal(model(put, [number] * 3)[0], np.float32([1, 2, 3]) + number)
        with pytest.raises(pjrt.InvalidArgumentError, match=r"expected argument 1 \(y\): f32\[3\], found f32\[2\]"):
            model.put([1, 2], 1)
        with pytest.raises(pjrt.InvalidArgumentError, match=r"expected the names of arguments .x, y., found z"):
            model.put(x, "z")
        with pytest.raises(pjrt.InvalidArgumentError, match="one of 2 positional arguments, found 2"):
            model.put(x, 2)


def test_arguments_are_put_before_their_shapes_are_known(device: str) -> None:
    with pjrt.load_model(DYNAMIC, device) as model:
        w = model.put(np.float32([2, 3]), "w")
        for rows in (1, 4):
            np.testing.assert_array_equal(model(np.ones((rows, 2), np.float32), w)[0], [[2, 3]] * rows)
        assert len(model.compilations) == 2


def test_arguments_are_put_on_the_device_of_the_options() -> None:
    with pjrt.client("cpu", num_devices=3) as client:
        place = pjrt.DeviceAssignment(((2,),))
        for options in (pjrt.CompileOptions(device_ordinal=2), pjrt.CompileOptions(device_assignment=place)):
            with pjrt.load_model(DYNAMIC, client, compile_options=options) as model:
                w = model.put(np.float32([2, 3]), "w")
                assert list(w.sharding.devices) == [client.devices[2]]
                np.testing.assert_array_equal(model(np.ones((1, 2), np.float32), w)[0], [[2, 3]])


class TestInNotebooks:
    """What a cell of a notebook shows."""

    ADD = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {\n  return %x : tensor<4xf32>\n}"

    def texts(self, shown: Any) -> list[str]:
        html: str = shown._repr_html_()
        ElementTree.fromstring(html)  # each element is closed
        assert not re.search(r"(?<!-)color: ?#|background", html)  # the colors are the page's, light or dark
        return list(filter(None, re.sub(r"<[^>]*>", "\n", html).split("\n")))

    def test_clients_devices_and_executables(self) -> None:
        with pjrt.client("reference", num_devices=2) as client:
            facts = ["reference", "version", client.platform_version, "devices", "2 × reference", "memory"]
            assert self.texts(client)[:6] == facts
            assert self.texts(client.devices[1])[:5] == [str(client.devices[1]), "id", "1", "kind", "reference"]
            executable = client.compile(self.ADD)
            shown = self.texts(executable)
            assert shown[:4] == [executable.name, "platform", "reference", "made for"]
            assert "FLOPs" in shown or "memory needed" in shown
        assert self.texts(client) == ["reference, closed"]

    def test_comparisons_and_benchmarks(self) -> None:
        devices = ["reference", "cpu"]
        comparison = pjrt.compare(self.ADD, devices)
        assert self.texts(comparison)[0] == "cpu and reference agree"
        assert "agrees" in self.texts(comparison)
        benchmark = pjrt.bench(self.ADD, devices, "random:0", count=2, rounds=1)
        shown = self.texts(benchmark)
        assert shown[1:6] == ["device", "median", "99%", "a second", "ratio"]
        assert {*devices} <= {*shown}

    def test_names_are_text(self) -> None:
        shown = html_table("<script>", [("a<b", "\x1b[2J&"), ("left out", "")])
        assert "<script" not in shown
        assert "a&lt;b" in shown
        assert "\\x1b[2J&amp;" in shown
        assert "left out" not in shown
