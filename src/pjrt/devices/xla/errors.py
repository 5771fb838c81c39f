"""The conversion of jaxlib's exceptions to ``PjrtError``."""

from __future__ import annotations

from pjrt.api.errors import InternalError, PjrtError, StatusCode

_TRACE = "=== Source Location Trace"  # the place in XLA's source, which jaxlib 0.12 appends


def converted(error: BaseException) -> PjrtError:
    """Return jaxlib's exception as the ``PjrtError`` of its status code, without the code in the message.

    jaxlib puts an ``absl::Status`` into an exception's text as ``CODE: message``.
    """
    if isinstance(error, PjrtError):
        return error
    code, message = status_of(error)
    if code is not None:
        converted_error = PjrtError.of(code, message)
    elif isinstance(error, RuntimeError):
        converted_error = InternalError(message)
    else:
        return PjrtError.wrap(error)
    converted_error.__cause__ = error.with_traceback(None)
    return converted_error


def status_of(error: BaseException) -> tuple[StatusCode | None, str]:
    """Return the status code in an exception's text, if there is one, and the message."""
    text = str(error).partition(_TRACE)[0].strip()
    name, separator, message = text.partition(": ")
    if separator and name in StatusCode.__members__:
        return StatusCode[name], message.strip()
    return None, text
