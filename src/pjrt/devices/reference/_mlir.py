"""Everything of jaxlib's MLIR bindings that this room calls by name, in one place."""

from __future__ import annotations

import importlib
from typing import Any


def cast(attribute: Any, dialect: str, name: str) -> Any:
    """A bare attribute as the dialect's own class, which has its fields as properties."""
    return getattr(importlib.import_module(f"jaxlib.mlir.dialects.{dialect}"), name)(attribute)


def parse(program: str | bytes) -> Any:
    """A module from StableHLO text or MLIR bytecode, in a context of its own."""
    ir = importlib.import_module("jaxlib.mlir.ir")
    context = _context(ir)
    with context, ir.Location.unknown():
        return ir.Module.parse(program)


def _context(ir: Any) -> Any:
    context = ir.Context()
    registry = ir.DialectRegistry()
    importlib.import_module("jaxlib.mlir._mlir_libs._jax_mlir_ext").register_dialects(registry)
    context.append_dialect_registry(registry)
    for dialect in ("stablehlo", "chlo", "sdy"):
        importlib.import_module(f"jaxlib.mlir.dialects.{dialect}").register_dialect(context)
    context.load_all_available_dialects()
    # The quantized types' dialect has no Python bindings of its own: reading any portable artifact loads it.
    stablehlo = importlib.import_module("jaxlib.mlir.dialects.stablehlo")
    stablehlo.deserialize_portable_artifact(context, stablehlo.serialize_portable_artifact_str("module {}", "1.0.0"))
    return context
