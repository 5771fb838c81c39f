"""The key-value store that a plugin asks from its own threads."""

from __future__ import annotations

from typing import Any

import pytest

import pjrt


def attributes(plugin: pjrt.Plugin, store: pjrt.KeyValueStore | None) -> dict[str, Any]:
    """Return the results of the plugin's exercise of the store: it puts, gets, and asks for a missing key."""
    with plugin.client(kv_exercise=True, key_value_store=store) as client:
        found = client.devices[0].attributes
        return {name: value for name, value in found.items() if name.startswith("kv_")}


def test_values_go_to_the_store_and_come_back(plugin: pjrt.Plugin) -> None:
    store = pjrt.InMemoryKeyValueStore()
    told = attributes(plugin, store)
    assert told["kv_put"] == "OK"
    assert told["kv_get"] == told["kv_try_get"] == "hello\0world"
    assert told["kv_get_missing"].startswith("4: the key")
    assert told["kv_try_get_missing"].startswith("5: the key")


class Telling(pjrt.KeyValueStore):
    """Notes what it is asked, and answers as it is told."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.error = error

    def get(self, key: str, timeout: float) -> bytes:
        self.calls.append(("get", key, timeout))
        return self._answer()

    def try_get(self, key: str) -> bytes:
        self.calls.append(("try_get", key))
        return self._answer()

    def put(self, key: str, value: bytes) -> None:
        self.calls.append(("put", key, value))
        self._answer()

    def _answer(self) -> bytes:
        if self.error is not None:
            raise self.error
        return b"v\x00\xffalue"


def test_keys_values_and_timeouts_are_handed_over(plugin: pjrt.Plugin) -> None:
    store = Telling()
    attributes(plugin, store)
    names = [call[0] for call in store.calls]
    assert names.count("put") == 1
    assert names.count("get") == names.count("try_get") == 2
    assert all(isinstance(call[2], float) and 0 < call[2] < 60 for call in store.calls if call[0] == "get")
    assert all(isinstance(call[2], bytes) for call in store.calls if call[0] == "put")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (pjrt.UnavailableError("the net is down"), 14),
        (OSError("disk full"), 13),
        (TimeoutError("late"), 4),
        (KeyboardInterrupt(), 1),
    ],
    ids=["PjrtError", "OSError", "TimeoutError", "KeyboardInterrupt"],
)
def test_an_exception_of_the_store_becomes_an_error_of_the_plugin(
    plugin: pjrt.Plugin, error: BaseException, code: int
) -> None:
    told = attributes(plugin, Telling(error))
    for name in ("kv_put", "kv_get", "kv_try_get"):
        assert told[name].startswith(f"{code}: "), told
    assert (error.message if isinstance(error, pjrt.PjrtError) else str(error)) in told["kv_put"]


def test_without_a_store_the_plugin_is_offered_none(plugin: pjrt.Plugin) -> None:
    with pytest.raises(pjrt.FailedPreconditionError, match="there is none"):
        attributes(plugin, None)


def test_what_is_no_store(plugin: pjrt.Plugin) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match="KeyValueStore, found dict"):
        plugin.client(key_value_store={})
