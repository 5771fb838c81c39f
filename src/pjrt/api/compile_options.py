"""Compile options: the options of one compilation (``xla::CompileOptions``, ``CompileOptionsProto``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pjrt.api.checks import expect, expect_all, expect_int, expect_sequence
from pjrt.api.errors import InvalidArgumentError


class Partitioning(NamedTuple):
    """The compile options that a program may state itself; ``pjrt.stablehlo.partitioning_of`` reads them.

    Attributes:
        num_replicas: copies of the program, each with its own data.
        num_partitions: pieces that one copy is cut into.
        use_shardy_partitioner: whether the shardings are Shardy's (``sdy`` dialect) and not GSPMD's.
    """

    num_replicas: int = 1
    num_partitions: int = 1
    use_shardy_partitioner: bool = False

    @property
    def num_devices(self) -> int:
        """The number of devices that take part."""
        return self.num_replicas * self.num_partitions

    def __str__(self) -> str:
        return f"{self.num_replicas} replicas × {self.num_partitions} partitions"


OptionValue = str | bool | int | float
"""The type of an option override; ``CompileOptionsProto`` has one case for each."""


_ROWS = "a device assignment as rows of device ids, a row a replica"
_IDS = "a row of a device assignment as a sequence of device ids, one a partition"


@dataclass(frozen=True, slots=True)
class DeviceAssignment:
    """The devices that run the replicas and partitions of a program (``xla::DeviceAssignment``).

    Attributes:
        device_ids: one row a replica, and in it one global device id a partition.
    """

    device_ids: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        rows = tuple(
            tuple(expect_int(d, "the id of a device as a whole number") for d in expect_sequence(row, _IDS))
            for row in expect_sequence(self.device_ids, _ROWS)
        )
        object.__setattr__(self, "device_ids", rows)
        if not rows or not rows[0] or any(len(row) != len(rows[0]) for row in rows):
            raise InvalidArgumentError(
                "a device assignment has one row a replica and in each the same number of device ids, "
                f"found {self.device_ids}"
            )
        flat = [d for row in rows for d in row]
        if len(set(flat)) != len(flat):
            raise InvalidArgumentError(
                f"a device can hold one place of a device assignment only, found {self.device_ids}"
            )

    @staticmethod
    def of(ids: DeviceAssignment | Sequence[Sequence[int]] | Sequence[int]) -> DeviceAssignment:
        """Return an assignment from rows of ids, or from a flat list: one replica each, with one partition."""
        if isinstance(ids, DeviceAssignment):
            return ids
        return DeviceAssignment(
            tuple(row if isinstance(row, Iterable) else (row,) for row in expect_sequence(ids, _ROWS))  # type: ignore[misc]
        )

    @staticmethod
    def in_order(ids: Sequence[int], num_replicas: int, num_partitions: int) -> DeviceAssignment:
        """Return an assignment of the first of these ids, in their order: to the partitions of the first replica, then
        to those of the next.

        Raises:
            InvalidArgumentError: there are fewer ids than places, or no places.
        """
        for number in (num_replicas, num_partitions):
            expect_int(number, "how many replicas and partitions as whole numbers")
        if num_replicas < 1 or num_partitions < 1:
            raise InvalidArgumentError(
                f"expected at least 1 replica and 1 partition, found {num_replicas} and {num_partitions}"
            )
        if num_replicas * num_partitions > len(ids):
            raise InvalidArgumentError(
                f"{num_replicas} replicas × {num_partitions} partitions need as many devices, found {len(ids)}"
            )
        rows = range(num_replicas)
        return DeviceAssignment(tuple(tuple(ids[r * num_partitions : (r + 1) * num_partitions]) for r in rows))

    @property
    def num_replicas(self) -> int:
        """The number of replicas."""
        return len(self.device_ids)

    @property
    def num_partitions(self) -> int:
        """The number of partitions of each replica (``computation_count`` on the wire)."""
        return len(self.device_ids[0])

    def logical_ids(self, device_id: int) -> tuple[int, int]:
        """Return the replica and partition of a device.

        Raises:
            InvalidArgumentError: the device has no place in the assignment.
        """
        for replica, row in enumerate(self.device_ids):
            if device_id in row:
                return replica, row.index(device_id)
        raise InvalidArgumentError(f"device {device_id} has no place in the device assignment {self.device_ids}")

    def to_proto(self) -> bytes:
        """Return the assignment as a serialized ``DeviceAssignmentProto``."""
        return bytes(_encode_assignment(self).SerializeToString())

    @staticmethod
    def from_proto(serialized: bytes) -> DeviceAssignment:
        """Return the assignment in a serialized ``DeviceAssignmentProto``.

        Raises:
            InvalidArgumentError: the bytes are not such a message, or its rows do not make an assignment.
        """
        from pjrt.api.protobuf import parse  # here and below, because it loads google.protobuf

        return _decode_assignment(parse("DeviceAssignmentProto", serialized))


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions:
    """The options of a compilation; every field has a default.

    The fields are those of ``CompileOptionsProto`` and its ``executable_build_options``, under their own names. Fields
    of the proto that are not named here (debug options, profiles, partitioner meshes, …) travel unchanged in ``base``.

    Attributes:
        num_replicas: copies of the program, each with its own data; by default the number of the device assignment or
            of the program (``mhlo.num_replicas``), else 1.
        num_partitions: pieces that one copy is cut into (SPMD); by default the number of the device assignment or of
            the program (``mhlo.num_partitions``), else 1.
        device_assignment: the devices of replicas × partitions; ``None`` takes the client's default assignment.
        device_ordinal: the device to compile for if there is no assignment; −1 leaves it open.
        use_spmd_partitioning: partition the program by its sharding annotations; ``None`` does so when
            ``num_partitions`` is above 1.
        use_shardy_partitioner: partition with Shardy (``sdy`` dialect) instead of GSPMD; ``None`` does so when the
            program is for several partitions and its shardings are Shardy's.
        use_auto_spmd_partitioning: let the compiler choose shardings.
        allow_spmd_sharding_propagation_to_parameters: whether the partitioner may choose the shardings of parameters:
            one flag a parameter, one for all, or none.
        allow_spmd_sharding_propagation_to_output: the same for results.
        alias_passthrough_params: let a parameter that is returned unchanged share its memory with the result.
        deduplicate_hlo: merge equal computations (GPU).
        run_backend_only: the program is optimized HLO already.
        device_memory_size: bytes of memory to compile for; 0 asks the device.
        parameter_is_tupled_arguments: arguments are passed as one tuple.
        compile_portable_executable: make an executable that runs on whichever device is named at execution.
        profile_version: the version of the feedback profile; 0 for none.
        option_overrides: compiler flags by name, such as ``{"xla_cpu_enable_fast_math": True}``
            (``env_option_overrides``).
        multi_slice_config: the slices of a program that spans several, as ``MultiSliceConfig.serialize`` gives them
            (TPU; ``serialized_multi_slice_config``).
        base: a serialized ``CompileOptionsProto`` to start from; the fields named here are written over it.
    """

    num_replicas: int | None = None
    num_partitions: int | None = None
    device_assignment: DeviceAssignment | None = None
    device_ordinal: int = -1
    use_spmd_partitioning: bool | None = None
    use_shardy_partitioner: bool | None = None
    use_auto_spmd_partitioning: bool = False
    allow_spmd_sharding_propagation_to_parameters: tuple[bool, ...] = ()
    allow_spmd_sharding_propagation_to_output: tuple[bool, ...] = ()
    alias_passthrough_params: bool = False
    deduplicate_hlo: bool = False
    run_backend_only: bool = False
    device_memory_size: int = 0
    parameter_is_tupled_arguments: bool = False
    compile_portable_executable: bool = False
    profile_version: int = 0
    option_overrides: Mapping[str, OptionValue] = field(default_factory=dict)
    multi_slice_config: bytes = field(default=b"", repr=False)
    base: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        self._check_types()
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidArgumentError(f"CompileOptions.{name} must be a whole number from 1 up, found {value!r}")
        if self.device_assignment is not None:
            assignment = DeviceAssignment.of(self.device_assignment)
            object.__setattr__(self, "device_assignment", assignment)
            for name in _COUNTS:
                if getattr(self, name) is None:
                    object.__setattr__(self, name, getattr(assignment, name))
            if (assignment.num_replicas, assignment.num_partitions) != (self.num_replicas, self.num_partitions):
                raise InvalidArgumentError(
                    f"the device assignment is for {assignment.num_replicas} replicas × {assignment.num_partitions} "
                    f"partitions, the options say {self.num_replicas} × {self.num_partitions}"
                )
        for name, value in self.option_overrides.items():
            expect(name, str, "the names of CompileOptions.option_overrides as str")
            if not isinstance(value, (str, bool, int, float)):
                raise InvalidArgumentError(
                    f"the option override {name!r} must be a str, bool, int or float, found {type(value).__name__}"
                )

    def _check_types(self) -> None:
        for name in _NUMBERS:
            expect_int(getattr(self, name), f"CompileOptions.{name} as a whole number")
        for name in _FLAGS:
            expect(getattr(self, name), bool, f"CompileOptions.{name} as a bool")
        for name in _FLAGS_EACH:
            flags = expect_all(getattr(self, name), bool, f"CompileOptions.{name} as bools")
            object.__setattr__(self, name, tuple(flags))
        for name in _COUNTS:
            if getattr(self, name) is not None:
                expect_int(getattr(self, name), f"CompileOptions.{name} as a whole number or None")
        for name in _FLAGS_OR_NONE:
            if getattr(self, name) is not None:
                expect(getattr(self, name), bool, f"CompileOptions.{name} as a bool or None")
        expect(self.option_overrides, Mapping, "CompileOptions.option_overrides as a mapping of values by name")
        expect(self.multi_slice_config, bytes, "CompileOptions.multi_slice_config as bytes")
        expect(self.base, bytes, "CompileOptions.base as bytes")

    @staticmethod
    def of(options: CompileOptions | None) -> CompileOptions:
        """Return the options that ``Client.compile`` was given; the defaults for ``None``.

        Raises:
            InvalidArgumentError: the argument is neither ``CompileOptions`` nor ``None``.
        """
        if options is None:
            return _DEFAULT
        return expect(options, CompileOptions, "compile options as pjrt.CompileOptions or None")

    @property
    def partitioning(self) -> Partitioning:
        """The stated replicas, partitions and kind of shardings; the defaults of ``Partitioning`` for what is left to
        the program. The options that a client compiles with leave nothing to the program.
        """
        return Partitioning(self.num_replicas or 1, self.num_partitions or 1, bool(self.use_shardy_partitioner))

    @property
    def states_partitioning(self) -> bool:
        """Whether the options leave nothing of ``partitioning`` to the program."""
        return None not in (self.num_replicas, self.num_partitions, self.use_shardy_partitioner)

    def completed(self, partitioning: Partitioning) -> CompileOptions:
        """Return these options, with what they leave to the program taken from its partitioning. Shardy is taken only
        if there is more than one partition.
        """
        if self.states_partitioning:
            return self
        chosen = replace(
            self,
            num_replicas=self.num_replicas or partitioning.num_replicas,
            num_partitions=self.num_partitions or partitioning.num_partitions,
        )
        if chosen.use_shardy_partitioner is not None:
            return chosen
        return replace(chosen, use_shardy_partitioner=partitioning.use_shardy_partitioner and chosen.spmd)

    @property
    def spmd(self) -> bool:
        """Whether the program is partitioned by its annotations: ``use_spmd_partitioning`` if it is set, otherwise
        whether there is more than one partition.
        """
        several = self.partitioning.num_partitions > 1
        return several if self.use_spmd_partitioning is None else self.use_spmd_partitioning

    def fingerprint(self, code: bytes) -> str:
        """Return 16 digits that differ for other code, or for other options.

        What processes that run one program together may lawfully state in different ways does not count: a device of
        one process, a profile, what is dumped, paths of files, and ``base``.

        Args:
            code: the program, or a fingerprint of it.
        """
        import hashlib  # programs of one process do without it

        overrides = {
            name: value
            for name, value in sorted(self.option_overrides.items())
            if "dump" not in name and not (isinstance(value, str) and "/" in value)
        }
        alike = replace(self, device_ordinal=-1, profile_version=0, base=b"", option_overrides=overrides)
        return hashlib.sha256(repr(alike).encode() + code).hexdigest()[:16]

    def to_proto(self) -> bytes:
        """Return the options as a serialized ``CompileOptionsProto``, as ``PJRT_Client_Compile`` takes them."""
        from pjrt.api.protobuf import parse

        options = self.completed(Partitioning())  # nothing is left to the program
        proto: Any = parse("CompileOptionsProto", options.base)
        build = proto.executable_build_options
        for name in _TOP_FIELDS:
            setattr(proto, name, getattr(options, name))
        for name in _BUILD_FIELDS:
            setattr(build, name, getattr(options, name))
        for name in _FLAGS_EACH:
            del getattr(build, name)[:]
            getattr(build, name).extend(getattr(options, name))
        build.use_spmd_partitioning = options.spmd
        proto.serialized_multi_slice_config = options.multi_slice_config
        build.ClearField("device_assignment")
        if options.device_assignment is not None:
            build.device_assignment.CopyFrom(_encode_assignment(options.device_assignment))
        del proto.env_option_overrides[:]
        for key, value in options.option_overrides.items():
            proto.env_option_overrides.add(key=key, value=_encode_override(value))
        return bytes(proto.SerializeToString(deterministic=True))

    @staticmethod
    def from_proto(serialized: bytes) -> CompileOptions:
        """Return the options in a serialized ``CompileOptionsProto``; fields without a name here stay in ``base``.

        Raises:
            InvalidArgumentError: the bytes are not such a message.
        """
        from pjrt.api.protobuf import parse

        proto: Any = parse("CompileOptionsProto", serialized)
        build = proto.executable_build_options
        fields: dict[str, Any] = {name: getattr(proto, name) for name in _TOP_FIELDS}
        fields |= {name: getattr(build, name) for name in _BUILD_FIELDS}
        fields |= {name: tuple(getattr(build, name)) for name in _FLAGS_EACH}
        # Proto3 leaves zeros out; a missing count is one.
        fields["num_replicas"] = max(build.num_replicas, 1)
        fields["num_partitions"] = max(build.num_partitions, 1)
        if not proto.HasField("executable_build_options"):
            fields["device_ordinal"] = -1
        if build.HasField("device_assignment"):
            fields["device_assignment"] = _decode_assignment(build.device_assignment)
        overrides = {entry.key: _decode_override(entry.value) for entry in proto.env_option_overrides}
        return CompileOptions(
            **fields,
            use_spmd_partitioning=build.use_spmd_partitioning,
            multi_slice_config=proto.serialized_multi_slice_config,
            option_overrides=overrides,
            base=serialized,
        )


_COUNTS = ("num_replicas", "num_partitions")
_NUMBERS = ("device_ordinal", "device_memory_size", "profile_version")
_FLAGS_OR_NONE = ("use_spmd_partitioning", "use_shardy_partitioner")
_FLAGS = (
    "use_auto_spmd_partitioning",
    "alias_passthrough_params",
    "deduplicate_hlo",
    "run_backend_only",
    "parameter_is_tupled_arguments",
    "compile_portable_executable",
)
_FLAGS_EACH = (
    "allow_spmd_sharding_propagation_to_parameters",
    "allow_spmd_sharding_propagation_to_output",
)
_DEFAULT = CompileOptions()

# The fields of ``CompileOptionsProto`` and of its ``executable_build_options`` that have a name and a type of here.
_TOP_FIELDS = ("parameter_is_tupled_arguments", "compile_portable_executable", "profile_version")
_BUILD_FIELDS = (
    "device_ordinal",
    "num_replicas",
    "num_partitions",
    "use_auto_spmd_partitioning",
    "deduplicate_hlo",
    "alias_passthrough_params",
    "run_backend_only",
    "device_memory_size",
    "use_shardy_partitioner",
)


def _encode_assignment(assignment: DeviceAssignment) -> Any:
    """Return a ``DeviceAssignmentProto``: its rows are partitions (computations), with one id a replica in each."""
    from pjrt.api.protobuf import message_class

    column = message_class("ComputationDevice")
    return message_class("DeviceAssignmentProto")(
        replica_count=assignment.num_replicas,
        computation_count=assignment.num_partitions,
        computation_devices=[
            column(replica_device_ids=[row[partition] for row in assignment.device_ids])
            for partition in range(assignment.num_partitions)
        ],
    )


def _decode_assignment(proto: Any) -> DeviceAssignment:
    columns = [list(column.replica_device_ids) for column in proto.computation_devices]
    if len(columns) != proto.computation_count or any(len(c) != proto.replica_count for c in columns):
        raise InvalidArgumentError(
            f"a DeviceAssignmentProto of {proto.replica_count} replicas × {proto.computation_count} computations must "
            f"list that many device ids, found {columns}"
        )
    return DeviceAssignment(tuple(zip(*columns, strict=True)))


def _encode_override(value: OptionValue) -> Any:
    from pjrt.api.protobuf import message_class

    override = message_class("OptionOverrideProto")
    if isinstance(value, bool):
        return override(bool_field=value)
    if isinstance(value, int):
        return override(int_field=value)
    if isinstance(value, float):
        return override(double_field=value)
    return override(string_field=value)


def _decode_override(proto: Any) -> OptionValue:
    case = proto.WhichOneof("value")
    if case is None:
        raise InvalidArgumentError("an option override in the CompileOptionsProto has no value")
    value: OptionValue = getattr(proto, case)
    return value
