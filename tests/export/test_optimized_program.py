"""The optimized program of an exported device: frameworks without the Shardings extension read the shardings in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt import remote, stablehlo
from pjrt.capi import load_capsule
from pjrt.stablehlo.encodings import hlo_proto, jaxlib
from pjrt.stablehlo.files.hlo_text import to_hlo_text
from pjrt.stablehlo.ir.sharding import Sharding
from pjrt.stablehlo.transforms.partitioner import as_tiles, with_shardings

SHAPES = re.compile(r"entry_computation_layout=\{(.*?)\}[,\n]")
"""The types of the parameters and results: those of the parts that one device has."""

NUM_DEVICES = 4
TYPE = "tensor<4x2xf32>"
ROWS = '{mhlo.sharding = "{devices=[4,1]<=[4]}"}'
RESULTS = {"%sum": "tensor<4xf32>", "%negated": TYPE, "%total": "tensor<f32>"}


def program(results: tuple[str, ...], *, shardy: bool = False) -> str:
    """Return a program for whose results XLA chooses the shardings."""
    types = ", ".join(RESULTS[name] for name in results)
    sharding = '{sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}' if shardy else ROWS
    mesh = f'sdy.mesh @mesh = <["x"={NUM_DEVICES}]>' if shardy else ""
    return f"""
    module @program attributes {{mhlo.num_partitions = {NUM_DEVICES} : i32, mhlo.num_replicas = 1 : i32}} {{
      {mesh}
      func.func public @main(%a: {TYPE} {sharding}, %b: tensor<f32>) -> ({types}) {{
        %zero = stablehlo.constant dense<0.0> : tensor<f32>
        %sum = stablehlo.reduce(%a init: %zero) applies stablehlo.add across dimensions = [1]
          : ({TYPE}, tensor<f32>) -> tensor<4xf32>
        %total = stablehlo.reduce(%a init: %b) applies stablehlo.add across dimensions = [0, 1]
          : ({TYPE}, tensor<f32>) -> tensor<f32>
        %negated = stablehlo.negate %a : {TYPE}
        return {", ".join(results)} {":" * bool(results)} {types}
      }}
    }}"""


def exported(make: Callable[..., pjrt.Client]) -> Any:
    return load_capsule(pjrt.export(make, name="device").capsule).client()


@pytest.fixture(scope="module")
def clients() -> Iterator[dict[str, pjrt.Client]]:
    """XLA itself, and devices that frameworks get by an export."""
    with ExitStack() as stack:
        local = stack.enter_context(pjrt.client("cpu", num_devices=NUM_DEVICES))
        server = stack.enter_context(remote.serve(local))
        makers: dict[str, Callable[..., pjrt.Client]] = {
            "cpu": lambda **options: pjrt.client("cpu", num_devices=NUM_DEVICES),
            "reference": lambda **options: pjrt.client("reference", num_devices=NUM_DEVICES),
            "remote": lambda **options: pjrt.client("remote", address=server.address),
        }
        yield {"XLA": local} | {name: stack.enter_context(exported(make)) for name, make in makers.items()}


def notes(program: pjrt.Program) -> tuple[bytes | None, list[bytes]]:
    """Return the sharding of the result and those of the parameters that XLA reads in a program."""
    jax = jaxlib.load("_jax", "test")
    classes = jax if hasattr(jax, "HloModule") else jaxlib.load("_hlo", "test")
    module = classes.HloModule.from_serialized_hlo_module_proto(stablehlo.to_hlo(program).code)
    result = module.spmd_output_sharding
    parameters = [sharding.SerializeToString() for sharding in module.spmd_parameters_shardings or ()]
    return None if result is None else result.SerializeToString(), parameters


@pytest.mark.parametrize("shardy", [False, True])
@pytest.mark.parametrize("results", [("%sum",), ("%sum", "%negated"), ("%total", "%negated", "%sum")])
@pytest.mark.parametrize("device", ["cpu", "reference", "remote"])
def test_the_shardings_are_those_of_xla(
    clients: dict[str, pjrt.Client], device: str, results: tuple[str, ...], shardy: bool
) -> None:
    options = pjrt.CompileOptions(
        num_partitions=NUM_DEVICES,
        use_spmd_partitioning=True,
        use_shardy_partitioner=shardy,
        allow_spmd_sharding_propagation_to_output=[True],
    )
    source = program(results, shardy=shardy)
    local, executable = (clients[name].compile(source, options) for name in ("XLA", device))
    optimized = executable.optimized_program()
    assert optimized.format == pjrt.ProgramFormat.HLO_WITH_CONFIG
    assert notes(optimized) == notes(local.optimized_program())
    assert notes(optimized)[0]
    of_parts, of_xla = (to_hlo_text(each.optimized_program()) for each in (executable, local))
    assert SHAPES.search(of_parts)[1] == SHAPES.search(of_xla)[1]  # type: ignore[index]
    assert list(executable.output_shardings or ()) == list(local.output_shardings or ())


@pytest.mark.parametrize("shardy", [False, True])
@pytest.mark.parametrize("device", ["XLA", "cpu", "reference", "remote"])
def test_a_program_without_results_has_the_sharding_of_the_empty_tuple(
    clients: dict[str, pjrt.Client], device: str, shardy: bool
) -> None:
    """XLA has it in the module. Executables have a sharding for each result: none."""
    executable = clients[device].compile(program((), shardy=shardy))
    note, _ = notes(executable.optimized_program())
    assert note is not None
    (element,) = hlo_proto.parse_message("OpSharding", note).tuple_shardings
    assert as_tiles(element) == b""  # replicated
    assert executable.output_shardings is not None
    assert list(executable.output_shardings) == []


@pytest.mark.parametrize("device", ["cpu", "reference", "remote"])
def test_a_program_of_one_device_has_no_shardings(clients: dict[str, pjrt.Client], device: str) -> None:
    executable = clients[device].compile(program(("%sum",)).replace(ROWS, "").replace(f"= {NUM_DEVICES} :", "= 1 :"))
    assert notes(executable.optimized_program()) == (None, [])


TUPLED = b"""
HloModule tupled
ENTRY main {
  p = (f32[4], f32[4]) parameter(0)
  a = f32[4] get-tuple-element(p), index=0
  b = f32[4] get-tuple-element(p), index=1
  ROOT r = (f32[4], f32[4]) tuple(b, a)
}
"""


def test_a_tuple_has_one_sharding_and_notes_stay() -> None:
    one, other = (Sharding.of_grid(grid, 1).to_proto() for grid in (np.arange(4), np.arange(4)[::-1]))
    plain = stablehlo.parse_hlo_text(TUPLED, trusted=True)
    noted = with_shardings(plain, [one, other], [other, one])
    result, (parameter,) = notes(noted)
    assert result is not None
    elements = [hlo_proto.parse_message("OpSharding", sharding).tuple_shardings for sharding in (parameter, result)]
    assert [list(each) for each in elements] == [[one, other], [other, one]]
    assert with_shardings(noted, [other, other], [other, other]) == noted
    assert with_shardings(noted, None, None) == noted
    assert with_shardings(plain, None, None) == stablehlo.to_hlo(plain, with_config=True)
