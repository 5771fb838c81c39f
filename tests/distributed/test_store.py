"""The key-value store of a job, in a job of one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pjrt
from pjrt import distributed
from pjrt.system.processes import reserved_port


@pytest.fixture(scope="module")
def store() -> Iterator[distributed.CoordinationStore]:
    with reserved_port() as port:
        yield distributed.initialize(f"127.0.0.1:{port}", 1, 0).store
        distributed.shutdown()


@given(st.binary(max_size=300))
def test_values_are_bytes(store: distributed.CoordinationStore, value: bytes) -> None:
    store.put("value", value)
    assert store.get("value", 60) == value
    assert store.try_get("value") == value


def test_a_large_value(store: distributed.CoordinationStore) -> None:
    value = bytes(range(256)) * (1 << 16)
    store.put("large", value)
    assert store.try_get("large") == value
    store.delete("large")


def test_missing_keys(store: distributed.CoordinationStore) -> None:
    with pytest.raises(pjrt.NotFoundError, match="nothing"):
        store.try_get("nothing")
    with pytest.raises(pjrt.DeadlineExceededError, match=r"'nothing' was not put .* within 0.1 s"):
        store.get("nothing", 0.1)
    with pytest.raises(pjrt.InvalidArgumentError, match="at least one character"):
        store.put("/", b"")


def test_a_value_may_be_protected(store: distributed.CoordinationStore) -> None:
    store.put("fixed", b"1", overwrite=False)
    with pytest.raises(pjrt.AlreadyExistsError):
        store.put("fixed", b"2", overwrite=False)
    store.put("fixed", b"3")
    assert store.try_get("fixed") == b"3"


def test_directories(store: distributed.CoordinationStore) -> None:
    store.put("folder/a", b"1")
    store.put("/folder//deep/b/", b"2")
    store.put("folders", b"3")
    assert store.directory("folder") == {"folder/a": b"1", "folder/deep/b": b"2"}
    store.delete("folder")
    assert store.directory("folder") == {}
    assert store.try_get("folders") == b"3"
    store.delete("folder")


def test_increment(store: distributed.CoordinationStore) -> None:
    assert [store.increment("count"), store.increment("count", 5), store.increment("count", -2)] == [1, 6, 4]
    assert store.try_get("count") == b"4"
    store.put("text", b"four")
    with pytest.raises(pjrt.FailedPreconditionError, match="integer"):
        store.increment("text")
