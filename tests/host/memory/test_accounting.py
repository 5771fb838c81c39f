"""Accounting: what is in use, what is refused, and when memory is given back."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st
from waiting import wait_until

import pjrt
from pjrt.host import HostClient
from pjrt.host.storage import MemoryAccount

KIB = np.zeros(256, np.float32)
"""An array of 1024 bytes."""


def kib_client(run: object = None, **options: object) -> HostClient:
    return toys.client(run or (lambda x: -x), "f32[256]", "f32[256]", **options)  # type: ignore[arg-type]


def in_use(client: HostClient, kind: str = "device") -> int:
    return client.devices[0].memory_space(kind).account.in_use  # type: ignore[attr-defined,no-any-return]


def wait_for_use(client: HostClient, count: int) -> None:
    """Return once so many bytes are in use; the device's thread lets go of a result a moment after it is there."""
    wait_until(lambda: gc.collect() is not None and in_use(client) == count, f"the use of {count} bytes")


def test_what_is_in_use_follows_the_buffers() -> None:
    with kib_client() as client:
        x = client.buffer_from_host(KIB)
        assert in_use(client) == 1024
        (out,) = client.compile("program")(x)
        out.ready().result(toys.TIMEOUT)
        assert in_use(client) == 2048
        cast = out.bitcast(pjrt.ElementType.S32, (256,))
        assert in_use(client) == 2048
        copy = cast.copy_to(client.devices[0].memory_space("pinned_host"))
        assert (in_use(client), in_use(client, "pinned_host")) == (2048, 1024)
        shared = client.buffer_from_host(KIB, semantics=pjrt.HostBufferSemantics.IMMUTABLE_ZERO_COPY)
        assert in_use(client) == 3072
        for buffer in (x, cast, copy, shared):
            buffer.delete()
        assert (in_use(client), in_use(client, "pinned_host")) == (0, 0)
        stats = client.devices[0].memory_stats()
        assert stats == pjrt.AllocatorStats(
            bytes_in_use=0, peak_bytes_in_use=3072, num_allocs=3, largest_alloc_size=1024
        )
        client.devices[0].clear_memory_stats()
        assert client.devices[0].memory_stats().peak_bytes_in_use == 0


def test_every_way_to_make_a_buffer_is_accounted_for() -> None:
    with kib_client() as client:
        spec = pjrt.ShapeSpec((256,), pjrt.ElementType.F32)
        made = [
            client.buffer_from_host(KIB),
            client.buffer_from_dlpack(KIB),
            client.create_uninitialized_buffer(spec),
            client.create_view_of_device_buffer(KIB.ctypes.data, spec),
            client.create_buffers_for_async_host_to_device([spec]).retrieve_buffer(0),
            client.buffer_from_host(KIB).donate_with_control_dependency(pjrt.Future.completed(None)),
        ]
        assert in_use(client) == 1024 * len(made)
        alias, fulfillment = client.create_alias_buffer(spec)
        fulfillment.fulfill(made[0])
        made[0].delete()
        assert in_use(client) == 1024 * len(made)
        np.asarray(alias)
        del alias
        made.clear()
        wait_for_use(client, 0)


def test_a_limit_is_kept_and_the_error_tells_the_state() -> None:
    with kib_client(memory_limit=2500) as client:
        first = client.buffer_from_host(KIB)
        second = client.buffer_from_host(KIB)
        with pytest.raises(pjrt.ResourceExhaustedError) as caught:
            client.buffer_from_host(KIB)
        for fact in ("1024 bytes were asked for", "452 of 2500 are free", "in use 2048", "peak 2048", "allocations 2"):
            assert fact in caught.value.message
        assert isinstance(caught.value, MemoryError)
        assert client.devices[0].memory_stats().largest_free_block_bytes == 452
        client.buffer_from_host(KIB, memory_space=client.memory_spaces[1])  # that one has no limit
        with pytest.raises(pjrt.ResourceExhaustedError):
            first.copy_to(client.devices[0])
        first.delete()
        client.buffer_from_host(KIB)
        assert not second.is_deleted


