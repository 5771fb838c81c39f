"""Serialized executables: a header, the program, and the author's own serialization."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import InvalidArgumentError
from pjrt.api.program import Program

if TYPE_CHECKING:
    from pjrt.host.executable import Origin

_MAGIC = b"pjrt.host executable 1\n"


def pack(origin: Origin, payload: bytes | None) -> bytes:
    """Return an executable as bytes.

    Args:
        origin: its program and options.
        payload: the author's own serialization, if there is one.
    """
    header = {
        "platform": origin.platform_name,
        "version": origin.platform_version,
        "format": str(origin.program.format),
        "options": base64.b64encode(origin.options.to_proto()).decode(),
        "program_size": len(origin.program.code),
        "payload_size": None if payload is None else len(payload),
    }
    line = json.dumps(header, sort_keys=True).encode() + b"\n"
    return _MAGIC + line + origin.program.code + (payload or b"")


def unpack(serialized: bytes, platform_name: str) -> tuple[Program, CompileOptions, bytes | None]:
    """Return the program, the options and the payload in the bytes of ``pack``.

    Raises:
        InvalidArgumentError: the bytes are damaged or incomplete, or for another platform.
    """
    if not serialized.startswith(_MAGIC):
        raise InvalidArgumentError(
            f"expected an executable serialized by '{platform_name}', found {len(serialized)} bytes that begin with "
            f"{serialized[:16]!r}"
        )
    line, _, body = serialized[len(_MAGIC) :].partition(b"\n")
    try:
        header: dict[str, Any] = json.loads(line)
        platform, size, payload_size = header["platform"], int(header["program_size"]), header["payload_size"]
        extra = None if payload_size is None else int(payload_size)
        options = CompileOptions.from_proto(base64.b64decode(header["options"]))
        program_format = str(header["format"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidArgumentError(f"the header of the serialized executable is damaged: {error}") from error
    if platform != platform_name:
        raise InvalidArgumentError(f"the serialized executable is for '{platform}', this is '{platform_name}'")
    if size < 0 or (extra or 0) < 0 or len(body) != size + (extra or 0):
        raise InvalidArgumentError(
            f"the serialized executable is incomplete: expected {size + (extra or 0)} bytes after its header, found "
            f"{len(body)}"
        )
    return Program(body[:size], program_format), options, None if extra is None else body[size:]
