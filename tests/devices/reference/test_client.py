"""The client: the reference device through the uniform API."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt import stablehlo
from pjrt.devices.reference.client import ReferenceClient
from pjrt.devices.reference.observers import NonFiniteError, Profile

DIVIDE = """
func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.divide %x, %y : tensor<4xf32> loc("model.py":3:1)
  return %0 : tensor<4xf32>
}
"""
ONES, ZEROS = np.ones(4, np.float32), np.zeros(4, np.float32)


@pytest.fixture(scope="module")
def client() -> Any:
    with pjrt.client("reference", num_devices=2) as made:
        yield made


def test_a_program_runs(client: Any) -> None:
    assert client.platform_name == "reference"
    assert len(client.devices) == 2
    (out,) = client.compile(DIVIDE)(ONES, ONES * 2)
    assert np.asarray(out).tolist() == [0.5] * 4


def test_it_says_which_stablehlo_it_reads(client: Any) -> None:
    newest, oldest = client.attributes["stablehlo_current_version"], client.attributes["stablehlo_minimum_version"]
    assert len(newest) == len(oldest) == 3
    assert tuple(newest) > tuple(oldest)


def test_every_encoding_of_a_program(client: Any) -> None:
    from pjrt.stablehlo import current_version, read, serialize, to_hlo

    program = read(DIVIDE)
    for encoded in (program, serialize(program, current_version()), to_hlo(program), to_hlo(program, with_config=True)):
        (out,) = client.compile(encoded)(ONES, ONES * 4)
        assert np.asarray(out).tolist() == [0.25] * 4


def test_a_damaged_program_is_an_error(client: Any) -> None:
    with pytest.raises(pjrt.PjrtError):
        client.compile("func.func @main( {")
    with pytest.raises(pjrt.InvalidArgumentError, match="expected a function main in the module, found other"):
        client.compile(DIVIDE.replace("@main", "@other"))


def test_an_unsupported_type_is_refused_when_compiling(client: Any) -> None:
    text = """func.func @main(%x: tensor<2xf80>) -> tensor<2xf80> { return %x : tensor<2xf80> }"""
    with pytest.raises(pjrt.PjrtError, match="f80"):
        client.compile(text)


def test_tuples_are_taken_apart(client: Any) -> None:
    text = """func.func @main(%t: tuple<tensor<2xf32>, tensor<i32>>) -> tuple<tensor<i32>, tensor<2xf32>> {
      %0 = stablehlo.get_tuple_element %t[0] : (tuple<tensor<2xf32>, tensor<i32>>) -> tensor<2xf32>
      %1 = stablehlo.get_tuple_element %t[1] : (tuple<tensor<2xf32>, tensor<i32>>) -> tensor<i32>
      %2 = stablehlo.tuple %1, %0 : tuple<tensor<i32>, tensor<2xf32>>
      return %2 : tuple<tensor<i32>, tensor<2xf32>> }"""
    number, pair = client.compile(text)(np.array([1, 2], np.float32), np.int32(7))
    assert (int(np.asarray(number)), np.asarray(pair).tolist()) == (7, [1, 2])


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize(
    ("stated", "body", "order"),
    [
        ("default", "%0 = stablehlo.transpose %x, dims = [2, 0, 1]", (2, 1, 0)),
        ("{2,0,1}", "%0 = stablehlo.transpose %x, dims = [2, 0, 1]", (2, 0, 1)),
        ("auto", "%0 = stablehlo.transpose %x, dims = [2, 0, 1]", (0, 2, 1)),
        ("auto", "%1 = stablehlo.abs %x : tensor<2x3x4xf32> %0 = stablehlo.transpose %1, dims = [2, 0, 1]", (0, 2, 1)),
        (
            "auto",
            "%1 = stablehlo.transpose %x, dims = [1, 0, 2] : (tensor<2x3x4xf32>) -> tensor<3x2x4xf32> "
            "%2 = stablehlo.transpose %1, dims = [1, 0, 2] : (tensor<3x2x4xf32>) -> tensor<2x3x4xf32> "
            "%0 = stablehlo.transpose %2, dims = [2, 0, 1]",
            (0, 2, 1),
        ),
    ],
)
def test_an_automatic_layout_moves_nothing(partitions: int, stated: str, body: str, order: tuple[int, ...]) -> None:
    sharding = 'mhlo.sharding = "{devices=[2,1,1]<=[2]}"' if partitions == 2 else ""
    text = f"""module attributes {{mhlo.num_partitions = {partitions} : i32}} {{
    func.func @main(%x: tensor<2x3x4xf32> {{{sharding}}}) -> (tensor<4x2x3xf32> {{mhlo.layout_mode = "{stated}"}}) {{
      {body} : (tensor<2x3x4xf32>) -> tensor<4x2x3xf32> return %0 : tensor<4x2x3xf32> }} }}"""
    with pjrt.client("reference", num_devices=partitions) as client:
        executable = client.compile(text, pjrt.CompileOptions(num_partitions=partitions))
        (layout,) = executable.output_layouts
        assert layout == pjrt.TiledLayout(order)
        x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
        if partitions == 1:
            (result,) = executable(x)
            assert np.array_equal(np.asarray(result), x.transpose(2, 0, 1))


def test_an_automatic_layout_follows_that_of_the_argument(client: Any) -> None:
    text = """func.func @main(%x: tensor<2x3xf32> {mhlo.layout_mode = "{0,1}"})
        -> (tensor<3x2xf32> {mhlo.layout_mode = "auto"}) {
      %0 = stablehlo.transpose %x, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
      return %0 : tensor<3x2xf32> }"""
    (layout,) = client.compile(text).output_layouts
    assert layout == pjrt.TiledLayout((1, 0))


def test_donation_by_the_program(client: Any) -> None:
    text = DIVIDE.replace("%x: tensor<4xf32>", "%x: tensor<4xf32> {tf.aliasing_output = 0 : i32}")
    x, y = client.buffer_from_host(ONES), client.buffer_from_host(ONES * 2)
    (out,) = client.compile(text)(x, y)
    assert np.asarray(out).tolist() == [0.5] * 4
    assert x.is_deleted
    assert not y.is_deleted
    with pytest.raises(pjrt.InvalidArgumentError, match=r"tf.aliasing_output of argument 0 .* found 'first'"):
        client.compile(text.replace("0 : i32", '"first"'))


def test_costs(client: Any) -> None:
    text = """func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
      %0 = stablehlo.exponential %x : tensor<8xf32>
      %1 = stablehlo.add %0, %x : tensor<8xf32>
      return %1 : tensor<8xf32> }"""
    costs = client.compile(text).cost_analysis()
    assert costs == {"flops": 8.0, "transcendentals": 8.0, "bytes accessed": 2 * 32 + 3 * 32}


def test_the_costs_of_a_partitioned_program_are_those_of_a_part(client: Any) -> None:
    text = """module attributes {mhlo.num_partitions = 2 : i32} {
      func.func @main(%x: tensor<8xf32> {mhlo.sharding = "{devices=[2]<=[2]}"})
          -> (tensor<8xf32> {mhlo.sharding = "{devices=[2]<=[2]}"}) {
        %0 = stablehlo.tanh %x : tensor<8xf32>
        return %0 : tensor<8xf32> } }"""
    costs = client.compile(text).cost_analysis()
    assert costs == stablehlo.cost(text).as_dict()
    assert costs["transcendentals"] == 4


def test_memory(client: Any) -> None:
    """Of a chain of four values two are alive at a time; a constant is kept, and a loop's values count inside of it."""
    text = """func.func @main(%x: tensor<256xf32>) -> tensor<256xf32> {
      %c = stablehlo.constant dense<"0xCCCC"> : tensor<256xf32>
      %0 = stablehlo.exponential %x : tensor<256xf32>
      %1 = stablehlo.add %0, %c : tensor<256xf32>
      %2 = stablehlo.tanh %1 : tensor<256xf32>
      %3 = stablehlo.negate %2 : tensor<256xf32>
      return %3 : tensor<256xf32> }""".replace("CCCC", np.arange(256, dtype=np.float32).tobytes().hex())
    stats = client.compile(text).memory_stats()
    assert (stats.argument_size_in_bytes, stats.output_size_in_bytes) == (1024, 1024)
    assert stats.generated_code_size_in_bytes == 1024
    assert stats.peak_memory_in_bytes == 3 * 1024
    assert stats.temp_size_in_bytes == 1024


