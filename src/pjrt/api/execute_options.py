"""Execute options: how one execution is to be run (``PJRT_ExecuteOptions``)."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pjrt.api.checks import expect, expect_all, expect_int, expect_sequence

if TYPE_CHECKING:
    import numpy as np

    from pjrt.api.transfer import CopyToDeviceStream


@dataclass(frozen=True, slots=True)
class SendCallback:
    """Takes what a program sends to the host (``PJRT_SendCallbackInfo``).

    Attributes:
        channel_id: the channel of the program's send.
        callback: called with a chunk of bytes, the transfer's total size in bytes, and whether this is the last chunk;
            on a thread of the device. An exception fails the execution.
    """

    channel_id: int
    callback: Callable[[bytes, int, bool], object]


@dataclass(frozen=True, slots=True)
class RecvCallback:
    """Gives a program what it receives from the host (``PJRT_RecvCallbackInfo``).

    Attributes:
        channel_id: the channel of the program's receive.
        callback: called with a stream to put chunks on, at once or later; on a thread of the device.
    """

    channel_id: int
    callback: Callable[[CopyToDeviceStream], object]


@dataclass(frozen=True, slots=True)
class HloOutputCallback:
    """Takes intermediate values that a program was compiled to hand out (``PJRT_HloOutputCallbackInfo``).

    Attributes:
        callback_id: the number the program names it by.
        num_operands: how many values a call hands out.
        callback: called with replica, partition, a read-only array, and the operand's index.
    """

    callback_id: int
    num_operands: int
    callback: Callable[[int, int, np.ndarray[Any, Any], int], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecuteOptions:
    """How one execution is to be run; the defaults suit nearly all.

    Attributes:
        launch_id: tells executions apart; the same on all devices and processes of one launch. 0 is none.
        non_donatable_input_indices: arguments that must not be donated although the program would.
        send_callbacks: one sequence a device, each in the order of the devices.
        recv_callbacks: likewise.
        hlo_output_callbacks: takers of intermediate values.
        context: what a framework hands to handlers inside the program.
        call_location: where in the user's source the call was made, for error messages and profiles.
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
            given = expect_sequence(self.non_donatable_input_indices, f"{_KEPT} as a set of whole numbers")
            kept = frozenset(expect_int(number, f"{_KEPT} as whole numbers") for number in given)
            object.__setattr__(self, "non_donatable_input_indices", kept)
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
        """Whatever ``LoadedExecutable.execute`` takes, as execute options: ``None`` are the defaults.

        Raises:
            InvalidArgumentError: it is something else.
        """
        if options is None:
            return _DEFAULT
        return expect(options, ExecuteOptions, "execute options as pjrt.ExecuteOptions or None")


class ExecuteContext(abc.ABC):
    """What a framework hands to handlers inside a program; a context manager (``PJRT_ExecuteContext``)."""

    __slots__ = ("__weakref__",)

    @abc.abstractmethod
    def add_user_data(self, type_id: int, address: int) -> None:
        """Adds the address of an object of a registered FFI type; handlers find it by the type's id (FFI extension)."""

    @abc.abstractmethod
    def close(self) -> None:
        """Gives the context up (``PJRT_ExecuteContext_Destroy``); may be called again. Executions under way keep what
        they need.
        """

    def __enter__(self) -> ExecuteContext:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_KEPT = "ExecuteOptions.non_donatable_input_indices"
_DEFAULT = ExecuteOptions()
