"""From jaxlib's exceptions to ``PjrtError``."""

from __future__ import annotations

from pjrt.api.errors import InternalError, PjrtError, StatusCode


def converted(error: BaseException) -> PjrtError:
    """Whatever jaxlib raised as the ``PjrtError`` of its status code, without the code in the message.

    jaxlib puts an ``absl::Status`` into an exception's text as ``CODE: message``.
    """
    if isinstance(error, PjrtError):
        return error
    name, separator, message = str(error).partition(": ")
    if separator and name in StatusCode.__members__:
        made = PjrtError.of(StatusCode[name], message.strip())
    elif isinstance(error, RuntimeError):
        made = InternalError(str(error))
    else:
        return PjrtError.wrap(error)
    made.__cause__ = error
    return made
