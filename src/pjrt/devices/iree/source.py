"""The text of a program, as IREE's compiler reads it."""

from __future__ import annotations

from pjrt.devices.iree.rewrites import rewrite
from pjrt.stablehlo import parse, plain, unparse
from pjrt.stablehlo.operation import ParsedProgram


def source_text(program: ParsedProgram) -> bytes:
    """Return a program as StableHLO text, with source locations, without shardings, as IREE computes it rightly.

    Raises:
        UnimplementedError: an attribute of an operation has no form in text.
    """
    hints = any(
        operation.name.startswith("sdy.") or operation.attributes.get("call_target_name") == "Sharding"
        for operation in program.walk()
    )
    if hints and program.source is not None and program.num_replicas * program.num_partitions == 1:
        program = parse(plain(program.source, trusted=True), trusted=True)
    return unparse(rewrite(program)).encode()
