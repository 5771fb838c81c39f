"""The options that make a client of a vendor's plugin one of those of a job's processes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pjrt.plugins.declaration import Declaration

_numbers: dict[str, int] = {}
_lock = threading.Lock()


def job_options(plugin: Declaration, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options for a new client of a plugin in C: the place of this process, and the job's key-value store.

    Each client has keys of its own in the store. The processes make their clients of a plugin in the same order, so
    that the keys of each client are the same in all of them.

    Args:
        plugin: the plugin.
        options: the other options. If the caller gives a ``key_value_store``, or None for it, that decides.
    """
    # There is no job if nobody has imported its package, which is not small.
    package = sys.modules.get("pjrt.distributed")
    job = None if package is None else package.current()
    if job is None or plugin.library is None or "key_value_store" in options:
        return {}
    from pjrt.api.key_value_store import PrefixedStore  # here: few processes are in a job

    with _lock:
        number = _numbers[plugin.name] = _numbers.get(plugin.name, -1) + 1
    place: dict[str, Any] = {"key_value_store": PrefixedStore(job.store, f"pjrt/plugins/{plugin.name}/{number}")}
    if plugin.processes is not None:
        numbers = {plugin.processes.index: job.process_index, plugin.processes.total: job.process_count}
        place |= {name: number for name, number in numbers.items() if name}
    return place
