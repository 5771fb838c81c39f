"""Fences: what an author's code returns when its work goes on, and how the runtime waits for it."""

from __future__ import annotations

import concurrent.futures
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from pjrt.api.errors import InvalidArgumentError
from pjrt.api.future import Future

_WAITS = ("wait", "synchronize", "result")
"""The methods of fences that return when the work is done."""


class Enqueued(NamedTuple):
    """The results of a program whose work goes on after its function has returned.

    Later programs of the same device may be given the results before the work is done: a device that enqueues does the
    work in the order in which it was enqueued. All others wait for the fence.

    Attributes:
        results: the results, as a function returns them that has done its work.
        fence: a ``pjrt.Future``, a ``concurrent.futures.Future``, an object with a method ``wait``, ``synchronize`` or
            ``result``, or a function that returns when the work is done. An exception of it fails the results.
    """

    results: Any
    fence: Any


def wait_for(fence: Any) -> None:
    """Wait for a fence; ``None`` is done.

    Raises:
        InvalidArgumentError: the object is no fence.
        BaseException: the work has failed.
    """
    if fence is not None:
        waiting_function(fence)()


def waiting_function(fence: Any) -> Callable[[], object]:
    """Return the function that waits for a fence.

    Raises:
        InvalidArgumentError: the object is no fence.
    """
    # Importing asyncio takes as long as importing jaxlib. Where no one has, there are no futures of it.
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and isinstance(fence, (asyncio.Future, asyncio.Task)):
        raise InvalidArgumentError(
            "an asyncio future cannot be waited for on a thread; give a pjrt.Future as the fence"
        )
    if isinstance(fence, (Future, concurrent.futures.Future)):
        return fence.result
    for name in _WAITS:
        method = getattr(fence, name, None)
        if callable(method):
            return method  # type: ignore[no-any-return]
    if callable(fence):
        return fence  # type: ignore[no-any-return]
    raise InvalidArgumentError(
        f"expected a fence, found {type(fence).__name__}: a fence is a future, an object with a method "
        f"{', '.join(_WAITS)}, or a function that waits"
    )
