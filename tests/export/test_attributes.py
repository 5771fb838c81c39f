"""Attributes of an exported plugin, and its topologies as bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

import pjrt
from pjrt import stablehlo
from pjrt.capi import load_capsule

VERSION = "stablehlo_current_version"

JAX = """
import jax, numpy
import pjrt
from pjrt import stablehlo

versions = []


def compile(program, options):
    versions.append(stablehlo.artifact_version(program))
    spec = pjrt.ShapeSpec((), pjrt.ElementType.F32)
    return pjrt.host.Compiled(run=lambda x: x + 1, parameters=[spec], outputs=[spec])


def make(**options):
    return pjrt.host.HostClient("old", compile=compile, attributes={"stablehlo_current_version": (1, 9, 0)}, **options)


platform = pjrt.frameworks.jax.register(pjrt.export(make, name="old"))
with jax.default_device(jax.devices(platform)[0]):
    jax.jit(lambda x: x + 1).lower(numpy.float32(1)).compile()
assert versions and all(version <= stablehlo.Version(1, 9, 0) for version in versions), versions
"""


def device(**options: Any) -> pjrt.StableHloClient:
    return pjrt.StableHloClient("old", compile=lambda program, options: lambda x: x, **options)


def said_by(**options: Any) -> pjrt.Client:
    exported = pjrt.export(lambda **given: device(newest="1.9.0", **given), name="old", **options)
    return load_capsule(exported.capsule, "old").client()


def test_what_a_client_says_reaches_whoever_loads_the_plugin() -> None:
    with said_by() as client:
        assert client.attributes[VERSION] == (1, 9, 0)
        assert client.attributes["xla_version"] == 2
        oldest = stablehlo.minimum_version()
        assert client.attributes["stablehlo_minimum_version"] == (oldest.major, oldest.minor, oldest.patch)


def test_what_export_is_given_comes_first() -> None:
    with said_by(attributes={VERSION: (1, 8, 0), "wood": "oak"}) as client:
        assert (client.attributes[VERSION], client.attributes["wood"]) == ((1, 8, 0), "oak")


def test_a_plugin_without_clients_says_what_is_read_here() -> None:
    exported = pjrt.export(device, name="none yet")
    plugin = load_capsule(exported.capsule, "none yet")
    newest = stablehlo.current_version()
    assert plugin.attributes[VERSION] == (newest.major, newest.minor, newest.patch)


def test_attributes_that_were_read_before_stay_readable() -> None:
    exported = pjrt.export(lambda newest, **given: device(newest=newest, **given), name="many")
    plugin = load_capsule(exported.capsule, "many")
    for newest in ("1.8.0", "1.9.0", "1.8.0"):
        with plugin.client(newest=newest) as client:
            said = client.attributes[VERSION]
            assert said == plugin.attributes[VERSION]
            assert stablehlo.Version.of(said) == stablehlo.Version.parse(newest)


@pytest.mark.full
def test_jax_sends_programs_at_the_version_of_the_client() -> None:
    environment = {**os.environ, "JAX_PLATFORMS": "old"}
    done = subprocess.run(
        [sys.executable, "-c", JAX], capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_topologies_are_read_again(name: str) -> None:
    exported = pjrt.export(lambda **options: pjrt.client(name, **options), name=f"read {name} again")
    for plugin in (load_capsule(exported.capsule, "again"), pjrt.load_plugin(name)):
        with plugin.client(num_devices=3) as client:
            topology = client.topology
            for read in (topology.deserialize, plugin.deserialize_topology):
                again = read(topology.serialize())
                assert (len(again.device_descriptions), again.platform_name) == (3, name)
                assert again.fingerprint() == topology.fingerprint()
                with pytest.raises(pjrt.InvalidArgumentError, match="serialized topology"):
                    read(b"nonsense")
