"""Loaded executables: compiled programs on their devices (``PjRtLoadedExecutable``, ``PJRT_LoadedExecutable``).

Here are also the options of one execution, the arguments of the short form ``executable(…)``, and the way to run a
program without buffers.
"""

from __future__ import annotations

import abc
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from pjrt.api.buffer import ArrayValue, Buffer
from pjrt.api.checks import expect, expect_all, expect_int, expect_sequence
from pjrt.api.element_type import ElementType, are_python_numbers, number_array
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.api.executable import Executable, default_device
from pjrt.api.shape_spec import format_shape

if TYPE_CHECKING:
    from pjrt.api.buffer import CopyToDeviceStream
    from pjrt.api.client import Client
    from pjrt.api.compile_options import DeviceAssignment
    from pjrt.api.device import Device
    from pjrt.api.future import Future


Argument = Any
"""An argument of the short form ``executable(…)``: a ``Buffer``; or a numpy array or scalar, a Python number or nested
lists of them, which are put on the device first.
"""


class LoadedExecutable(Executable):
    """A compiled program on its devices.

    Every way to run it returns at once, with buffers that get their values later. If the execution fails, waiting for
    an output raises its error. Arguments that the program donates (by its aliasing, unless
    ``non_donatable_input_indices`` names them) are used up by the call.
    """

    __slots__ = ()

    @property
    @abc.abstractmethod
    def client(self) -> Client:
        """The client whose devices it is loaded on."""

    @property
    def platform_name(self) -> str:
        return self.client.platform_name

    @property
    @abc.abstractmethod
    def executable(self) -> Executable:
        """The compiled program without the devices (``PJRT_LoadedExecutable_GetExecutable``)."""

    @property
    @abc.abstractmethod
    def addressable_devices(self) -> Sequence[Device]:
        """The devices of this process that it runs on, in the order of arguments and results
        (``PJRT_LoadedExecutable_AddressableDevices``); empty for a portable executable.
        """

    @property
    def addressable_device_logical_ids(self) -> Sequence[tuple[int, int]]:
        """The replica and partition of each addressable device
        (``PJRT_LoadedExecutable_AddressableDeviceLogicalIds``).
        """
        return [self.device_assignment.logical_ids(device.id) for device in self.addressable_devices]

    @property
    @abc.abstractmethod
    def device_assignment(self) -> DeviceAssignment:
        """All devices it runs on, in every process (``PJRT_LoadedExecutable_GetDeviceAssignment``)."""

    @abc.abstractmethod
    def execute(
        self,
        arguments: Sequence[Sequence[Buffer]],
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[list[Buffer]]:
        """Run the program on all addressable devices (``PJRT_LoadedExecutable_Execute``).

        Args:
            arguments: one list of arguments a device, in the order of ``addressable_devices``; each argument is on that
                device.
            options: execute options.
            returned_futures: a list to which one future a device is appended: it is done when the execution is, and
                fails if the execution fails.

        Returns:
            One list of results a device.

        Raises:
            InvalidArgumentError: number, type or device of the arguments is wrong.
            FailedPreconditionError: an argument or the executable was deleted, or the client is closed.
        """

    @abc.abstractmethod
    def execute_sharded(
        self,
        arguments: Sequence[Buffer],
        device: Device,
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[Buffer]:
        """Run the program on one of its devices (``PjRtLoadedExecutable::ExecuteSharded``).

        Further calls run it on the other devices, from this thread or others; collectives wait for them.

        Args:
            arguments: the arguments, on that device.
            device: one of ``addressable_devices``.
            options: execute options.
            returned_futures: a list to which a future of the completion is appended.

        Raises:
            PjrtError: for the reasons of ``execute``.
        """

    @abc.abstractmethod
    def execute_portable(
        self,
        arguments: Sequence[Buffer],
        device: Device,
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[Buffer]:
        """Run a portable executable, compiled with ``compile_portable_executable``, on any device
        (``PjRtLoadedExecutable::ExecutePortable``). The arguments are those of ``execute_sharded``.
        """

    def value_path(self) -> ValuePath | None:
        """Return a way to run the program without buffers, or ``None`` if it needs ``execute_sharded`` each time.

        A device need not have one. Exported plugins use it, because a buffer for each result of each execution takes
        longer than a tiny program.
        """
        return None

    def __call__(self, *arguments: Argument, **keywords: Argument) -> tuple[Buffer, ...]:
        """Run the program on one device: the short form, which takes numpy arrays and numbers as well as buffers.

        A numpy array must have the parameter's dtype. Python numbers (``3.0``, ``[1, 2]``) have none, and become the
        parameter's if that can hold them: floating-point types round, ``3.5`` for an ``s32`` is an error.

        Args:
            arguments: the arguments by position.
            keywords: arguments by name: one of ``parameter_names``, or its last key if no other has that key, such as
                ``w`` for ``weights['w']``.

        Returns:
            The results as a tuple of buffers.

        Raises:
            InvalidArgumentError: the program runs on more than one device (use ``execute``); an argument is of another
                type or shape, missing, given twice, or its name is unknown; or a type cannot hold a number.
            FailedPreconditionError: the executable was deleted.
            UnimplementedError: there are keywords, and the device does not report names.
        """
        if self.is_deleted:
            raise FailedPreconditionError(f"the executable {self.name!r} was deleted; compile it again")
        devices = self.addressable_devices
        if len(devices) > 1:
            raise InvalidArgumentError(
                f"executable(…) is for one device, this program runs on {len(devices)}; "
                "use execute with a list of arguments for each"
            )
        client = self.client
        if devices:
            run, device = self.execute_sharded, devices[0]
        else:
            run, device = self.execute_portable, default_device(client)
        values: Sequence[Argument] = arguments
        buffers = [argument for argument in arguments if isinstance(argument, Buffer)]
        if keywords or len(buffers) != len(arguments):
            if keywords or not WITHOUT_TYPE.isdisjoint(map(type, arguments)):
                values = bound(self, arguments, keywords)
            buffers = [a if isinstance(a, Buffer) else client.buffer_from_host(a, device=device) for a in values]
        try:
            return tuple(run(buffers, device))
        except InvalidArgumentError as error:
            raise explained(error, self, values) from error

    @property
    @abc.abstractmethod
    def is_deleted(self) -> bool:
        """Whether the executable was deleted (``PJRT_LoadedExecutable_IsDeleted``)."""

    @abc.abstractmethod
    def delete(self) -> None:
        """Unload the executable (``PJRT_LoadedExecutable_Delete``). Executions under way finish; a second call does
        nothing.
        """


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


WITHOUT_TYPE = frozenset((bool, int, float, complex, list, tuple))
"""The Python types whose values take the element type of the parameter."""

MOST_CHOICES = 12
"""The most names that a message lists."""

_MISSING = object()


class _Spec(Protocol):
    @property
    def element_type(self) -> ElementType: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


class _Executable(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def parameter_names(self) -> Sequence[str]: ...

    @property
    def parameter_specs(self) -> Sequence[_Spec]: ...


def bound(executable: _Executable, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Sequence[Any]:
    """Return the arguments of a call in the order of the parameters, with arrays in place of Python numbers.

    Raises:
        InvalidArgumentError: a name is unknown or ambiguous, a parameter has two values or none, or its type cannot
            hold a number.
        UnimplementedError: there are keywords, and the device does not report the names.
    """
    values = _in_order(executable, arguments, keywords) if keywords else arguments
    if not any(map(are_python_numbers, values)):
        return values
    try:
        specs = executable.parameter_specs
    except UnimplementedError:
        return values  # numpy's types for Python's numbers, in the hope that they are right
    return [
        _number_array(executable, number, value, specs) if are_python_numbers(value) else value
        for number, value in enumerate(values)
    ]


def explained(error: InvalidArgumentError, executable: _Executable, arguments: Sequence[Any]) -> InvalidArgumentError:
    """Return the error of a call; where an array has another element type than its parameter, one that names it."""
    try:
        specs = executable.parameter_specs
    except PjrtError:
        return error
    for number, (value, spec) in enumerate(zip(arguments, specs, strict=False)):
        if isinstance(value, ArrayValue):
            continue
        array = np.asarray(value)
        if spec.element_type is not ElementType.TOKEN and array.dtype != spec.element_type.dtype:
            return InvalidArgumentError(
                f"argument {number} of {executable.name!r} must be {format_shape(spec.element_type, spec.shape)}, "
                f"found a numpy array of {_type_of(array)}; convert it, such as with "
                f"array.astype({spec.element_type.dtype.name!r})"
            )
    return error


def _type_of(array: np.ndarray[Any, Any]) -> str:
    try:
        return format_shape(ElementType.of(array.dtype), array.shape)
    except InvalidArgumentError:  # such as of text
        return f"{array.dtype}{list(array.shape)}"


def key_of(name: str) -> str:
    """Return the last key of a parameter's name: ``conv.bias`` of JAX's ``weights['conv.bias']``."""
    member = re.search(r"\['([^']*)'\]$", name)
    return member[1] if member else name


def _in_order(executable: _Executable, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any]:
    names = executable.parameter_names
    program = executable.name
    if len(arguments) > len(names):
        raise InvalidArgumentError(f"{program!r} takes {len(names)} arguments, found {len(arguments)} by position")
    values = [*arguments, *[_MISSING] * (len(names) - len(arguments))]
    for keyword, value in keywords.items():
        number = _number_of(keyword, names, program)
        if values[number] is not _MISSING:
            raise InvalidArgumentError(
                f"argument {number} of {program!r} has two values: one by position, one as {keyword!r}; leave one out"
            )
        values[number] = value
    missing = [_labelled(number, names) for number, value in enumerate(values) if value is _MISSING]
    if missing:
        raise InvalidArgumentError(
            f"{program!r} takes {len(names)} arguments, found none for {', '.join(missing)}; give each a value, by "
            "position or by name"
        )
    return values


def choices(names: Sequence[str], wrong: str) -> str:
    """Return names for the message about a wrong one: all of a few, and of many those that are most like it."""
    if len(names) <= MOST_CHOICES:
        return ", ".join(names)
    import difflib  # only for messages

    closest = difflib.get_close_matches(wrong, names, MOST_CHOICES // 2, cutoff=0)
    return f"{', '.join(closest)}, … of {len(names)}"


def _number_of(keyword: str, names: Sequence[str], program: str) -> int:
    places = [number for number, name in enumerate(names) if name == keyword]
    places = places or [number for number, name in enumerate(names) if keyword and key_of(name) == keyword]
    if len(places) == 1:
        return places[0]
    if places:
        raise InvalidArgumentError(
            f"{keyword!r} is the name of several arguments of {program!r}: "
            f"{', '.join(_labelled(number, names) for number in places)}; give them by position"
        )
    if not any(names):
        raise InvalidArgumentError(
            f"the arguments of {program!r} have no names, found {keyword!r}; give them by position "
            '(JAX keeps names, and MLIR text has them as locations: %x: tensor<f32> loc("x"))'
        )
    advice = ""
    if any(name.startswith((f"{keyword}[", f"{keyword}.")) for name in names):
        advice = "; pjrt.load_model takes nested arguments"
    candidates = choices([name for name in names if name], keyword)
    raise InvalidArgumentError(
        f"expected the names of arguments of {program!r} ({candidates}), found {keyword!r}{advice}"
    )


def _number_array(executable: _Executable, number: int, value: Any, specs: Sequence[_Spec]) -> Any:
    if number >= len(specs) or specs[number].element_type is ElementType.TOKEN:
        return value  # the device refuses it
    spec = specs[number]
    try:
        return number_array(value, spec.element_type)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"argument {number} of {executable.name!r}, {format_shape(spec.element_type, spec.shape)}: {error.message}"
        ) from error


def _labelled(number: int, names: Sequence[str]) -> str:
    return f"{number} ({names[number]})" if names[number] else str(number)


class FailedRunError(Exception):
    """The error of ``ValuePath.run`` for an execution that failed at once.

    Attributes:
        buffers: the buffers of the results, which hold the error.
    """

    def __init__(self, buffers: list[Buffer]) -> None:
        super().__init__("the execution failed; its results hold the error")
        self.buffers = buffers


class ValuePath(abc.ABC):
    """A program on its one device, run from values to values.

    A value is the device's own object behind a buffer. A framework behind the C API runs the same program over and
    over, and passes most results only to other programs. So an exported plugin keeps values, and has a buffer made of a
    value when something other than a program uses it. Programs that donate arguments have no value path, nor have
    programs that ask for the execute context or the location of the call.
    """

    __slots__ = ()

    @property
    @abc.abstractmethod
    def makers(self) -> Sequence[Callable[[Any], Buffer]]:
        """For each result a function that makes a buffer of its value, and of ``None`` a deleted buffer. The functions
        do not hold the program.
        """

    @abc.abstractmethod
    def run(self, values: list[Any], launch_id: int, futures: list[Future[None]]) -> list[Any] | None:
        """Run the program with default options but for the launch id, and return the values of its results.

        Args:
            values: the arguments, from ``value`` or from an earlier call of ``run`` of any program of the client. Their
                buffers have types that ``LoadedExecutable.execute_sharded`` takes; that is not checked again.
            launch_id: the launch id, 0 for none.
            futures: a list to which a future of the completion is appended, unless the execution has succeeded already.

        Returns:
            The values, one a result; ``None`` if nothing was started, and ``execute_sharded`` has to run the program.

        Raises:
            FailedRunError: the execution failed at once.
            FailedPreconditionError: an argument was deleted meanwhile.
        """

    @abc.abstractmethod
    def value(self, buffer: Buffer) -> Any:
        """Return the value of a buffer; ``None`` if it has none now."""
