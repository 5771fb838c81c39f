"""Replicas and partitions that a program states, and what compile options make of them."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pjrt
from pjrt import stablehlo
from pjrt.api.compile_options import Partitioning
from pjrt.stablehlo import partitioning_of, with_partitioning

BODY = """
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    return %x : tensor<8xf32>
  }
"""
MESH = '  sdy.mesh @mesh = <["x"=4]>'
INLINE = BODY.replace("%x: tensor<8xf32>", '%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<mesh<["x"=4]>, [{"x"}]>}')
IN_XLA = 'mhlo.frontend_attributes = {xla.sdy.meshes = "{mesh = #sdy.mesh<[\\22x\\22=4]>}"}, '

counts = st.integers(1, 4096)


def module(replicas: int | None, partitions: int | None, *, inside: str = "", body: str = BODY, more: str = "") -> str:
    stated = [f"mhlo.num_{name} = {n} : i32" for name, n in (("replicas", replicas), ("partitions", partitions)) if n]
    return f"module attributes {{{more}{', '.join(stated)}}} {{\n{inside}{body}}}"


@given(replicas=counts | st.none(), partitions=counts | st.none())
def test_text_and_artifacts_state_their_counts(replicas: int | None, partitions: int | None) -> None:
    text = module(replicas, partitions)
    for program in (stablehlo.read(text), stablehlo.serialize(stablehlo.read(text), "1.0.0", trusted=True)):
        assert partitioning_of(program) == Partitioning(replicas or 1, partitions or 1, False)


@given(replicas=counts, partitions=counts)
def test_hlo_states_its_counts_in_its_configuration(replicas: int, partitions: int) -> None:
    program = stablehlo.to_hlo(stablehlo.read(module(replicas, partitions)), with_config=True, trusted=True)
    assert partitioning_of(program) == Partitioning(replicas, partitions)


def test_inspecting_says_the_same() -> None:
    text = stablehlo.read(module(2, 4))
    for program in (text, stablehlo.to_hlo(text, with_config=True, trusted=True)):
        info = stablehlo.inspect(program, trusted=True)
        assert Partitioning(info.num_replicas, info.num_partitions) == partitioning_of(program)


@pytest.mark.parametrize(
    "text",
    [module(1, 4, inside=MESH), module(1, 4, body=INLINE), module(1, 4, more=IN_XLA)],
    ids=["mesh", "inline", "frontend attributes"],
)
def test_shardings_of_shardy_are_noticed(text: str) -> None:
    assert partitioning_of(stablehlo.read(text)) == Partitioning(1, 4, True)


def test_only_the_module_counts() -> None:
    comment = "// mhlo.num_partitions = 8 : i32\n"
    inner = BODY.replace("@main", "@other attributes {mhlo.num_partitions = 8 : i32}").replace("public", "private")
    for text in (comment + BODY, f"module {{{BODY}{inner}}}", comment + module(2, 3)):
        stated = partitioning_of(stablehlo.read(text))
        assert stated == (Partitioning(2, 3) if "num_replicas" in text else Partitioning())


@pytest.mark.parametrize("value", ["0 : i32", "-2 : i32", '"many"'])
def test_a_count_that_is_none_is_refused(value: str) -> None:
    program = stablehlo.read(f"module attributes {{mhlo.num_partitions = {value}}} {{{BODY}}}")
    with pytest.raises(pjrt.InvalidArgumentError, match=r"mhlo\.num_partitions of the program to be a number"):
        partitioning_of(program)


@pytest.mark.parametrize(
    "code", ["module attributes {mhlo.num_partitions = 2 : i32} {", "sdy", b"ML\xefRmhlo.num_partitions"]
)
def test_what_does_not_parse_is_left_to_whoever_compiles_it(code: str | bytes) -> None:
    assert partitioning_of(pjrt.Program.of(code)) == Partitioning()


@given(stated=st.tuples(counts, counts, st.booleans()), asked=st.tuples(counts | st.none(), counts | st.none()))
def test_options_come_before_the_program(stated: tuple[int, int, bool], asked: tuple[int | None, int | None]) -> None:
    options = pjrt.CompileOptions(num_replicas=asked[0], num_partitions=asked[1], option_overrides={"a": 1})
    made = options.completed(Partitioning(*stated))
    assert made.states_partitioning
    assert made.num_replicas == (asked[0] or stated[0])
    assert made.num_partitions == (asked[1] or stated[1])
    assert made.use_shardy_partitioner is (stated[2] and made.num_partitions > 1)
    assert made.option_overrides == {"a": 1}
    assert dataclasses.replace(options, use_shardy_partitioner=True).completed(Partitioning()).use_shardy_partitioner
    assert pjrt.CompileOptions.from_proto(made.to_proto()).partitioning == made.partitioning


def test_an_assignment_states_the_counts() -> None:
    options = pjrt.CompileOptions(device_assignment=pjrt.DeviceAssignment(((0, 1, 2),)))
    assert with_partitioning(module(2, 8), options).partitioning == Partitioning(1, 3)


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_clients_and_topologies_compile_for_what_the_program_states(device: str) -> None:
    text = module(2, 2)
    with pjrt.client(device, num_devices=4) as client:
        for executable in (client.compile(text), client.topology.compile(text)):
            assert (executable.num_replicas, executable.num_partitions) == (2, 2)
            assert executable.compile_options().partitioning == Partitioning(2, 2)
        one = client.compile(text, pjrt.CompileOptions(num_replicas=1, num_partitions=1))
        assert len(one.addressable_devices) == 1
        assert client.compile(text, pjrt.CompileOptions(num_replicas=1)).num_partitions == 2
        support = client.supports(text, pjrt.CompileOptions(num_replicas=3))
        assert (support.verdict, support.reasons[0].message) == (
            pjrt.Verdict.NO,
            "3 replicas × 2 partitions need 6 devices, there are 4",
        )


def test_a_plugin_compiles_for_what_the_program_states() -> None:
    from pjrt.capi import load_capsule

    exported = pjrt.export(lambda **options: pjrt.client("reference", **options), name="stating")
    with load_capsule(exported.capsule, "stating").client(num_devices=4) as client:
        assert client.compile(module(2, 2)).num_partitions == 2
        assert client.topology.compile(module(2, 2)).num_replicas == 2
