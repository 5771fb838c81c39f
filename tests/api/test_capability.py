"""Capabilities and verdicts as values, and what a client gives that says nothing of its own."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import numpy as np
import pytest

from pjrt.api.capability import (
    ATTRIBUTE,
    Capabilities,
    Effort,
    Feature,
    Reason,
    ReasonKind,
    Support,
    Verdict,
    decide,
    only_format,
)
from pjrt.api.client import Client
from pjrt.api.element_type import ElementType
from pjrt.api.program import Program
from pjrt.api.topology import TopologyDescription
from pjrt.host import HostClient

FULL = Capabilities(
    num_devices=2,
    element_types=frozenset({ElementType.F32, ElementType.BF16}),
    memory_kinds=("device",),
    program_formats=("mlir",),
    stablehlo_minimum_version=(0, 9, 0),
    stablehlo_current_version=(1, 17, 0),
    operations={"stablehlo.add": frozenset({ElementType.F32}), "stablehlo.dot_general": None},
    native_operations=frozenset({"stablehlo.add"}),
    custom_calls=frozenset({"known"}),
    features={Feature.COLLECTIVES: True, Feature.SEND_RECV: False},
    variants={"avx2": True, "device_kind": "toy"},
)


def test_a_feature_is_there_or_lacking_or_not_known() -> None:
    assert FULL.has(Feature.COLLECTIVES) is True
    assert FULL.has(Feature.SEND_RECV) is False
    assert FULL.has(Feature.DONATION) is None


def test_what_is_said_stays_as_it_was_said() -> None:
    said = {Feature.COLLECTIVES: True}
    capabilities = Capabilities(features=said)
    said[Feature.COLLECTIVES] = False
    assert capabilities.has(Feature.COLLECTIVES)
    with pytest.raises(dataclasses.FrozenInstanceError):
        capabilities.num_devices = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        capabilities.features[Feature.COLLECTIVES] = False  # type: ignore[index]


def test_plain_values_leave_out_what_is_not_known() -> None:
    assert Capabilities().as_dict() == {}
    plain = json.loads(json.dumps(FULL.as_dict()))
    assert set(plain) == set(FULL.__dataclass_fields__)
    assert Capabilities.from_dict(plain) == FULL


def test_attributes_tell_the_versions_and_the_rest() -> None:
    versions = {"stablehlo_minimum_version": (1, 0, 0), "stablehlo_current_version": (1, 5, 0)}
    assert Capabilities.from_attributes(versions).stablehlo_current_version == (1, 5, 0)
    found = Capabilities.from_attributes({**versions, ATTRIBUTE: FULL.to_json()})
    assert found.stablehlo_minimum_version == (1, 0, 0)  # a plugin's own word comes first
    assert found.operations == FULL.operations


@pytest.mark.parametrize(
    "text", ["", "no JSON", "[]", "7", '{"element_types": 7}', '{"features": []}', '{"operations": [[1]]}']
)
def test_an_attribute_that_cannot_be_read_says_nothing(text: str) -> None:
    assert Capabilities.from_attributes({ATTRIBUTE: text}) == Capabilities()


def test_what_a_newer_package_says_is_left_out() -> None:
    plain = {
        "from_the_future": 1,
        "num_devices": 3,
        "features": {"time_travel": True, "donation": True},
        "element_types": ["F32", "F2"],
    }
    found = Capabilities.from_dict(plain)
    assert found.num_devices == 3
    assert dict(found.features) == {Feature.DONATION: True}
    assert found.element_types == {ElementType.F32}


# A client that says nothing of its own: the methods of the base class, on a device that overrides them.


@pytest.fixture
def client() -> Iterator[HostClient]:
    def compile(program: Program, options: object) -> object:
        if b"impossible" in program.code:
            raise NotImplementedError("this device does not do the impossible")
        return lambda x: x + np.float32(1)

    with HostClient("toy", compile=compile, formats=("toy",), num_devices=2) as made:
        yield made


def plain_capabilities(client: Client) -> Capabilities:
    described = Client.capabilities.fget
    assert described is not None
    found = described(client)
    assert isinstance(found, Capabilities)
    return found


def test_a_client_that_says_nothing_still_has_devices_and_memory(client: HostClient) -> None:
    found = plain_capabilities(client)
    assert (found.num_devices, found.memory_kinds) == (2, ("device", "pinned_host", "unpinned_host"))
    assert not found.features
    described = TopologyDescription.capabilities.fget
    assert described is not None
    assert described(client.topology).memory_kinds == found.memory_kinds


@pytest.mark.parametrize("plain", [True, False])
def test_a_client_that_does_not_know_programs_compiles_them(client: HostClient, plain: bool) -> None:
    ask = Client.supports if plain else HostClient.supports
    good, bad = Program(b"fine", "toy"), Program(b"impossible", "toy")
    assert ask(client, good).effort is Effort.COMPILE
    assert ask(client, good)
    refused = ask(client, bad)
    assert (refused.verdict, refused.effort) == (Verdict.NO, Effort.COMPILE)
    assert "does not do the impossible" in refused.reasons[0].message
    assert ask(client, good, effort=Effort.TYPES).verdict is Verdict.MAYBE


def test_a_format_is_known_without_compiling(client: HostClient) -> None:
    support = client.supports("func.func @main() { return }")
    assert (support.verdict, support.effort, support.reasons[0].kind) == (Verdict.NO, Effort.OPS, ReasonKind.FORMAT)
    assert "toy" in support.reasons[0].message


def test_what_a_devices_author_says_comes_with_what_the_runtime_gives() -> None:
    said = Capabilities(element_types=frozenset({ElementType.F32}), features={Feature.COLLECTIVES: False})
    with HostClient("toy", compile=lambda program, options: lambda: None, capabilities=said) as client:
        found = client.capabilities
        assert found.element_types == {ElementType.F32}
        assert found.has(Feature.COLLECTIVES) is False
        assert found.has(Feature.ASYNC_TRANSFERS) is True
        assert client.topology.capabilities == found


def test_reasons_that_rule_out_come_first_and_alone() -> None:
    no = Reason(Verdict.NO, ReasonKind.OP, "a", "no a")
    perhaps = Reason(Verdict.MAYBE, ReasonKind.TYPE, "b", "perhaps b")
    assert Support.of(Effort.TYPES, [perhaps, no]).reasons == (no, perhaps)
    assert decide(None, lambda effort: (perhaps, no), None).reasons == (no,)
    assert Support.of(Effort.TYPES, []).verdict is Verdict.YES
    open_ = decide(None, lambda effort: (perhaps,), None)
    assert (open_.verdict, open_.effort) == (Verdict.MAYBE, Effort.TYPES)
    assert [reason.kind for reason in open_.reasons] == [ReasonKind.TYPE, ReasonKind.COMPILE]


def test_only_the_format_is_looked_at() -> None:
    look = only_format(Program(b"", "mine"), Capabilities(program_formats=("mlir",)))
    assert look(Effort.OPS)[0].verdict is Verdict.NO
    assert only_format("text", Capabilities())(Effort.OPS)[0].verdict is Verdict.MAYBE
