"""A buffer whose value the check gives later, so that work with it stays pending for as long as the check wants."""

from __future__ import annotations

from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import StatusCode
from pjrt.conformance.plugin.subject import Subject


class PendingBuffer:
    """A buffer of ``f32`` that has no value until the check gives it one.

    It is made by ``PJRT_Client_CreateBuffersForAsyncHostToDevice``. The check is unsupported where the plugin lacks it.

    Attributes:
        handle: the buffer.
    """

    def __init__(self, subject: Subject, shape: tuple[int, ...] = (4,), *, client: int = 0, memory: int = 0) -> None:
        """Make the buffer in the memory, or in the default memory of the first device."""
        self._subject = subject
        subject.require("PJRT_Client_CreateBuffersForAsyncHostToDevice")
        self._manager = subject.call(
            "PJRT_Client_CreateBuffersForAsyncHostToDevice",
            client=client or subject.client,
            shape_specs=[{"dims": list(shape), "num_dims": len(shape), "element_type": ElementType.F32}],
            num_shape_specs=1,
            memory=memory or subject.memory,
        ).transfer_manager
        self.handle: int = subject.call(
            "PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer", transfer_manager=self._manager, buffer_index=0
        ).buffer_out

    def fulfil(self, array: np.ndarray[Any, Any]) -> None:
        """Give the buffer its value."""
        array = np.ascontiguousarray(array, np.float32)
        done = self._subject.call(
            "PJRT_AsyncHostToDeviceTransferManager_TransferData",
            transfer_manager=self._manager,
            buffer_index=0,
            data=array.ctypes.data,
            offset=0,
            transfer_size=array.nbytes,
            is_last_transfer=True,
        ).done_with_h2d_transfer
        error = self._subject.event_error(done)
        self._subject.expect(error is None, "a transfer that ends well", str(error))
        self.close()

    def fail(self, code: StatusCode, message: bytes) -> None:
        """Give the buffer an error in place of a value."""
        self._subject.call(
            "PJRT_AsyncHostToDeviceTransferManager_SetBufferError",
            transfer_manager=self._manager,
            buffer_index=0,
            error_code=code,
            error_message=message,
        )
        self.close()

    def close(self) -> None:
        """Destroy the transfer manager; a buffer that has no value yet gets an error."""
        self._subject.call("PJRT_AsyncHostToDeviceTransferManager_Destroy", transfer_manager=self._manager)


def error_buffer(subject: Subject, code: StatusCode, message: bytes, shape: tuple[int, ...] = (4,)) -> int:
    """Return a buffer of ``f32`` that has an error in place of a value.

    It is made by ``PJRT_Client_CreateErrorBuffer``, or by a transfer that fails.
    """
    if subject.plugin.has("PJRT_Client_CreateErrorBuffer"):
        answer = subject.attempt(
            "PJRT_Client_CreateErrorBuffer",
            client=subject.client,
            error_code=code,
            error_message=message,
            shape_dims=list(shape),
            shape_num_dims=len(shape),
            shape_element_type=ElementType.F32,
            memory=subject.memory,
        )
        if answer.error is None:
            return int(answer.buffer)
        subject.expect(
            answer.error.code == StatusCode.UNIMPLEMENTED, "an error buffer, or UNIMPLEMENTED", str(answer.error)
        )
    pending = PendingBuffer(subject, shape)
    pending.fail(code, message)
    return pending.handle
