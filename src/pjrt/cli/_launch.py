"""Launching a program on all of its devices with whole arrays, which its shardings cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import pjrt
from pjrt import stablehlo
from pjrt.stablehlo.sharding import REPLICATED, Sharding

Array = np.ndarray[Any, Any]


class Launch:
    """An executable, and its arguments on its devices.

    Args:
        executable: the program; each replica is given the same arguments.
        arguments: the whole arguments.
        results: the results in the program's signature.

    Raises:
        UnimplementedError: the program runs on devices of other processes too, or the device does not report shardings.
    """

    def __init__(
        self, executable: pjrt.LoadedExecutable, arguments: Sequence[Array], results: Sequence[stablehlo.ResultInfo]
    ) -> None:
        self._executable = executable
        self._devices = executable.addressable_devices
        self._places = executable.addressable_device_logical_ids
        self._arguments = arguments
        self._results = results
        needed = executable.num_replicas * executable.num_partitions
        if len(self._devices) != needed:
            raise pjrt.UnimplementedError(
                f"the program runs on {needed} devices, of which this process has {len(self._devices)}; run it from "
                "Python, in every process"
            )
        self._cuts, self._joins = [REPLICATED] * len(arguments), [REPLICATED] * len(results)
        if executable.num_partitions > 1:
            self._cuts = _shardings(executable.parameter_shardings, self._cuts)
            self._joins = _shardings(executable.output_shardings, self._joins)
        self._buffers: list[list[pjrt.Buffer | None]] = [[None] * len(arguments) for _ in self._devices]

    def put(self) -> None:
        """Put arguments on the devices: at first all of them, later those that the last run donated."""
        for row, device, (_, partition) in zip(self._buffers, self._devices, self._places, strict=True):
            for index, (whole, cut) in enumerate(zip(self._arguments, self._cuts, strict=True)):
                buffer = row[index]
                if buffer is None or buffer.is_deleted:
                    shard = np.ascontiguousarray(cut.cut(whole, partition)).reshape(cut.shard_shape(whole.shape))
                    row[index] = self._executable.client.buffer_from_host(shard, device=device)
        for buffer in self._in_use():
            buffer.ready().result()

    def run(self) -> list[list[pjrt.Buffer]]:
        """Run the program once, on all devices, and wait for the results."""
        rows = self._executable.execute([[b for b in row if b is not None] for row in self._buffers])
        for row in rows:
            for result in row:
                result.ready().result()
        return rows

    def whole(self, rows: Sequence[Sequence[pjrt.Buffer]]) -> list[list[Array]]:
        """Return the whole results of a run, a list for each replica."""
        at = dict(zip(self._places, rows, strict=True))
        return [
            [self._joined(index, at, replica) for index in range(len(self._results))]
            for replica in range(self._executable.num_replicas)
        ]

    def _joined(self, index: int, at: dict[tuple[int, int], Sequence[pjrt.Buffer]], replica: int) -> Array:
        sharding = self._joins[index]
        if sharding.is_replicated:
            return np.asarray(at[replica, 0][index])
        shards = [np.asarray(at[replica, partition][index]) for partition in range(self._executable.num_partitions)]
        sizes = tuple(size for size in self._results[index].shape if size is not None)
        return sharding.put_together(shards, sizes)  # type: ignore[no-any-return]

    def _in_use(self) -> list[pjrt.Buffer]:
        return [buffer for row in self._buffers for buffer in row if buffer is not None]


def _shardings(protos: Sequence[bytes] | None, otherwise: list[Sharding]) -> list[Sharding]:
    return otherwise if protos is None else [Sharding.from_proto(each) for each in protos]
