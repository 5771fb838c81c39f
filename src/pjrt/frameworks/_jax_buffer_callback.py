"""JAX's ``buffer_callback`` on platforms of this package: functions that work in the memory of a program's buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pjrt.api.element_type import AnyDType
from pjrt.frameworks import _jax_lowering


def install() -> None:
    """Have JAX lower buffer callbacks for our platforms with our rule, and for all others with its own."""
    from jax._src import buffer_callback
    from jax._src.interpreters import mlir

    original = buffer_callback._buffer_callback_lowering

    def lower(ctx: Any, *operands: Any, **options: Any) -> Any:
        if not _jax_lowering.is_ours(ctx.module_context):
            return original(ctx, *operands, **options)
        return _lower(ctx, *operands, **options)

    mlir.register_lowering(buffer_callback.buffer_callback_p, lower, cacheable=False)


def _lower(
    ctx: Any,
    *operands: Any,
    callback: Callable[..., object],
    in_tree: Any,
    out_tree: Any,
    has_side_effect: bool,
    input_output_aliases: Sequence[tuple[int, int]],
    **_: Any,
) -> Any:
    from jax._src import ffi

    called = _BufferCallback(callback, in_tree, out_tree, input_output_aliases)
    number = _jax_lowering.add_callback(ctx.module_context, called, callback)
    rule = ffi.build_ffi_lowering_function(
        _jax_lowering.CALLBACK_TARGET,
        has_side_effect=has_side_effect,
        operand_output_aliases=dict(input_output_aliases),
    )
    return list(rule(ctx, *operands, callback=number).results)


class _BufferCallback:
    """A callback that takes the buffers of operands and results."""

    def __init__(
        self, function: Callable[..., object], in_tree: Any, out_tree: Any, aliases: Sequence[tuple[int, int]]
    ) -> None:
        self._function = function
        self._in_tree = in_tree
        self._out_tree = out_tree
        self._aliases = aliases

    def fill(self, buffers: Sequence[Any]) -> None:
        """Call the function, as ``function(context, results, *operands)``."""
        number = self._in_tree.num_leaves
        for operand, result in self._aliases:  # a device may put the two in different memory
            if not np.may_share_memory(buffers[operand], buffers[number + result]):
                buffers[number + result][...] = buffers[operand]
        arguments, keywords = self._in_tree.unflatten([Buffer(array) for array in buffers[:number]])
        results = self._out_tree.unflatten([Buffer(array) for array in buffers[number:]])
        if self._function(_ExecutionContext(), results, *arguments, **keywords) is not None:
            raise ValueError("the function of a buffer_callback must not return any values: it fills its results")


class _ExecutionContext:
    """The ``jax.experimental.buffer_callback.ExecutionContext`` of an execution on the host."""

    @property
    def stage(self) -> Any:
        """The stage of the execution: only this one has buffers."""
        from jax._src.buffer_callback import ExecutionStage

        return ExecutionStage.EXECUTE

    @property
    def stream(self) -> int:
        """The stream of the execution.

        Raises:
            JaxRuntimeError: always, as on JAX's CPU: devices in the host's memory have no streams.
        """
        from jax.errors import JaxRuntimeError

        raise JaxRuntimeError("UNIMPLEMENTED: this device has no streams: the buffers are in the memory of the host")


class Buffer:
    """A buffer with the interface of ``jax.experimental.buffer_callback.Buffer``, which Python cannot construct."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    @property
    def dtype(self) -> AnyDType:
        """The type of the elements."""
        dtype: AnyDType = self._array.dtype
        return dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self._array.ndim

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the dimensions."""
        shape: tuple[int, ...] = self._array.shape
        return shape

    @property
    def writeable(self) -> bool:
        """Whether the buffer is a result."""
        return self._array.flags.writeable

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.asarray(self._array, dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, number = self._array.__dlpack_device__()
        return int(kind), number
