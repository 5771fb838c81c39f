"""A key-value store for plugins: the callbacks that several processes of one client talk through."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pjrt.abi.schema import STRUCTS
from pjrt.api.errors import StatusCode
from pjrt.capi.raw.callback import address_of, callback, callback_error
from pjrt.capi.raw.memory import Memory
from pjrt.capi.raw.numbers import load, load_number, store
from pjrt.capi.raw.struct_reader import StructReader

_GET, _TRY_GET, _PUT = "PJRT_KeyValueGetCallback", "PJRT_KeyValueTryGetCallback", "PJRT_KeyValuePutCallback"


class KeyValueStore:
    """A key-value store in this process, whose callbacks several clients may be given.

    Args:
        values: the values that it begins with.
        waits: whether a plugin that gets a missing key waits for it, as long as it asks to; or fails at once.
        on_call: is called with the name of each callback that a plugin calls.

    Attributes:
        values: the values by their keys.
    """

    def __init__(
        self, values: dict[bytes, bytes] | None = None, *, waits: bool = True, on_call: Callable[[str], object] = len
    ) -> None:
        self.values: dict[bytes, bytes] = {} if values is None else values
        self._waits, self._on_call = waits, on_call
        self._changed = threading.Condition()
        self._memory = Memory()  # values that a plugin has: they live as long as the store, so the deleter does nothing
        self._deleters = {kind: callback(f"{kind}_ValueDeleter", lambda _: None) for kind in (_GET, _TRY_GET)}

    def fields(self) -> dict[str, Any]:
        """Return the fields of ``PJRT_Client_Create`` with the callbacks."""
        return {
            "kv_get_callback": self.get,
            "kv_put_callback": self.put,
            "kv_try_get_callback": self.try_get,
        }

    def get(self, args: int) -> int | None:
        """Answer ``PJRT_KeyValueGetCallback``."""
        return self._answer(_GET, args)

    def try_get(self, args: int) -> int | None:
        """Answer ``PJRT_KeyValueTryGetCallback``."""
        return self._answer(_TRY_GET, args)

    def put(self, args: int) -> int | None:
        """Answer ``PJRT_KeyValuePutCallback``."""
        fields = StructReader().read(f"{_PUT}_Args", args, ("key", "value")).fields
        with self._changed:
            self.values[fields["key"] or b""] = fields["value"] or b""
            self._changed.notify_all()
        self._on_call(_PUT)
        return None

    def _answer(self, kind: str, args: int) -> int | None:
        spec = STRUCTS[f"{kind}_Args"]
        key = StructReader().read(spec.name, args, ("key",)).fields["key"] or b""
        self._on_call(kind)
        with self._changed:
            if kind == _GET and self._waits:
                milliseconds = load_number(args + spec.fields["timeout_in_ms"].offset, 4, signed=True)
                self._changed.wait_for(lambda: key in self.values, milliseconds / 1000)
            value = self.values.get(key)
        if value is None:
            waited = kind == _GET and self._waits
            code = StatusCode.DEADLINE_EXCEEDED if waited else StatusCode.NOT_FOUND
            maker = load(args + spec.fields["callback_error"].offset)
            return callback_error(maker, code, f"there is no value for the key {key.decode(errors='replace')!r}")
        store(args + spec.fields["value"].offset, self._memory.copy(value))
        store(args + spec.fields["value_size"].offset, len(value))
        store(args + spec.fields["value_deleter_callback"].offset, address_of(self._deleters[kind]))
        return None
