"""Storages that use the memory of another one: aliases, bitcasts and control dependencies."""

from __future__ import annotations

from typing import Any

import numpy as np

from pjrt.api.element_type import AnyDType
from pjrt.api.future import Future, when_all_done
from pjrt.host.storage import Storage, freeze
from pjrt.host_memory.array import HostArray


def follow(storage: Storage, source: Storage) -> None:
    """Give a storage the array of another as soon as that has it; both use the same memory then."""

    def pass_on(_: Future[None]) -> None:
        error = source.definition._error
        if error is None:
            storage.keep = source
            storage.mutable = source.mutable
            storage.array = source.array
        storage.definition._complete(None, error)

    source.definition.add_done_callback(pass_on)


def depend(source: Storage, dependency: Future[Any]) -> Storage:
    """Return a storage that takes over another's memory and is ready when the dependency is done, too."""
    storage = Storage(Future(), mutable=source.mutable)

    def pass_on() -> None:
        error = source.definition._error or dependency.exception()
        if error is None:
            storage.take_charge_of(source)
            storage.array = source.array
        storage.definition._complete(None, error)

    when_all_done([source.definition, dependency], pass_on)
    return storage


def reinterpret(
    source: Storage,
    source_order: tuple[int, ...],
    dtype: AnyDType,
    shape: tuple[int, ...],
    order: tuple[int, ...],
) -> Storage:
    """Return a storage that takes over another's memory and reads the same bytes as another type and shape.

    Args:
        source: the other storage.
        source_order: its dimensions from the slowest to the fastest varying.
        dtype: the new dtype.
        shape: the new shape, of the same number of bytes.
        order: the new dimensions from the slowest to the fastest varying.
    """
    storage = Storage(Future(), mutable=source.mutable)

    def pass_on(_: Future[None]) -> None:
        error = source.definition._error
        if error is None:
            assert source.array is not None
            storage.take_charge_of(source)
            storage.array = freeze(_read_as(source.array, source_order, dtype, shape, order))
        storage.definition._complete(None, error)

    source.definition.add_done_callback(pass_on)
    return storage


def _read_as(
    array: HostArray, source_order: tuple[int, ...], dtype: AnyDType, shape: tuple[int, ...], order: tuple[int, ...]
) -> HostArray:
    array = array.transpose(source_order).reshape(-1).view(np.uint8).view(dtype).reshape([shape[d] for d in order])
    return array.transpose(np.argsort(order)) if order else array
