"""Execute options: the options of one execution (``PJRT_ExecuteOptions``)."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from pjrt.api.checks import expect, expect_all, expect_int, expect_sequence

if TYPE_CHECKING:
    import numpy as np

    from pjrt.api.transfer import CopyToDeviceStream


class SendCallback(NamedTuple):
    """A function that receives the values that a program sends to the host (``PJRT_SendCallbackInfo``).

    Attributes:
        channel_id: the channel of the program's send.
        callback: called on a thread of the device with a chunk of bytes, the transfer's total size in bytes, and
            whether this is the last chunk. An exception fails the execution.
    """

    channel_id: int
    callback: Callable[[bytes, int, bool], object]


class RecvCallback(NamedTuple):
    """A function that supplies the values that a program receives from the host (``PJRT_RecvCallbackInfo``).

    Attributes:
        channel_id: the channel of the program's receive.
        callback: called on a thread of the device with a stream to add chunks to, at once or later.
    """

    channel_id: int
    callback: Callable[[CopyToDeviceStream], object]


class HloOutputCallback(NamedTuple):
    """A function that receives intermediate values, which the program was compiled to report
    (``PJRT_HloOutputCallbackInfo``).

    Attributes:
        callback_id: the number by which the program names the callback.
        num_operands: the number of values in a call of the program.
        callback: called with replica, partition, a read-only array, and the operand's index.
    """

    callback_id: int
    num_operands: int
    callback: Callable[[int, int, np.ndarray[Any, Any], int], object]


@dataclass(frozen=True, kw_only=True)  # without slots: an option that is not set is its default in the class
class ExecuteOptions:
    """The options of one execution; the defaults suit nearly all.

    Attributes:
        launch_id: a number that tells launches apart; the same on all devices and processes of one launch. 0 is none.
        non_donatable_input_indices: arguments that must not be donated although the program would donate them.
        send_callbacks: one sequence a device, in the order of the devices.
        recv_callbacks: one sequence a device, in the order of the devices.
        hlo_output_callbacks: receivers of intermediate values.
        context: a framework's data for handlers inside the program.
        call_location: the place of the call in the user's source, for error messages and profiles.
        task_incarnations: the incarnation id of each task of the job, by task id.
        use_major_to_minor_data_layout_for_callbacks: give send and receive callbacks row-major data whatever the
            device's layout.
    """

    launch_id: int = 0
    non_donatable_input_indices: frozenset[int] = frozenset()
    send_callbacks: Sequence[Sequence[SendCallback]] = ()
    recv_callbacks: Sequence[Sequence[RecvCallback]] = ()
    hlo_output_callbacks: Sequence[HloOutputCallback] = ()
    context: ExecuteContext | None = None
    call_location: str = ""
    task_incarnations: Mapping[int, int] | None = None
    use_major_to_minor_data_layout_for_callbacks: bool = False

    def __post_init__(self) -> None:
        expect_int(self.launch_id, "ExecuteOptions.launch_id as a whole number")
        if self.non_donatable_input_indices:
            indices = expect_sequence(self.non_donatable_input_indices, f"{_KEPT} as a set of whole numbers")
            numbers = frozenset(expect_int(number, f"{_KEPT} as whole numbers") for number in indices)
            object.__setattr__(self, "non_donatable_input_indices", numbers)
        for name, kind in (("send_callbacks", SendCallback), ("recv_callbacks", RecvCallback)):
            for row in expect_sequence(getattr(self, name), f"ExecuteOptions.{name} as one sequence a device"):
                expect_all(row, kind, f"ExecuteOptions.{name} as pjrt.{kind.__name__}")
        expect_all(self.hlo_output_callbacks, HloOutputCallback, "ExecuteOptions.hlo_output_callbacks as such")
        if self.context is not None:
            expect(self.context, ExecuteContext, "ExecuteOptions.context as a pjrt.ExecuteContext or None")
        expect(self.call_location, str, "ExecuteOptions.call_location as a str")
        if self.task_incarnations is not None:
            tasks = expect(self.task_incarnations, Mapping, "ExecuteOptions.task_incarnations as a mapping or None")
            for number in (*tasks, *tasks.values()):
                expect_int(number, "ExecuteOptions.task_incarnations as whole numbers by whole numbers")

    @staticmethod
    def of(options: ExecuteOptions | None) -> ExecuteOptions:
        """Return the options that ``LoadedExecutable.execute`` was given; the defaults for ``None``.

        Raises:
            InvalidArgumentError: the argument is neither ``ExecuteOptions`` nor ``None``.
        """
        if options is None:
            return _DEFAULT
        return expect(options, ExecuteOptions, "execute options as pjrt.ExecuteOptions or None")


class ExecuteContext(abc.ABC):
    """A framework's data for handlers inside a program; a context manager (``PJRT_ExecuteContext``)."""

    __slots__ = ("__weakref__",)

    @abc.abstractmethod
    def add_user_data(self, type_id: int, address: int) -> None:
        """Add the address of an object of a registered FFI type; handlers find it by the type's id (FFI extension)."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close the context (``PJRT_ExecuteContext_Destroy``). Executions under way keep its data; a second call does
        nothing.
        """

    def __enter__(self) -> ExecuteContext:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_KEPT = "ExecuteOptions.non_donatable_input_indices"
_DEFAULT = ExecuteOptions()
