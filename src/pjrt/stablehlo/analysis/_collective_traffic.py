"""The bytes that the devices of a collective operation exchange."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import numpy as np

from pjrt.api.errors import PjrtError
from pjrt.stablehlo.analysis._work import nbytes
from pjrt.stablehlo.attributes import Opaque
from pjrt.stablehlo.operation import Operation, ParsedProgram


class Traffic(NamedTuple):
    """The bytes of one collective operation for one device.

    Attributes:
        group_size: the number of devices that exchange values; None if the program does not show it.
        operand_bytes: the bytes that a device contributes.
        result_bytes: the bytes that a device obtains.
        sent_bytes: the bytes that a device must send at least, on average over the group.
    """

    group_size: int | None
    operand_bytes: int
    result_bytes: int
    sent_bytes: int

    def times(self, count: int) -> Traffic:
        """Return the traffic of so many runs."""
        return Traffic(self.group_size, *(amount * count for amount in self[1:] if amount is not None))


def traffic_of(operation: Operation, program: ParsedProgram) -> Traffic:
    """Return the bytes of a collective operation."""
    operands = sum(nbytes(value.type) for value in operation.operands)
    results = sum(nbytes(value.type) for value in operation.results)
    kind = operation.name.rpartition(".")[2]
    if kind == "collective_permute":
        pairs = np.reshape(operation.attribute("source_target_pairs"), (-1, 2))
        sending = int((pairs[:, 0] != pairs[:, 1]).sum())
        size = len({int(device) for device in pairs.flat})
        return Traffic(size, operands, results, operands * sending // max(1, size))
    size_or_none = _group_size(operation, program)
    size = size_or_none or 1
    others = size - 1
    sent = {
        "all_gather": operands * others,
        "all_reduce": 2 * operands * others // size,
        "all_to_all": operands * others // size,
        "collective_broadcast": operands * others // size,
        "reduce_scatter": operands * others // size,
    }[kind]
    return Traffic(size_or_none, operands, results, sent)


def _group_size(operation: Operation, program: ParsedProgram) -> int | None:
    replicas, partitions = program.num_replicas, program.num_partitions
    groups = operation.attribute("replica_groups", None)
    if isinstance(groups, Opaque):
        with contextlib.suppress(PjrtError):  # a mesh or an axis that there is not
            along = program.device_groups(operation)
            return len(along[0]) if along else None
        return None
    row = np.reshape(groups, (len(groups), -1))[0] if groups is not None and np.size(groups) else None
    listed = None if row is None else int((row >= 0).sum())
    channel = operation.attribute("channel_handle", None)
    if operation.attribute("use_global_device_ids", False):
        return listed or replicas * partitions
    if channel is None or channel.handle <= 0:
        return listed or replicas
    if operation.name.endswith((".all_gather", ".all_reduce", ".reduce_scatter")):
        return (listed or replicas) * partitions
    return listed or partitions
