"""Compile options and device assignments: their way through protos, held against jaxlib's own parser."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pjrt
from pjrt.api.compile_options import Partitioning

int64 = st.integers(-(2**63), 2**63 - 1)
overrides = st.dictionaries(
    st.text(min_size=1, max_size=20),
    st.one_of(st.text(max_size=10), st.booleans(), int64, st.floats(allow_nan=False)),
    max_size=3,
)


@st.composite
def options(draw: st.DrawFn) -> pjrt.CompileOptions:
    replicas, partitions = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    ids = draw(st.permutations(range(replicas * partitions)))
    rows = tuple(tuple(ids[r * partitions : (r + 1) * partitions]) for r in range(replicas))
    flags = st.lists(st.booleans(), max_size=3).map(tuple)
    return pjrt.CompileOptions(
        num_replicas=replicas,
        num_partitions=partitions,
        device_assignment=draw(st.none() | st.just(pjrt.DeviceAssignment(rows))),
        device_ordinal=draw(st.integers(-1, 100)),
        use_spmd_partitioning=draw(st.none() | st.booleans()),
        use_shardy_partitioner=draw(st.booleans()),
        use_auto_spmd_partitioning=draw(st.booleans()),
        allow_spmd_sharding_propagation_to_parameters=draw(flags),
        allow_spmd_sharding_propagation_to_output=draw(flags),
        alias_passthrough_params=draw(st.booleans()),
        deduplicate_hlo=draw(st.booleans()),
        run_backend_only=draw(st.booleans()),
        device_memory_size=draw(st.integers(0, 2**63 - 1)),
        parameter_is_tupled_arguments=draw(st.booleans()),
        compile_portable_executable=draw(st.booleans()),
        profile_version=draw(int64),
        option_overrides=draw(overrides),
    )


@given(options())
def test_options_go_round_through_their_proto(given_options: pjrt.CompileOptions) -> None:
    serialized = given_options.to_proto()
    again = pjrt.CompileOptions.from_proto(serialized)
    expected = dataclasses.replace(given_options, use_spmd_partitioning=given_options.spmd, base=serialized)
    assert again == expected
    assert again.to_proto() == serialized
    for name, value in given_options.option_overrides.items():
        assert type(again.option_overrides[name]) is type(value)


def test_what_is_written_over_the_base_is_what_is_named_here() -> None:
    # A field of the build options (25, a number) and one of the whole (11, a string) that are not named here.
    unknown_build = bytes([0xC8, 0x01, 0x07])
    unknown_top = bytes([0x5A, 0x03]) + b"abc"
    build = bytes([0x20, 0x02]) + unknown_build  # num_replicas: 2
    base = bytes([0x1A, len(build)]) + build + unknown_top
    options = pjrt.CompileOptions.from_proto(base)
    assert options.num_replicas == 2
    changed = dataclasses.replace(options, num_replicas=3).to_proto()
    assert unknown_build in changed
    assert unknown_top in changed
    assert pjrt.CompileOptions.from_proto(changed).num_replicas == 3
    overridden = pjrt.CompileOptions.from_proto(pjrt.CompileOptions(option_overrides={"a": 1}).to_proto())
    assert pjrt.CompileOptions.from_proto(dataclasses.replace(overridden, option_overrides={}).to_proto()) == (
        dataclasses.replace(
            overridden, option_overrides={}, base=dataclasses.replace(overridden, option_overrides={}).to_proto()
        )
    )


def test_an_empty_proto_is_the_defaults() -> None:
    read = dataclasses.replace(pjrt.CompileOptions.from_proto(b""), use_spmd_partitioning=None)
    assert read == pjrt.CompileOptions().completed(Partitioning())


def test_proto3_leaves_zeros_out() -> None:
    options = pjrt.CompileOptions.from_proto(pjrt.CompileOptions(device_ordinal=0).to_proto())
    assert options.device_ordinal == 0
    assert (options.num_replicas, options.num_partitions) == (1, 1)


@pytest.mark.parametrize("serialized", [b"\xff", b"\x1a\x05ab", b"\x3a\x02\x0a\x00", b"\x1a\x04\x4a\x02\x08\x02"])
def test_bytes_that_are_no_options_are_refused(serialized: bytes) -> None:
    with pytest.raises(pjrt.InvalidArgumentError):
        pjrt.CompileOptions.from_proto(serialized)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_replicas": 0}, "num_replicas"),
        ({"num_partitions": -1}, "num_partitions"),
        ({"num_replicas": 1.5}, "num_replicas"),
        ({"num_replicas": 2, "device_assignment": pjrt.DeviceAssignment(((0,),))}, "1 replicas"),
        ({"option_overrides": {"a": None}}, "'a'"),
        ({"option_overrides": {"a": [1]}}, "list"),
    ],
)
def test_impossible_options_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=message):
        pjrt.CompileOptions(**fields)


def test_spmd_follows_the_partitions_unless_it_is_said() -> None:
    assert not pjrt.CompileOptions().spmd
    assert pjrt.CompileOptions(num_partitions=2).spmd
    assert not pjrt.CompileOptions(num_partitions=2, use_spmd_partitioning=False).spmd
    assert pjrt.CompileOptions(use_spmd_partitioning=True).spmd


# Device assignments.


def test_assignments() -> None:
    assignment = pjrt.DeviceAssignment(((3, 2), (1, 0)))
    assert (assignment.num_replicas, assignment.num_partitions) == (2, 2)
    assert assignment.logical_ids(1) == (1, 0)
    assert pjrt.DeviceAssignment.of([3, 4]).device_ids == ((3,), (4,))
    assert pjrt.DeviceAssignment.of([[3, 4]]).device_ids == ((3, 4),)
    assert pjrt.DeviceAssignment.of(assignment) is assignment
    assert pjrt.DeviceAssignment.in_order([5, 6, 7, 8, 9], 2, 2).device_ids == ((5, 6), (7, 8))
    for replicas, partitions in ((1, 2), (2, 1), (0, 1), (-1, -1)):
        with pytest.raises(pjrt.InvalidArgumentError):
            pjrt.DeviceAssignment.in_order([5], replicas, partitions)
    assert pjrt.CompileOptions(num_replicas=2, device_assignment=[5, 6]).device_assignment == (  # type: ignore[arg-type]
        pjrt.DeviceAssignment(((5,), (6,)))
    )
    with pytest.raises(pjrt.InvalidArgumentError, match="device 7"):
        assignment.logical_ids(7)
    for wrong in ((), ((),), ((0, 1), (2,)), ((0,), (0,))):
        with pytest.raises(pjrt.InvalidArgumentError):
            pjrt.DeviceAssignment(wrong)


def test_the_wire_form_of_one_device() -> None:
    one = pjrt.DeviceAssignment(((0,),))
    assert one.to_proto() == bytes.fromhex("080110011a030a0100")
    assert pjrt.DeviceAssignment.from_proto(one.to_proto()) == one


@given(st.integers(1, 4), st.integers(1, 4), st.randoms(use_true_random=False))
def test_assignments_go_round(replicas: int, partitions: int, random: Any) -> None:
    ids = random.sample(range(1000), replicas * partitions)
    rows = tuple(tuple(ids[r * partitions : (r + 1) * partitions]) for r in range(replicas))
    assignment = pjrt.DeviceAssignment(rows)
    assert pjrt.DeviceAssignment.from_proto(assignment.to_proto()) == assignment


@pytest.mark.parametrize("serialized", [b"", b"\x08", b"\x08\x01\x10\x01", b"\x08\x02\x10\x01\x1a\x03\x0a\x01\x00"])
def test_bytes_that_are_no_assignment_are_refused(serialized: bytes) -> None:
    with pytest.raises(pjrt.InvalidArgumentError):
        pjrt.DeviceAssignment.from_proto(serialized)


# Against jaxlib's own.


def test_jaxlib_reads_what_we_write() -> None:
    from jaxlib import xla_client

    ours = pjrt.CompileOptions(
        num_replicas=2,
        num_partitions=2,
        device_assignment=pjrt.DeviceAssignment(((3, 2), (1, 0))),
        device_ordinal=-1,
        use_spmd_partitioning=True,
        use_shardy_partitioner=True,
        use_auto_spmd_partitioning=True,
        allow_spmd_sharding_propagation_to_parameters=(True, False),
        allow_spmd_sharding_propagation_to_output=(True,),
        deduplicate_hlo=True,
        device_memory_size=1 << 40,
        parameter_is_tupled_arguments=True,
        compile_portable_executable=True,
        profile_version=5,
        option_overrides={"xla_cpu_enable_fast_math": True, "n": 3, "s": "text", "d": 2.5},
    )
    theirs = xla_client.CompileOptions.ParseFromString(ours.to_proto())
    build = theirs.executable_build_options
    assert (build.num_replicas, build.num_partitions) == (2, 2)
    assert build.device_assignment.serialize() == ours.device_assignment.to_proto()  # type: ignore[union-attr]
    assert build.use_spmd_partitioning
    assert build.use_shardy_partitioner
    assert build.use_auto_spmd_partitioning
    assert list(build.allow_spmd_sharding_propagation_to_parameters) == [True, False]
    assert list(build.allow_spmd_sharding_propagation_to_output) == [True]
    assert theirs.parameter_is_tupled_arguments
    assert theirs.compile_portable_executable
    assert theirs.profile_version == 5
    again = pjrt.CompileOptions.from_proto(theirs.SerializeAsString())
    assert dataclasses.replace(again, base=b"") == ours


def test_we_read_what_jaxlib_writes() -> None:
    from jaxlib import xla_client

    theirs = xla_client.CompileOptions()
    theirs.num_replicas = 1
    theirs.num_partitions = 2
    theirs.executable_build_options.num_partitions = 2
    theirs.executable_build_options.use_spmd_partitioning = True
    theirs.executable_build_options.device_assignment = xla_client.DeviceAssignment.create(np.array([[4, 5]], np.int32))
    theirs.executable_build_options.debug_options.xla_cpu_enable_fast_math = True
    theirs.env_option_overrides = [("a", True), ("b", 7), ("c", "text"), ("d", 0.5)]
    serialized = theirs.SerializeAsString()
    ours = pjrt.CompileOptions.from_proto(serialized)
    assert ours.num_partitions == 2
    assert ours.use_spmd_partitioning
    assert ours.device_assignment == pjrt.DeviceAssignment(((4, 5),))
    assert ours.option_overrides == {"a": True, "b": 7, "c": "text", "d": 0.5}
    back = xla_client.CompileOptions.ParseFromString(dataclasses.replace(ours, profile_version=3).to_proto())
    assert back.profile_version == 3
    assert back.executable_build_options.debug_options.xla_cpu_enable_fast_math


def test_a_fingerprint_has_what_processes_state_alike() -> None:
    def fingerprint(code: bytes = b"code", **options: Any) -> str:
        return pjrt.CompileOptions(**options).fingerprint(code)

    own = [
        {},
        {"device_ordinal": 1},
        {"profile_version": 1},
        {"option_overrides": {"xla_dump_to": "here"}},
        {"option_overrides": {"xla_gpu_cuda_data_dir": "/usr/local/cuda"}},
        {"base": pjrt.CompileOptions(run_backend_only=True).to_proto()},
    ]
    assert len({fingerprint(**options) for options in own}) == 1
    alike = [
        {"num_replicas": 2},
        {"num_partitions": 2},
        {"device_assignment": [[0, 1]]},
        {"device_assignment": [[1, 0]]},
        {"option_overrides": {"xla_cpu_enable_fast_math": True}},
        {"code": b"other"},
    ]
    assert len({fingerprint(**options) for options in (*alike, {})}) == len(alike) + 1
    two = {"a": 1, "b": 2}
    assert fingerprint(option_overrides=two) == fingerprint(option_overrides=dict(reversed(two.items())))
