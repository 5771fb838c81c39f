"""The fingerprint of a program: what is the same in all processes that run it together, and differs for another one."""

from __future__ import annotations

import hashlib
from typing import Any

from pjrt.api.program import AnyProgram
from pjrt.stablehlo import _mlir
from pjrt.stablehlo.conversion import to_module
from pjrt.stablehlo.mlir_walk import walk

_CALLBACK_FACTS = ("backend_config", "mhlo.backend_config")
"""The attributes by which a call back into Python says which function: a number or an address in this process."""


def fingerprint(program: AnyProgram, *, trusted: bool = False) -> bytes:
    """Return 32 bytes that are equal for equal programs.

    What processes that run one program together may lawfully state in different ways does not count: source locations,
    and the numbers of functions of Python that the program calls back.

    Args:
        program: a program in any encoding, its text or bytes, or the path of its file.
        trusted: as for ``to_module``.

    Raises:
        PjrtError: as for ``to_module``.
    """
    module = to_module(program, trusted=trusted, legalized=False)
    with module as mlir:
        for operation in walk(mlir.operation):
            _forget_callback(operation)
    del mlir
    _mlir.run_passes(module, "builtin.module(strip-debuginfo)")
    return hashlib.sha256(_mlir.write_bytecode(module)).digest()


def _forget_callback(operation: Any) -> None:
    if operation.name not in ("stablehlo.custom_call", "mhlo.custom_call"):
        return
    attributes = operation.attributes
    if "callback" in attributes["call_target_name"].value:
        for name in _CALLBACK_FACTS:
            if name in attributes:
                del attributes[name]
