"""Arguments and results of FFI handlers in memory that the host cannot read."""

from __future__ import annotations

import dataclasses
from typing import Any

from pjrt.api.element_type import AnyDType


@dataclasses.dataclass(frozen=True)
class DeviceArray:
    """An array in memory of a GPU, as a Python function gets it that is a handler of a custom call.

    ``torch.as_tensor`` and ``cupy.asarray`` take it without a copy, by ``__cuda_array_interface__``. It is valid during
    the call only. Work on it belongs on ``stream``: the program's work before the call is enqueued there, and so is the
    work after it.

    Attributes:
        pointer: the address on the GPU; 0 for an array without elements.
        shape: the sizes of the dimensions; elements are in row-major order.
        dtype: the numpy type of the elements; types of ``ml_dtypes`` have no name in ``__cuda_array_interface__``.
        stream: the address of the program's stream, a ``CUstream`` or ``hipStream_t``.
        writable: whether it is a result, which the function fills.
    """

    pointer: int
    shape: tuple[int, ...]
    dtype: AnyDType
    stream: int
    writable: bool

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, not self.writable),
            "strides": None,
            "stream": self.stream or 1,  # 0 is not allowed: 1 names the default stream
        }