def test_outputs_that_do_not_fit_fail_without_computing_and_the_device_works_on() -> None:
    calls = []
    with kib_client(lambda x: calls.append(1) or -x, memory_limit=2500) as client:
        exe = client.compile("program")
        x = client.buffer_from_host(KIB)
        (first,) = exe(x)
        (second,) = exe(x)
        first.ready().result(toys.TIMEOUT)
        with pytest.raises(pjrt.ResourceExhaustedError, match="out of memory"):
            second.ready().result(toys.TIMEOUT)
        assert len(calls) == 1
        assert in_use(client) == 2048
        first.delete()
        exe(x)[0].ready().result(toys.TIMEOUT)


def test_outputs_that_are_not_declared_are_accounted_for_when_they_are_known() -> None:
    with toys.client(lambda x: (x + 1, x + 2), "f32[256]", None, memory_limit=2500) as client:
        with pytest.raises(pjrt.ResourceExhaustedError):
            client.compile("program")(KIB)
        wait_for_use(client, 0)  # when the error's frames, which hold the argument, are gone


def test_a_failed_execution_gives_its_memory_back() -> None:
    def fail(x: np.ndarray) -> np.ndarray:
        raise ValueError("broken")

    with kib_client(fail) as client:
        (out,) = client.compile("program")(client.buffer_from_host(KIB))
        out.ready().exception(toys.TIMEOUT)
        wait_for_use(client, 0)


def test_donation_with_an_alias_needs_no_more_memory() -> None:
    with kib_client(lambda x: np.negative(x, out=x), facts={"aliases": {0: 0}}, memory_limit=1024) as client:
        exe = client.compile("program")
        x = client.buffer_from_host(KIB)
        for _ in range(10):
            (x,) = exe(x)
        x.ready().result(toys.TIMEOUT)
        assert in_use(client) == 1024
        assert client.devices[0].memory_stats().peak_bytes_in_use == 1024


def test_memory_of_a_long_chain_is_freed_as_it_goes() -> None:
    with kib_client(memory_limit=2048) as client:
        exe = client.compile("program")
        x = client.buffer_from_host(KIB)
        for _ in range(50):
            (x,) = exe(x)
        x.ready().result(toys.TIMEOUT)
        wait_for_use(client, 1024)


def test_limits_by_kind() -> None:
    with kib_client(memory_limit={"pinned_host": 10}) as client:
        client.buffer_from_host(KIB)
        with pytest.raises(pjrt.ResourceExhaustedError, match="pinned_host"):
            client.buffer_from_host(KIB, memory_space=client.memory_spaces[1])
    with pytest.raises(pjrt.InvalidArgumentError, match="'hbm'"):
        kib_client(memory_limit={"hbm": 10})


def test_buffers_that_are_dropped_are_collected() -> None:
    with kib_client() as client:
        exe = client.compile("program")
        x = client.buffer_from_host(KIB)
        exe(x)[0].ready().result(toys.TIMEOUT)
        gc.collect()
        before = len(gc.get_objects())
        for _ in range(200):
            exe(x)[0].ready().result(toys.TIMEOUT)
        wait_for_use(client, 1024)
        assert len(gc.get_objects()) < before + 50
        assert sys.getrefcount(x._storage.array) <= 3  # type: ignore[attr-defined]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 100)), max_size=40))
def test_an_account_adds_up(steps: list[tuple[bool, int]]) -> None:
    account = MemoryAccount("test", 300)
    taken: list[int] = []
    peak = 0
    for take, size in steps:
        if take and sum(taken) + size <= 300:
            account.charge(size)
            taken.append(size)
        elif take:
            with pytest.raises(pjrt.ResourceExhaustedError):
                account.charge(size)
        elif taken:
            account.release(taken.pop())
        peak = max(peak, sum(taken))
        assert account.in_use == sum(taken)
    assert account.stats().peak_bytes_in_use == peak
