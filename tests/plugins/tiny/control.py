"""Switch the faults of a loaded tiny plugin and read its counts, by ctypes, in the same file that was loaded."""

from __future__ import annotations

import ctypes
import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Control:
    """The controls that a tiny library exports. Every copy of the file has faults and counts of its own."""

    def __init__(self, library: str | os.PathLike[str]) -> None:
        """Open the library, which may be loaded already."""
        self.path = Path(library)
        self._library = ctypes.CDLL(str(library))
        number, text = ctypes.c_int64, ctypes.c_char_p
        for name, result, arguments in [
            ("configure", ctypes.c_int, [text]),
            ("set_fault", ctypes.c_int, [text, ctypes.c_int, text, number, number]),
            ("set_event_fault", ctypes.c_int, [text, ctypes.c_int, text, number, number]),
            ("set_fault_payload", None, [text, text]),
            ("clear_faults", None, []),
            ("hold", None, [ctypes.c_bool]),
            ("set_strict", None, [ctypes.c_bool]),
            ("live", number, [text]),
            ("made", number, [text]),
            ("live_kind", text, [ctypes.c_int]),
            ("violations", number, []),
            ("last_violation", text, []),
            ("count_calls", None, [ctypes.c_bool]),
            ("calls", number, [text]),
        ]:
            function = getattr(self._library, f"tiny_plugin_{name}")
            function.restype = result
            function.argtypes = arguments

    def configure(self, **settings: int | str) -> None:
        """Shape the table that GetPjrtApi returns; to be called before the plugin is loaded. README.md lists the words.

        A list under "null" makes several slots null.
        """
        words = []
        for key, value in settings.items():
            words += [f"{key}={each}" for each in (value if isinstance(value, (list, tuple)) else [value])]
        if self._library.tiny_plugin_configure(";".join(words).encode()) != 0:
            raise ValueError(f"the tiny plugin does not know all of these settings: {settings}")

    def fault(self, function: str, code: int, message: str = "", *, skip: int = 0, count: int = -1) -> None:
        """Let a function of PJRT_Api return an error; code 0 takes the fault away."""
        if self._library.tiny_plugin_set_fault(function.encode(), code, message.encode(), skip, count) != 0:
            raise ValueError(f"PJRT_Api has no function {function}")

    def event_fault(self, function: str, code: int, message: str = "", *, skip: int = 0, count: int = -1) -> None:
        """Let the events that a function makes end with an error."""
        if self._library.tiny_plugin_set_event_fault(function.encode(), code, message.encode(), skip, count) != 0:
            raise ValueError(f"PJRT_Api has no function {function}")

    def fault_payload(self, key: str, value: str) -> None:
        """Let the errors of faults carry a payload."""
        self._library.tiny_plugin_set_fault_payload(key.encode(), value.encode())

    def clear(self) -> None:
        """Take all faults away, and let held work go on."""
        self._library.tiny_plugin_clear_faults()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold all queues: all new work stays pending."""
        self._library.tiny_plugin_hold(True)
        try:
            yield
        finally:
            self._library.tiny_plugin_hold(False)

    def strict(self, on: bool = True) -> None:
        """Refuse argument structs whose stamped size is not exactly the plugin's."""
        self._library.tiny_plugin_set_strict(on)

    def live(self, kind: str | None = None) -> int | dict[str, int]:
        """Return how many objects of a kind are alive, or of each kind that has some."""
        if kind is not None:
            return int(self._library.tiny_plugin_live(kind.encode()))
        counts = {each: int(self._library.tiny_plugin_live(each.encode())) for each in self.kinds()}
        return {each: count for each, count in counts.items() if count}

    def left_over(self, before: dict[str, int]) -> dict[str, int]:
        """Return how many more objects of each kind are alive than before, once none is, or after a minute in vain.

        The last reference to something may be that of an event, which the plugin's thread drops a moment after whoever
        waited was told; what it kept is then garbage for the next collection.
        """
        deadline = time.monotonic() + 60
        while True:
            live = {kind: count - before.get(kind, 0) for kind, count in self.live().items()}
            more = {kind: count for kind, count in live.items() if count > 0}
            if not more or time.monotonic() > deadline:
                return more
            gc.collect()
            time.sleep(0.001)

    def collect(self) -> None:
        """Collect garbage if anything is alive: a collection looks at all that other tests imported and made, too."""
        if self.live():
            gc.collect()

    def made(self, kind: str) -> int:
        """Return how many objects of a kind were ever made."""
        return int(self._library.tiny_plugin_made(kind.encode()))

    def kinds(self) -> list[str]:
        """Return the kinds of objects that are counted."""
        names = []
        while (name := self._library.tiny_plugin_live_kind(len(names))) is not None:
            names.append(name.decode())
        return names

    @property
    def violations(self) -> int:
        """The number of times that the caller has broken a rule of the ABI."""
        return int(self._library.tiny_plugin_violations())

    @property
    def last_violation(self) -> str:
        """The rule that was broken last, in words."""
        return str(self._library.tiny_plugin_last_violation().decode())

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count calls while inside; `calls` tells them."""
        self._library.tiny_plugin_count_calls(True)
        yield

    def calls(self, function: str) -> int:
        """Return how often a function of PJRT_Api was called since counting began."""
        return int(self._library.tiny_plugin_calls(function.encode()))
