"""The optimized program of a server's executable: as its compiler has it, or as the text of the protocol."""

from __future__ import annotations

from typing import Any

import pytest

import pjrt
from pjrt import remote
from pjrt.remote.protocol import versions
from pjrt.stablehlo import to_text
from pjrt.stablehlo.files.hlo_text import to_hlo_text

HALVES = """module @halves attributes {mhlo.num_partitions = 2 : i32} {
  func.func @main(%x: tensor<4xf32> {mhlo.sharding = "{devices=[2]<=[2]}"})
      -> (tensor<4xf32> {mhlo.sharding = "{devices=[2]<=[2]}"}) {
    %y = stablehlo.add %x, %x : tensor<4xf32>
    return %y : tensor<4xf32> } }"""


def test_it_comes_with_what_hlo_text_leaves_out(server: Any, client: Any) -> None:
    with pjrt.client("cpu", num_devices=2) as local:
        here = local.compile(HALVES).optimized_program()
    there = client.compile(HALVES).optimized_program()
    assert there.format == here.format
    assert to_hlo_text(there) == to_hlo_text(here)
    assert b"\x02\x4a\x01\x02" in there.code  # an OpSharding of two tiles, which is no text


def test_a_server_of_another_kind_gives_text(client: Any) -> None:
    client.connection.attributes.pop(versions.BATCHES)
    text = to_hlo_text(client.compile(HALVES).optimized_program())
    assert "f32[2]" in text


@pytest.mark.parametrize("extended", [True, False])
def test_a_device_that_optimizes_nothing_gives_its_program(extended: bool) -> None:
    with (
        pjrt.client("reference") as local,
        remote.serve(local) as server,
        pjrt.client("remote", address=server.address) as client,
    ):
        if not extended:
            client.connection.attributes.pop(versions.BATCHES)  # type: ignore[attr-defined]
        executable = client.compile("func.func @main(%x: tensor<f32>) -> tensor<f32> { return %x : tensor<f32> }")
        assert "return %arg0 : tensor<f32>" in to_text(executable.optimized_program())
