"""Weights: the arguments whose values are in the model's file, on the devices."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

import pjrt.ifrt
from pjrt.models import replica_arrays


class Weights:
    """The arrays of a file, each put on the devices once for each sharding that executables want it in.

    Args:
        arrays: the arrays, by their positions among the arguments of the program.
    """

    def __init__(self, arrays: Mapping[int, np.ndarray[Any, Any]]) -> None:
        self._arrays = arrays
        self._on_devices: dict[tuple[int, pjrt.ifrt.Sharding], pjrt.ifrt.Array] = {}
        self._lock = threading.Lock()

    @property
    def positions(self) -> frozenset[int]:
        """The positions of the weights among the arguments of the program."""
        return frozenset(self._arrays)

    def of(self, executable: pjrt.ifrt.LoadedExecutable) -> dict[int, pjrt.ifrt.Array]:
        """Return the weights as an executable takes them, by position."""
        placed = {}
        with self._lock:
            for position, array in self._arrays.items():
                sharding = executable.parameter_specs[position].sharding
                key = (position, sharding)
                if key not in self._on_devices:
                    self._on_devices[key] = replica_arrays.put(executable, position, array)
                placed[position] = self._on_devices[key]
        return placed

    def delete(self) -> None:
        """Free the memory on the devices; may be called again."""
        with self._lock:
            for array in self._on_devices.values():
                array.delete()
            self._on_devices.clear()
