"""Named values in both directions: options of every type, attributes of every type, and what is none of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pjrt

VALUES = st.one_of(
    st.text(max_size=20).filter(lambda text: "\0" not in text),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(width=32, allow_nan=False),
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=5).map(tuple),
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None, max_examples=60
)
@given(options=st.dictionaries(st.from_regex(r"\Ax_[a-z_]{1,12}\Z"), VALUES, max_size=6))
def test_options_arrive_as_they_were_given(plugin: pjrt.Plugin, options: dict[str, Any]) -> None:
    with plugin.client(**options) as client:
        told = client.devices[0].attributes
    found = {name.removeprefix("option:"): value for name, value in told.items() if name.startswith("option:x_")}
    assert found == options
    assert {name: type(value) for name, value in found.items()} == {n: type(v) for n, v in options.items()}


def test_numbers_of_numpy_are_numbers(plugin: pjrt.Plugin) -> None:
    with plugin.client(x_a=np.int32(7), x_b=[np.int64(1), 2]) as client:
        told = client.devices[0].attributes
    assert (told["option:x_a"], told["option:x_b"]) == (7, (1, 2))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "found NoneType"),
        ({}, "found dict"),
        ([1.5], "found list"),
        (["a"], "found list"),
        (1 << 63, "must fit 64 bits"),
        ([1 << 64], "must fit 64 bits"),
        (1j, "found complex"),
    ],
)
def test_what_is_no_option(plugin: pjrt.Plugin, value: object, reason: str) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=reason) as caught:
        plugin.client(x_wrong=value)
    assert "'x_wrong'" in caught.value.message


def test_attributes_of_every_type(plugin: pjrt.Plugin) -> None:
    with plugin.client(all_attribute_types=True) as client:
        attributes = client.devices[0].description.attributes
    assert isinstance(attributes["clock_ghz"], float)
    assert isinstance(attributes["virtual"], bool)
    assert isinstance(plugin.attributes["xla_version"], int)
    assert isinstance(plugin.attributes["tiny_greeting"], str)
    assert isinstance(plugin.attributes["stablehlo_current_version"], tuple)


def test_the_options_of_a_topology(plugin: pjrt.Plugin) -> None:
    topology = plugin.topology("2x2", num_processes=2)
    assert len(topology.device_descriptions) in (4, 8)
    assert {d.process_index for d in topology.device_descriptions} == {0, 1}
    again = plugin.deserialize_topology(topology.serialize())
    assert [str(d) for d in again.device_descriptions] == [str(d) for d in topology.device_descriptions]
    assert again.fingerprint() == topology.fingerprint()