def test_two_devices_run_the_same_program(client: Any) -> None:
    exe = client.compile(DIVIDE, pjrt.CompileOptions(num_replicas=2))
    rows = exe.execute(
        [
            [client.buffer_from_host(array, device=device) for array in (ONES, ONES * divisor)]
            for device, divisor in zip(client.devices, (2, 4), strict=True)
        ]
    )
    assert [np.asarray(row[0])[0] for row in rows] == [0.5, 0.25]
    assert [row[0].device for row in rows] == list(client.devices)


def test_memory_has_a_limit() -> None:
    with pjrt.client("reference", memory_limit=1000, num_devices=2) as limited:
        kept = [limited.buffer_from_host(np.zeros(200, np.float32), device=device) for device in limited.devices]
        assert [device.memory_stats().bytes_limit for device in limited.devices] == [1000, 1000]
        with pytest.raises(pjrt.ResourceExhaustedError, match="201 bytes were asked for, 200 of 1000 are free"):
            limited.buffer_from_host(np.zeros(201, np.int8))
        assert len(kept) == 2


def test_debug_nans_reaches_the_caller() -> None:
    with pjrt.client("reference", debug_nans=True) as watched:
        exe = watched.compile(DIVIDE)
        assert np.asarray(exe(ONES, ONES)[0]).tolist() == [1] * 4
        (out,) = exe(ONES, ZEROS)
        with pytest.raises(NonFiniteError, match=r"stablehlo.divide.*model.py:3:1.*0\. 0\. 0\. 0\.") as caught:
            out.to_host().result()
    assert isinstance(caught.value, FloatingPointError)


def test_trace_and_profile_see_the_steps() -> None:
    names: list[str] = []
    with pjrt.client("reference", trace=lambda step, *_: names.append(step.name), profile=True) as watched:
        watched.compile(DIVIDE)(ONES, ONES)[0].to_host().result()
        assert isinstance(watched, ReferenceClient)
        assert isinstance(watched.profile, Profile)
        assert watched.profile.by_op["stablehlo.divide"].calls == 1
    assert names == ["stablehlo.divide"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_devices": 0}, "from 1 to"),
        ({"num_devices": True}, "from 1 to"),
        ({"debug_nans": "yes"}, "True or False as the option debug_nans"),
        ({"memory_limit": 0}, "a memory_limit of at least 1 byte, found 0"),
        ({"memory_limit": "1 GB"}, "memory_limit of the device 'reference' as a number of bytes, found '1 GB'"),
        ({"trace": 3}, "a function as the option trace"),
        ({"speed": 11}, "has no option 'speed'"),
        ({"break_at": [1]}, "list of op names"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=message):
        pjrt.client("reference", **options)
