"""Buffers from the host's memory: the meaning of each of the host buffer semantics on this device."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.buffer import HostBufferSemantics
from pjrt.api.checks import expect_array, expect_callable, unexpected
from pjrt.api.future import Future
from pjrt.api.shape_spec import Layout, TiledLayout
from pjrt.devices.xla import _jaxlib
from pjrt.devices.xla._jaxlib import converted
from pjrt.devices.xla.buffer import XlaBuffer
from pjrt.devices.xla.future import nothing, when_ready
from pjrt.host_memory.array import order_of
from pjrt.host_memory.external import notify_owner

if TYPE_CHECKING:
    from pjrt.devices.xla.array_type import ArrayType
    from pjrt.devices.xla.completion_watcher import CompletionWatcher
    from pjrt.devices.xla.memory_space import XlaMemorySpace
    from pjrt.host_memory.array import HostArray

_SEMANTICS = {
    HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL: _jaxlib.COPY_DURING_CALL,
    HostBufferSemantics.IMMUTABLE_UNTIL_TRANSFER_COMPLETES: _jaxlib.COPY_LATER,
    HostBufferSemantics.IMMUTABLE_ZERO_COPY: _jaxlib.ZERO_COPY,
    # XLA never writes to memory that it was lent: a donation of such a buffer makes a new one. So the permission to
    # write changes nothing.
    HostBufferSemantics.MUTABLE_ZERO_COPY: _jaxlib.ZERO_COPY,
}


def buffer_from_host(
    array: Any,
    space: XlaMemorySpace,
    layout: Layout | None,
    semantics: HostBufferSemantics,
    on_done: Callable[[], object] | None,
) -> XlaBuffer:
    """Return a buffer with a host array's value."""
    source = _host_array(array)
    array_type = space.device.runtime.row_major_type(source.shape, source.dtype, space)
    if type(semantics) is not HostBufferSemantics:
        raise unexpected(semantics, "one of pjrt.HostBufferSemantics as semantics")
    if on_done is not None:
        expect_callable(on_done, "a function, or None, as on_done_with_host_buffer")
    if layout is not None:
        order = TiledLayout(order_of(layout, source.shape, array_type.element_type)[::-1])
        if not order.is_row_major:
            buffer = _relaid(source, array_type, order)
            if on_done is not None:
                notify_owner(on_done)
            return buffer
    if on_done is not None and _SEMANTICS[semantics] is _jaxlib.ZERO_COPY:
        return _lent(source, array_type, on_done)
    buffer = XlaBuffer(_put(source, array_type, _SEMANTICS[semantics]), array_type)
    if on_done is None:
        return buffer
    if semantics is HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL:
        notify_owner(on_done)
    else:
        when_ready(buffer.array, array_type.runtime.watcher, nothing).add_done_callback(lambda _: notify_owner(on_done))
    return buffer


class LentBuffer(XlaBuffer):
    """A buffer over memory of the host whose owner is notified when it is not used any more."""

    __slots__ = ("_release",)

    def __init__(self, array: _jaxlib.Array, array_type: ArrayType, release: Release) -> None:
        super().__init__(array, array_type)
        self._release = release

    def hold(self) -> XlaBuffer:
        return XlaBuffer(self.source(), self.type)

    def delete(self) -> None:
        super().delete()
        self._release.watch()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Bound as a default, because the names of the module may be gone at the end of the interpreter.
        release = getattr(self, "_release", None)
        if release is not None and not is_finalizing():
            self.array = None
            release.watch()


class Release(Future[None]):
    """A future that is done when jaxlib does not hold the lent memory any more.

    jaxlib holds a numpy array, and the end of that array is the sign. It may come late: an execution under way may
    still read the memory when the buffer is gone, and jaxlib drops released objects only when it is called again.
    """

    __slots__ = ("_watcher",)

    def __init__(self, watcher: CompletionWatcher, lent: HostArray, on_done: Callable[[], object]) -> None:
        super().__init__()
        self._watcher = watcher
        weakref.finalize(lent, self._released, on_done).atexit = False

    def watch(self) -> None:
        """Complete the future soon after the memory is released."""
        if not self.done():
            self._watcher.watch(self)

    def _poll(self) -> None:
        _jaxlib.collect_released()

    def _released(self, on_done: Callable[[], object]) -> None:
        notify_owner(on_done)
        self._complete(None)


def _lent(source: HostArray, array_type: ArrayType, on_done: Callable[[], object]) -> XlaBuffer:
    watcher = array_type.runtime.watcher
    lent = source.view()
    release = Release(watcher, lent, on_done)
    buffer = LentBuffer(_put(lent, array_type, _jaxlib.ZERO_COPY), array_type, release)
    del lent  # only jaxlib may hold it
    if not shares_memory(buffer.array, source):
        # XLA makes a copy, because the memory is not aligned: the owner is notified when that is finished.
        when_ready(buffer.array, watcher, nothing).add_done_callback(lambda _: release.watch())
    return buffer


def shares_memory(jaxlib_array: _jaxlib.Array, array: HostArray) -> bool:
    """Whether an array of jaxlib uses a host array's memory in place."""
    # What is used in place is ready at once.
    try:
        is_shared: bool = jaxlib_array.is_ready() and _jaxlib.pointer(jaxlib_array) == array.ctypes.data
    except _jaxlib.jax.JaxRuntimeError:  # its copy found no memory
        return False
    return is_shared


def _host_array(array: Any) -> HostArray:
    source: HostArray = array if type(array) is np.ndarray else expect_array(array)
    if not source.dtype.isnative:
        source = source.astype(source.dtype.newbyteorder("="))
    return source


def _relaid(source: HostArray, array_type: ArrayType, layout: TiledLayout) -> XlaBuffer:
    from pjrt.devices.xla.relayout import relaid  # here: few buffers need it

    row_major = _put(source, array_type, _jaxlib.COPY_DURING_CALL)
    try:
        return XlaBuffer(*relaid(row_major, array_type, layout))
    except Exception as error:
        raise converted(error) from error


def _put(source: HostArray, array_type: ArrayType, semantics: Any) -> _jaxlib.Array:
    try:
        return _jaxlib.put(source, array_type.aval, array_type.memory_space.placement, semantics)
    except Exception as error:
        raise converted(error) from error
