"""Executables: what they say of themselves, saving and loading, and compiling ahead of time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from anydevice import Backend

from pjrt.api.client import Client
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.device import Device
from pjrt.api.element_type import ElementType
from pjrt.api.errors import DataLossError, InvalidArgumentError, PjrtError
from pjrt.api.program import Program
from pjrt.api.shape_spec import TiledLayout

X = np.arange(4, dtype=np.float32)


def test_an_executable_says_what_it_is(backend: Backend, client: Client) -> None:
    executable = client.compile(backend.programs.itself_and_negative((2, 3)))
    assert executable.client is client
    assert executable.platform_name == client.platform_name
    assert executable.name
    assert (executable.num_replicas, executable.num_partitions) == (1, 1)
    assert executable.num_outputs == 2
    assert list(executable.output_element_types) == [ElementType.F32] * 2
    assert list(executable.output_shapes) == [(2, 3)] * 2
    for each in (executable, executable.executable):
        assert [(spec.shape, spec.element_type) for spec in each.output_specs] == [((2, 3), ElementType.F32)] * 2
    assert list(executable.addressable_devices) == [client.addressable_devices[0]]
    assert executable.device_assignment.device_ids == ((client.addressable_devices[0].id,),)


def test_an_executable_knows_its_name(backend: Backend, client: Client) -> None:
    assert "adder" in client.compile(backend.programs.add((4,))).name


def test_an_executable_knows_its_memory_kinds(backend: Backend, client: Client) -> None:
    executable = client.compile(backend.programs.add((4,)))
    assert list(executable.output_memory_kinds) == ["device"]
    assert list(executable.parameter_memory_kinds) == ["device", "device"]


def test_an_executable_knows_its_layouts(backend: Backend, client: Client) -> None:
    executable = client.compile(backend.programs.add((2, 3)))
    assert list(executable.output_layouts) == [TiledLayout((1, 0))]
    assert list(executable.parameter_layouts) == [TiledLayout((1, 0))] * 2


def test_an_executable_tells_its_memory(backend: Backend, client: Client) -> None:
    stats = client.compile(backend.programs.add((256,))).memory_stats()
    assert stats.argument_size_in_bytes == 2048
    assert stats.output_size_in_bytes == 1024
    assert stats.temp_size_in_bytes >= 0


def test_donation_shows_in_the_memory(backend: Backend, client: Client) -> None:
    stats = client.compile(backend.programs.double((256,), donate=True)).memory_stats()
    assert stats.alias_size_in_bytes == 1024


def test_an_executable_tells_its_cost(backend: Backend, client: Client) -> None:
    assert client.compile(backend.programs.add((256,))).cost_analysis()["flops"] == 256


def test_fingerprints_tell_programs_apart(backend: Backend, client: Client) -> None:
    one, again, other = (
        client.compile(program).fingerprint()
        for program in (backend.programs.add((4,)), backend.programs.add((4,)), backend.programs.double((4,)))
    )
    assert one == again
    assert one != other


def test_the_optimized_program_can_be_read(backend: Backend, client: Client) -> None:
    program = client.compile(backend.programs.add((4,))).optimized_program()
    assert isinstance(program, Program)
    assert len(program) > 0


def test_the_size_of_the_code_is_told(backend: Backend, client: Client) -> None:
    assert client.compile(backend.programs.add((4,))).size_of_generated_code >= 0


@pytest.mark.usefixtures("second")
def test_compile_options_come_back(backend: Backend, client: Client) -> None:
    options = CompileOptions(num_replicas=2)
    assert client.compile(backend.programs.replica_id(), options).compile_options().num_replicas == 2


@pytest.mark.parametrize("code", [b"", b"no program", b"\x00\xff" * 50, b"ML\xefR broken"])
def test_what_is_no_program_is_refused(client: Client, code: bytes) -> None:
    with pytest.raises((InvalidArgumentError, DataLossError)):
        client.compile(Program(code, "mlir"))


def test_an_unknown_format_is_refused(client: Client) -> None:
    with pytest.raises(InvalidArgumentError):
        client.compile(Program(b"10 PRINT", "basic"))


# Saving and loading.


def test_a_saved_executable_runs_elsewhere(backend: Backend, new_client: Callable[..., Client]) -> None:
    blob = new_client().compile(backend.programs.add((4,))).serialize()
    assert isinstance(blob, bytes)
    executable = new_client().deserialize(blob)
    np.testing.assert_array_equal(np.asarray(executable(X, X)[0]), 2 * X)


def test_a_saved_executable_can_be_put_on_other_devices(backend: Backend, client: Client, second: Device) -> None:
    blob = client.compile(backend.programs.double((4,))).serialize()
    options = CompileOptions(device_assignment=DeviceAssignment(((second.id,),)))
    (z,) = client.deserialize(blob, options)(X)
    assert z.device == second
    np.testing.assert_array_equal(np.asarray(z), 2 * X)


def test_what_was_not_saved_is_refused(client: Client) -> None:
    for blob in (b"", b"junk", b"\x00" * 100):
        with pytest.raises(PjrtError):
            client.deserialize(blob)


def test_a_saved_executable_that_was_cut_is_refused(backend: Backend, client: Client) -> None:
    blob = client.compile(backend.programs.double((4,))).serialize()
    with pytest.raises(PjrtError):
        client.deserialize(blob[: len(blob) // 4])


# Ahead of time.


def test_a_topology_compiles_and_a_client_loads(backend: Backend, client: Client) -> None:
    executable = client.topology.compile(backend.programs.add((4,)))
    assert executable.num_outputs == 1
    assert executable.memory_stats().output_size_in_bytes == 16
    loaded = client.load(executable)
    np.testing.assert_array_equal(np.asarray(loaded(X, X)[0]), 2 * X)


def test_an_executable_outlives_what_it_was_loaded_as(backend: Backend, client: Client) -> None:
    loaded = client.compile(backend.programs.add((4,)))
    executable = loaded.executable
    del loaded
    assert executable.num_outputs == 1
    assert list(executable.output_shapes) == [(4,)]


def test_topologies_are_saved(client: Client) -> None:
    blob = client.topology.serialize()
    assert isinstance(blob, bytes)
    assert blob == client.topology.serialize()
