"""Topologies: devices to compile for, with or without a client."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt import plugins


def test_compile_ahead_of_time_and_load(programs: Any, client: pjrt.Client) -> None:
    topology = pjrt.topology("cpu", "2")
    assert [d.id for d in topology.device_descriptions] == [0, 1]
    compiled = topology.compile(programs.add)
    assert not isinstance(compiled, pjrt.LoadedExecutable)
    assert compiled.memory_stats().argument_size_in_bytes == 32
    x = np.arange(4, dtype=np.float32)
    (result,) = client.load(compiled)(x, x)
    assert np.asarray(result).tolist() == [0, 2, 4, 6]


def test_of_a_client(client: pjrt.Client) -> None:
    topology = client.topology
    assert (topology.platform_name, topology.platform_version) == ("cpu", client.platform_version)
    assert len(topology.device_descriptions) == 4
    assert topology.default_layout(pjrt.ElementType.F32, (2, 3)) == pjrt.TiledLayout((1, 0))
    assert list(topology.memory_space_kind_ids) == [0, 1, 2]


def test_serialization() -> None:
    plugin = plugins.load_plugin("cpu")
    topology = plugin.topology(num_devices=3)
    again = plugin.deserialize_topology(topology.serialize())
    assert len(again.device_descriptions) == 3
    assert again.fingerprint() == topology.fingerprint() != plugin.topology("4").fingerprint()
    with pytest.raises(pjrt.InvalidArgumentError, match="expected a serialized topology of the device 'cpu'"):
        plugin.deserialize_topology(b"{}")
    with pytest.raises(pjrt.InvalidArgumentError, match="expected a serialized topology"):
        plugin.deserialize_topology(b"\xff\x00")


def test_a_wrong_name() -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=r"named by the number of its devices, such as '8'.*'2x2'"):
        pjrt.topology("cpu", "2x2")


def test_only_own_executables_are_loaded(client: pjrt.Client) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match="expected an executable of the device 'cpu'"):
        client.load("digits")  # type: ignore[arg-type]


def test_profiler(client: pjrt.Client, add: pjrt.LoadedExecutable) -> None:
    profiler = plugins.load_plugin("cpu").profiler()
    with pytest.raises(pjrt.FailedPreconditionError, match="not started"):
        profiler.stop()
    with profiler:
        x = np.ones(4, np.float32)
        add(x, x)[0].ready().result()
    assert b"/host:CPU" in profiler.collect()
