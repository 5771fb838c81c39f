"""One call of ``PJRT_LoadedExecutable_Execute``, and buffers whose value the check gives later."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import StatusCode
from pjrt.capi.raw import Error
from pjrt.conformance.plugin.subject import Subject


class Launch:
    """An execution that was asked for.

    Attributes:
        answer: what the call answers; the memory of its arguments lives as long as it.
        error: the error of the call itself, or ``None``.
        results: the buffers of each device; empty where the call failed.
        events: the event of each device that is ready when the device has finished; empty where none were asked for.
    """

    def __init__(
        self,
        subject: Subject,
        executable: int,
        rows: Sequence[Sequence[int]],
        *,
        num_results: int = 1,
        with_events: bool = False,
        execute_device: int = 0,
        num_args: int | None = None,
        **options: Any,
    ) -> None:
        """Execute the program.

        Args:
            subject: the plugin.
            executable: the loaded executable.
            rows: the arguments for each device.
            num_results: the number of results for each device.
            with_events: whether an event for each device is asked for.
            execute_device: the device of a portable executable.
            num_args: the number of arguments; that of the first row if it is not given.
            options: fields of ``PJRT_ExecuteOptions``.
        """
        self._subject = subject
        self._num_results = num_results
        fields: dict[str, Any] = {} if num_args is None else {"num_args": num_args}
        if with_events:
            fields["device_complete_events"] = [None] * len(rows)
        if execute_device:
            fields["execute_device"] = execute_device
        self.answer = subject.attempt(
            "PJRT_LoadedExecutable_Execute",
            executable=executable,
            options=options,
            argument_lists=[list(row) for row in rows],
            output_lists=[[None] * num_results for _ in rows],
            **fields,
        )
        self.error: Error | None = self.answer.error
        began = self.error is None
        self.results: list[list[int]] = self.answer.output_lists if began else []
        self.events: list[int] = self.answer.device_complete_events if began and with_events else []

    def succeeded(self) -> Launch:
        """Return this launch, or fail the check where the call failed."""
        self._subject.expect(self.error is None, "an execution that begins", str(self.error))
        return self

    def expect(self, *arrays: np.ndarray[Any, Any], device: int = 0) -> None:
        """Fail the check unless the results of a device have these contents, bit by bit."""
        for buffer, array in zip(self.succeeded().results[device], arrays, strict=True):
            self._subject.expect_contents(buffer, array)

    def errors(self) -> list[Error | None]:
        """Return the error of each result: that of the call, or what the result's ready event ends with."""
        if self.error is not None:
            return [self.error] * self._num_results
        return [buffer_error(self._subject, each) for row in self.results for each in row]

    def expect_error(self, codes: Collection[StatusCode] | None = None, message: str = "") -> None:
        """Fail the check unless the call, or each of its results, failed with one of the codes and the message."""
        if self.error is None:
            self._subject.expect(self._num_results > 0, "an error", "a call without one")
        for error in self.errors():
            if error is None:
                self._subject.expect(False, "an error, of the call or in each result", "a result without an error")
            elif codes is not None:
                names = " or ".join(code.name for code in codes)
                self._subject.expect(error.code in codes, names, str(error))
            self._subject.expect(message in str(error), f"a message with {message!r}", str(error))

    def destroy(self) -> None:
        """Destroy the results and the events."""
        for each in (buffer for row in self.results for buffer in row):
            self._subject.call("PJRT_Buffer_Destroy", buffer=each)
        for event in self.events:
            self._subject.call("PJRT_Event_Destroy", event=event)


def buffer_error(subject: Subject, buffer: int) -> Error | None:
    """Wait until a buffer has its value, and return the error that it has instead, or ``None``."""
    answer = subject.attempt("PJRT_Buffer_ReadyEvent", buffer=buffer)
    return answer.error if answer.error is not None else subject.event_error(answer.event)


# A buffer whose value the check gives later, so that work with it stays pending for as long as the check wants.


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
