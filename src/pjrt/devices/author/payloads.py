"""Serialized executables of an author's compiler: what it made of a program, or of each run of operations in it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import DataLossError, UnimplementedError
from pjrt.devices.author.declined import DeclinedError
from pjrt.host import Compiled
from pjrt.stablehlo.operation import ParsedProgram

CompileParsed = Callable[[ParsedProgram, CompileOptions], "Compiled | Callable[..., Any]"]
"""An author's ``compile(program, options)``."""

DeserializeParsed = Callable[[bytes, ParsedProgram, CompileOptions], "Compiled | Callable[..., Any]"]
"""An author's ``deserialize(payload, program, options)``."""

_DIGEST_BYTES = 32


class CompilationRecord:
    """The calls of an author's ``compile`` for one program, in their order: what each returned, or why it declined.

    Args:
        compile: the author's function.
    """

    def __init__(self, compile: CompileParsed) -> None:
        self._compile = compile
        self._parts: list[Compiled | UnimplementedError] = []

    def compile(self, program: ParsedProgram, options: CompileOptions) -> Compiled:
        """Call the author's function, and record what it did."""
        try:
            compiled = Compiled.of(self._compile(program, options))
        except UnimplementedError as error:
            self._parts.append(error)
            raise
        self._parts.append(compiled)
        return compiled

    @property
    def serialize(self) -> Callable[[], bytes] | None:
        """A function that returns the record as bytes; ``None`` if a part of it cannot be serialized."""
        if any(isinstance(part, Compiled) and part.serialize is None for part in self._parts):
            return None
        return self._pack

    def _pack(self) -> bytes:
        header: list[dict[str, Any]] = []
        payloads: list[bytes] = []
        for part in self._parts:
            if isinstance(part, Compiled):
                assert part.serialize is not None  # asked before
                payloads.append(part.serialize())
                header.append({"size": len(payloads[-1])})
            else:
                operations = sorted(part.operations) if isinstance(part, DeclinedError) else []
                header.append({"declined": part.message, "operations": operations})
        body = json.dumps(header).encode() + b"\n" + b"".join(payloads)
        return hashlib.sha256(body).digest() + body


class CompilationReplay:
    """The calls that a ``CompilationRecord`` has, with the author's ``deserialize`` in place of ``compile``.

    Args:
        payload: the record as bytes.
        deserialize: the author's function.

    Raises:
        DataLossError: the bytes are damaged.
    """

    def __init__(self, payload: bytes, deserialize: DeserializeParsed) -> None:
        self._payload = payload
        self._deserialize = deserialize
        self._parts = iter(_unpack(payload))

    def compile(self, program: ParsedProgram, options: CompileOptions) -> Compiled:
        """Return what the recorded call made, or raise its error."""
        part = next(self._parts, None)
        if part is None:
            raise DataLossError("the serialized executable has fewer parts than its program")
        if isinstance(part, UnimplementedError):
            raise part
        return Compiled.of(self._deserialize(part, program, options))

    def serialize(self) -> bytes:
        """Return the record again."""
        return self._payload


def _unpack(payload: bytes) -> Sequence[bytes | UnimplementedError]:
    digest, content = payload[:_DIGEST_BYTES], payload[_DIGEST_BYTES:]
    if hashlib.sha256(content).digest() != digest:  # compiled code that is damaged may end the process
        raise DataLossError("the compiled code of the serialized executable is damaged; compile the program again")
    line, _, body = content.partition(b"\n")
    parts: list[bytes | UnimplementedError] = []
    begin = 0
    try:
        for entry in json.loads(line):
            if "declined" in entry:
                parts.append(DeclinedError(str(entry["declined"]), [int(each) for each in entry["operations"]]))
            else:
                size = int(entry["size"])
                parts.append(body[begin : begin + size])
                begin += size
    except (ValueError, KeyError, TypeError) as error:
        raise DataLossError(f"the parts of the serialized executable are damaged: {error}") from error
    return parts
