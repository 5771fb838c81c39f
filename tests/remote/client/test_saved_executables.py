"""Saved executables of a server: what its device has compiled, or the program alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pjrt
from pjrt import CompileOptions, DeviceAssignment, InvalidArgumentError, PjrtError, UnimplementedError, remote
from pjrt.api.capability import Feature
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.versions import load_request, saved_executable, saved_request_of

DOUBLE = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = stablehlo.add %x, %x : tensor<4xf32>
  return %y : tensor<4xf32> }"""

HALVES = """module attributes {mhlo.num_partitions = 2 : i32} {
  func.func @main(%x: tensor<4xf32> {mhlo.sharding = "{devices=[2]<=[2]}"})
      -> (tensor<4xf32> {mhlo.sharding = "{devices=[2]<=[2]}"}) {
    %y = stablehlo.add %x, %x : tensor<4xf32>
    return %y : tensor<4xf32> } }"""

CACHE = "supports_executable_serialization"
"""The attribute by which JAX decides whether to keep executables in its compilation cache."""


@pytest.fixture
def local() -> Iterator[pjrt.Client]:
    with pjrt.client("cpu", num_devices=4) as client:
        yield client


@pytest.fixture
def saving(local: pjrt.Client) -> Iterator[remote.Server]:
    """A server that saves executables."""
    with remote.serve(local, save_executables=True) as server:
        yield server


def connected(server: remote.Server) -> pjrt.Client:
    return pjrt.client("remote", address=server.address)


def doubled(executable: pjrt.LoadedExecutable) -> list[float]:
    results: list[Any] = executable(np.arange(4, dtype=np.float32))  # type: ignore[assignment]
    return np.asarray(results[0]).tolist()


def test_another_client_loads_it_without_a_compilation(
    local: pjrt.Client, saving: remote.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connected(saving) as client:
        assert client.attributes[CACHE] is True
        assert client.capabilities.has(Feature.SERIALIZATION)
        kept = client.compile(DOUBLE).executable.serialize()
    monkeypatch.setattr(type(local), "compile", lambda *arguments, **options: pytest.fail("it was compiled again"))
    with connected(saving) as client:
        again = client.deserialize(kept)
        assert doubled(again) == [0, 2, 4, 6]
        assert again.executable.name == "main"
        assert again.executable.serialize() == kept
        assert again.executable.memory_stats().argument_size_in_bytes == 16


def test_it_keeps_its_devices_unless_others_are_asked_for(saving: remote.Server) -> None:
    with connected(saving) as client:
        options = CompileOptions(device_assignment=DeviceAssignment(((2, 3),)))
        kept = client.compile(HALVES, options).executable.serialize()
        for asked, expected in (
            (None, [2, 3]),
            (CompileOptions(device_assignment=DeviceAssignment(((1, 0),))), [1, 0]),
        ):
            again = client.deserialize(kept, asked)
            assert [device.id for device in again.addressable_devices] == expected
            rows = [
                [client.buffer_from_host(np.full(2, d.id, np.float32), device=d)] for d in again.addressable_devices
            ]
            results = again.execute(rows)
            assert [np.asarray(row[0]).tolist() for row in results] == [[2 * n, 2 * n] for n in expected]


def test_a_server_that_saves_none_compiles_the_saved_program_again(local: pjrt.Client) -> None:
    with remote.serve(local) as server, connected(server) as client:
        assert client.attributes[CACHE] is False
        compiled = client.compile(DOUBLE)
        kept = compiled.executable.serialize()
        assert saved_request_of(kept).serialized_executable == b""
        assert doubled(client.deserialize(kept)) == [0, 2, 4, 6]
        request: Any = wire.SerializeExecutableRequest(loaded_executable_handle=compiled.compiled.handle)  # type: ignore[attr-defined]
        with pytest.raises(UnimplementedError, match="--save-executables"):
            client.connection.call("serialize_executable", request).result()  # type: ignore[attr-defined]


def test_a_server_that_saves_none_loads_none(local: pjrt.Client, saving: remote.Server) -> None:
    with connected(saving) as client:
        kept = client.compile(DOUBLE).executable.serialize()
    with remote.serve(local) as server, connected(server) as client:
        with pytest.raises(UnimplementedError, match="machine code"):
            client.deserialize(kept)


def test_a_served_client_does_not_tell_others_that_it_saves(saving: remote.Server) -> None:
    """jaxlib's client has no request for it, and JAX would fail at each program with its cache on."""
    with connected(saving) as client, remote.serve(client) as second, connected(second) as last:
        assert client.attributes[CACHE] is True
        assert last.attributes[CACHE] is False
        assert last.connection.attributes[CACHE] is False  # type: ignore[attr-defined]


def test_an_executable_of_another_device_is_refused(saving: remote.Server) -> None:
    with connected(saving) as client:
        kept = client.compile(DOUBLE).executable.serialize()
    with pjrt.client("reference") as other, remote.serve(other, save_executables=True) as server:
        with connected(server) as client, pytest.raises(PjrtError):
            client.deserialize(kept)
        with connected(server) as client:
            assert doubled(client.compile(DOUBLE)) == [0, 2, 4, 6]


SAVED = saved_executable(load_request(pjrt.Program.of(DOUBLE), CompileOptions(), b"what a device has compiled"))


@given(st.one_of(st.binary(max_size=40), st.integers(0, len(SAVED) - 1).map(lambda size: SAVED[:size])))
def test_other_bytes_are_errors(wrong: bytes) -> None:
    error = None
    try:
        request = saved_request_of(wrong)
    except InvalidArgumentError as found:
        error = found
    if error is None:  # it was cut between two fields
        assert request.serialized_executable == b""
    else:
        assert "a saved executable of a remote device" in error.message


@pytest.mark.parametrize("damage", [lambda code: b"other bytes", lambda code: code[:100], lambda code: code[::-1]])
def test_damaged_bytes_of_a_device_are_errors(saving: remote.Server, damage: Callable[[bytes], bytes]) -> None:
    with connected(saving) as client:
        request = saved_request_of(client.compile(DOUBLE).executable.serialize())
        request.serialized_executable = damage(request.serialized_executable)
        with pytest.raises(PjrtError):
            client.deserialize(saved_executable(request))
        assert doubled(client.compile(DOUBLE)) == [0, 2, 4, 6]
