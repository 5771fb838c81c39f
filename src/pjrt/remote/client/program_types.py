"""The types of a program's parameters and results on one device, which the protocol's messages do not have."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

from pjrt import stablehlo
from pjrt.api.element_type import ElementType
from pjrt.api.program import Program
from pjrt.api.shape_spec import ShapeSpec
from pjrt.stablehlo.entry import shape_spec
from pjrt.stablehlo.entry_signature import ArgumentInfo, ResultInfo, Signature
from pjrt.stablehlo.shardings.sharding import Sharding


@dataclass(frozen=True, slots=True)
class ValueType:
    """One parameter or result.

    Attributes:
        name: its name in the author's program; empty if unknown.
        memory_kind: the kind of memory that the program asks for; empty if it asks for none.
        whole: its type in the program; ``None`` if its shape is known only when the program runs.
        local: its type on one device; ``None`` as above.
        sharding: its sharding as a serialized ``xla.OpSharding``; ``None`` if it is not sharded.
    """

    name: str
    memory_kind: str
    whole: ShapeSpec | None
    local: ShapeSpec | None
    sharding: bytes | None


@dataclass(frozen=True, slots=True)
class ProgramTypes:
    """The parameters and results of a program."""

    parameters: tuple[ValueType, ...]
    results: tuple[ValueType, ...]


def program_types(
    program: Program,
    parameter_shardings: Sequence[bytes] | None,
    output_shardings: Sequence[bytes] | None,
    num_partitions: int,
) -> ProgramTypes:
    """Return the types of a program that a server has compiled, with the shardings that it reports."""
    signature = _signatures.of(program)
    return ProgramTypes(
        _values(signature.arguments, parameter_shardings, num_partitions),
        _values(signature.results, output_shardings, num_partitions),
    )


class _Signatures:
    """The signature of the last program: the clients of many servers may compile the same one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: tuple[weakref.ref[Program], Signature] | None = None

    def of(self, program: Program) -> Signature:
        with self._lock:
            if self._last is None or self._last[0]() is not program:
                self._last = weakref.ref(program), stablehlo.signature(program, trusted=True)
            return self._last[1]


_signatures = _Signatures()


def _values(
    infos: Sequence[ArgumentInfo | ResultInfo], shardings: Sequence[bytes] | None, num_partitions: int
) -> tuple[ValueType, ...]:
    protos: Sequence[bytes | None] = [None] * len(infos) if shardings is None else shardings
    return tuple(_value(info, proto, num_partitions) for info, proto in zip(infos, protos, strict=True))


def _value(info: ArgumentInfo | ResultInfo, proto: bytes | None, num_partitions: int) -> ValueType:
    whole = shape_spec(info.type)
    local = whole
    # Each device has a token, and an array of the shape of a value that one device has.
    is_token = whole is not None and whole.element_type is ElementType.TOKEN
    if proto is not None and (is_token or Sharding.is_maximal(proto)):
        proto = None
    if whole is not None and proto is not None:
        sharding = Sharding.from_proto(proto, num_partitions)
        local = ShapeSpec(sharding.shard_shape(whole.shape), whole.element_type)
    return ValueType(info.name, info.memory_kind, whole, local, proto)


def shares_values(program: Program) -> bool:
    """Whether the devices of a program exchange values, or compute different values by their numbers."""
    info = stablehlo.inspect(program, trusted=True)
    names = {operation.name for operation in info.operations}
    # A custom call may do anything.
    return bool(info.collectives or info.custom_calls or names & _BY_NUMBER)


_BY_NUMBER = frozenset(("stablehlo.replica_id", "stablehlo.partition_id", "stablehlo.send", "stablehlo.recv"))
