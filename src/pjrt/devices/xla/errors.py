"""From jaxlib's exceptions to ``PjrtError``."""

from __future__ import annotations

from pjrt.api.errors import InternalError, PjrtError, StatusCode

_TRACE = "=== Source Location Trace"  # where in XLA's source it happened, from jaxlib 0.12 on


def converted(error: BaseException) -> PjrtError:
    """Whatever jaxlib raised as the ``PjrtError`` of its status code, without the code in the message.

    jaxlib puts an ``absl::Status`` into an exception's text as ``CODE: message``.
    """
    if isinstance(error, PjrtError):
        return error
    code, message = status_of(error)
    if code is not None:
        made = PjrtError.of(code, message)
    elif isinstance(error, RuntimeError):
        made = InternalError(message)
    else:
        return PjrtError.wrap(error)
    made.__cause__ = error.with_traceback(None)
    return made


def status_of(error: BaseException) -> tuple[StatusCode | None, str]:
    """The status code in an exception's text, where there is one, and the message."""
    text = str(error).partition(_TRACE)[0].strip()
    name, separator, message = text.partition(": ")
    if separator and name in StatusCode.__members__:
        return StatusCode[name], message.strip()
    return None, text
