"""Errors: one hierarchy, with one subclass for each absl status code.

A code, a message and payloads cross the C ABI unchanged in both directions (``PJRT_Error`` in the C API,
``absl::Status`` in C++). If Python has an exception for a condition, the subclass derives from that too, so that
``except MemoryError`` and ``except TimeoutError`` work.

Between other authors' code (device functions, compile functions, callbacks) and the caller that gets its errors lie
threads, the C API and frameworks, which carry a code and a message and no traceback. So the message has the place where
the exception was raised (``from_author``).
"""

from __future__ import annotations

import contextlib
import enum
import os
import sys
from collections.abc import Iterator, Mapping
from types import FrameType, MappingProxyType, TracebackType
from typing import ClassVar

from pjrt.api.printable import printable


class StatusCode(enum.IntEnum):
    """The status codes of absl and gRPC, as numbered by ``PJRT_Error_Code``."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class PjrtError(Exception):
    """An operation that a device, a plugin or this package could not do.

    Args:
        message: what was expected, what was found, and what to do.
        code: the status code; each subclass has its own, so it need not be given.
        payloads: further facts by type URL, as ``absl::Status`` payloads carry them (values are opaque bytes).

    ``PjrtError.of(code, …)`` makes an instance of the subclass of a code.
    """

    default_code: ClassVar[StatusCode] = StatusCode.UNKNOWN

    def __init__(
        self,
        message: str,
        *,
        code: StatusCode | None = None,
        payloads: Mapping[str, bytes] | None = None,
    ) -> None:
        super().__init__(message)
        self._message = message
        self._code = self.default_code if code is None else StatusCode(code)
        self._payloads = dict(payloads or {})

    @property
    def code(self) -> StatusCode:
        """The status code."""
        return self._code

    @property
    def message(self) -> str:
        """The message, without the code."""
        return self._message

    @property
    def payloads(self) -> Mapping[str, bytes]:
        """The payloads by type URL; read-only."""
        return MappingProxyType(self._payloads)

    def __str__(self) -> str:
        return f"{self._code.name}: {printable(self._message)}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._message!r}, code={self._code.name})"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self._message, int(self._code), dict(self._payloads))

    @staticmethod
    def of(code: int, message: str, payloads: Mapping[str, bytes] | None = None) -> PjrtError:
        """Return the error for a status code as a number; an unknown code becomes ``UNKNOWN`` and is named in the
        message.
        """
        try:
            status = StatusCode(code)
        except ValueError:
            return UnknownError(f"{message} (status code {code} is not one of absl's)", payloads=payloads)
        if status is StatusCode.OK:
            return InternalError(f"an error with the status code OK was reported: {message}", payloads=payloads)
        return _BY_CODE[status](message, payloads=payloads)

    @staticmethod
    def wrap(error: BaseException, place: str = "") -> PjrtError:
        """Return an exception as a ``PjrtError``: one that already is stays itself, others keep their type's name in
        the message.

        ``MemoryError`` becomes ``RESOURCE_EXHAUSTED``, ``NotImplementedError`` ``UNIMPLEMENTED``, ``TimeoutError``
        ``DEADLINE_EXCEEDED``, ``ValueError`` and ``TypeError`` ``INVALID_ARGUMENT``, ``KeyboardInterrupt``
        ``CANCELLED``, everything else ``INTERNAL``. The original is kept as ``__cause__``.

        Args:
            error: the exception.
            place: where it was raised, for the message.
        """
        if isinstance(error, PjrtError):
            return error
        subclass = next((cls for kind, cls in _BY_PYTHON_TYPE if isinstance(error, kind)), InternalError)
        text = str(error)
        name = type(error).__name__
        message = f"{name}: {text}" if text else name
        wrapped = subclass(f"{message} ({place})" if place else message)
        wrapped.__cause__ = error
        return wrapped


def _rebuild(cls: type[PjrtError], message: str, code: int, payloads: dict[str, bytes]) -> PjrtError:
    return cls(message, code=StatusCode(code), payloads=payloads)


class CancelledError(PjrtError):
    """The operation was cancelled, typically by its caller."""

    default_code = StatusCode.CANCELLED


class UnknownError(PjrtError):
    """An error of which no more is known than its message."""

    default_code = StatusCode.UNKNOWN


class InvalidArgumentError(PjrtError, ValueError):
    """An argument is wrong whatever state the device is in: a shape, a type, a program."""

    default_code = StatusCode.INVALID_ARGUMENT


class DeadlineExceededError(PjrtError, TimeoutError):
    """A time limit passed before the operation was done."""

    default_code = StatusCode.DEADLINE_EXCEEDED


class NotFoundError(PjrtError, LookupError):
    """A named thing (file, key, device, plugin) does not exist."""

    default_code = StatusCode.NOT_FOUND


class AlreadyExistsError(PjrtError):
    """A thing that was to be made exists already."""

    default_code = StatusCode.ALREADY_EXISTS


class PermissionDeniedError(PjrtError, PermissionError):
    """The caller may not do this."""

    default_code = StatusCode.PERMISSION_DENIED

    def __str__(self) -> str:  # OSError has a __str__ of its own
        return PjrtError.__str__(self)


class ResourceExhaustedError(PjrtError, MemoryError):
    """Memory or another resource is used up."""

    default_code = StatusCode.RESOURCE_EXHAUSTED


class FailedPreconditionError(PjrtError):
    """The object is not in the state that the operation needs: deleted, donated, closed."""

    default_code = StatusCode.FAILED_PRECONDITION


class AbortedError(PjrtError):
    """The operation was given up, typically after a conflict; trying again may work."""

    default_code = StatusCode.ABORTED


class OutOfRangeError(PjrtError, IndexError):
    """A position lies outside the valid range."""

    default_code = StatusCode.OUT_OF_RANGE


class UnimplementedError(PjrtError, NotImplementedError):
    """The device, the plugin or its version does not offer this operation."""

    default_code = StatusCode.UNIMPLEMENTED


class InternalError(PjrtError, RuntimeError):
    """Something that should hold does not: a defect of a device, of a plugin or of this package."""

    default_code = StatusCode.INTERNAL


class UnavailableError(PjrtError):
    """The device or service cannot be reached now."""

    default_code = StatusCode.UNAVAILABLE


class DataLossError(PjrtError):
    """Data is corrupt or gone."""

    default_code = StatusCode.DATA_LOSS


class UnauthenticatedError(PjrtError):
    """The caller has not shown who they are."""

    default_code = StatusCode.UNAUTHENTICATED


_BY_CODE: dict[StatusCode, type[PjrtError]] = {
    cls.default_code: cls
    for cls in (
        CancelledError,
        UnknownError,
        InvalidArgumentError,
        DeadlineExceededError,
        NotFoundError,
        AlreadyExistsError,
        PermissionDeniedError,
        ResourceExhaustedError,
        FailedPreconditionError,
        AbortedError,
        OutOfRangeError,
        UnimplementedError,
        InternalError,
        UnavailableError,
        DataLossError,
        UnauthenticatedError,
    )
}

_BY_PYTHON_TYPE: tuple[tuple[type[BaseException], type[PjrtError]], ...] = (
    (MemoryError, ResourceExhaustedError),
    (NotImplementedError, UnimplementedError),
    (TimeoutError, DeadlineExceededError),
    (KeyboardInterrupt, CancelledError),
    (FileNotFoundError, NotFoundError),
    (PermissionError, PermissionDeniedError),
    (ValueError, InvalidArgumentError),
    (TypeError, InvalidArgumentError),
)


@contextlib.contextmanager
def naming(name: str) -> Iterator[None]:
    """Put a name, such as the path of a file, in front of the message of each error that does not begin with it."""
    try:
        yield
    except PjrtError as error:
        if not name or error.message.startswith((f"{name}:", f"{name} ")):
            raise
        raise PjrtError.of(error.code, f"{name}: {error.message}", error.payloads) from error


def unimplemented(platform: str, operation: str, hint: str = "") -> UnimplementedError:
    """Return the error of a device without an operation; it names the device, the operation and, if there is one, the
    alternative.
    """
    return UnimplementedError(f"the device '{platform}' does not offer {operation}{'; ' + hint if hint else ''}")


TRACEBACK_VARIABLE = "PJRT_TRACEBACK"
"""The environment variable that prints whole tracebacks; any value other than the empty one and 0 switches it on."""

_OURS = __name__.partition(".")[0]
_OUR_DEVICES = f"{_OURS}.devices."


def from_author(error: BaseException) -> PjrtError:
    """Return an exception of an author's code as a ``PjrtError`` whose message has the place where it was raised.

    Only text is kept: a traceback holds the frames, and those hold the arrays they worked on.
    """
    if isinstance(error, PjrtError):
        if _theirs(error.__traceback__):  # Otherwise it is this package's own error, whose message needs no place.
            _print(error, error)
        return error
    # That the memory is not enough is no fault of the code of this package that asked for it.
    is_fault = not isinstance(error, MemoryError) or bool(_theirs(error.__traceback__))
    wrapped = PjrtError.wrap(error, raised_at(error.__traceback__) if is_fault else "")
    _print(error, wrapped)
    return wrapped


def in_operation(error: BaseException, operation: str) -> PjrtError:
    """Return an exception of an author's code as a ``PjrtError`` whose message names the operation that failed.

    The innermost operation wins: an error that names one stays as it is.

    Args:
        error: the exception.
        operation: the operation, with its types and its place in the user's program.
    """
    wrapped = from_author(error)
    if getattr(wrapped, "_located", False):
        return wrapped
    complete = PjrtError.of(wrapped.code, f"{wrapped.message} (in {operation})", wrapped.payloads)
    complete._located = True  # type: ignore[attr-defined]
    return complete


def _print(error: BaseException, wrapped: PjrtError) -> None:
    if os.environ.get(TRACEBACK_VARIABLE, "0") not in ("", "0") and not getattr(wrapped, "_printed", False):
        import traceback  # here: the help of the command does without it

        traceback.print_exception(error, file=sys.stderr)
        wrapped._printed = True  # type: ignore[attr-defined]  # It may pass here again on its way.


def raised_at(trace: TracebackType | None) -> str:
    """Return the innermost place of a traceback that is the author's, such as ``device.py:12 in run``.

    The author's code begins with the first function outside of this package. The functions of other packages that it
    calls, such as numpy's, are not the author's. In this package, the built-in devices count as an author's.

    Returns:
        The place; empty if no Python code of the author's was running.
    """
    frames = _theirs(trace)
    if frames:
        package, folder = _package(frames[0][0]), _folder(frames[0][0])
        frames = [(frame, line) for frame, line in frames if _package(frame) == package or _folder(frame) == folder]
    else:
        frames = [(frame, line) for frame, line in _frames(trace) if _module(frame).startswith(_OUR_DEVICES)]
    return "".join(
        f"{os.path.basename(frame.f_code.co_filename)}:{line} in {frame.f_code.co_name}" for frame, line in frames[-1:]
    )


def _theirs(trace: TracebackType | None) -> list[tuple[FrameType, int]]:
    """Return the frames of a traceback that are not of this package, with their lines, the outermost first."""
    return [(frame, line) for frame, line in _frames(trace) if _package(frame) != _OURS]


def _frames(trace: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _package(frame: FrameType) -> str:
    return _module(frame).partition(".")[0]


def _folder(frame: FrameType) -> str:
    return os.path.dirname(frame.f_code.co_filename)
