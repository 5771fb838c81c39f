"""Programs, which devices compile: reading, converting and inspecting them.

This package knows ``api`` and ``system`` only; it must not know devices or buffers.

``read`` recognizes a program's format without parsing it and needs no other library. Everything that looks inside
(``parse``, ``inspect``, ``to_module``, the conversions) needs jaxlib, the extra ``pjrt[xla]``. Names are imported at
their first use: importing all takes about 40 ms, and a device that passes bytes through needs few of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pjrt.api.lazy_names import lazy_names

if TYPE_CHECKING:
    from pjrt.stablehlo.analysis.cost_analysis import (
        CollectiveCost,
        CollectiveTotal,
        Cost,
        OperationCost,
        cost,
        parse_for_one_device,
    )
    from pjrt.stablehlo.analysis.memory_analysis import ArrayRole, MemoryStep, PeakArray, PeakMemory, peak_memory
    from pjrt.stablehlo.encodings.format import Encoding, Version, artifact_version, encoding_of
    from pjrt.stablehlo.encodings.safe_parse import vet
    from pjrt.stablehlo.facts.compatibility import static_check, supports
    from pjrt.stablehlo.facts.inspection import OperationInfo, ProgramInfo, inspect
    from pjrt.stablehlo.facts.signatures import (
        ArgumentInfo,
        CallSignature,
        Parameter,
        Result,
        ResultInfo,
        Signature,
        signature,
    )
    from pjrt.stablehlo.files.hlo_text import parse_hlo_text
    from pjrt.stablehlo.files.jax_export import ExportedArray, JaxExport, NamedSharding, read_jax_export
    from pjrt.stablehlo.files.model_package import ModelPackage, read_model_package
    from pjrt.stablehlo.files.saved_model import (
        SavedModel,
        SavedModelArgument,
        SavedModelSource,
        is_saved_model,
        read_saved_model,
    )
    from pjrt.stablehlo.files.torch_export import TorchExport, is_torch_export, read_torch_export
    from pjrt.stablehlo.files.torch_folder import (
        TorchArgument,
        TorchFolder,
        TorchInput,
        TorchResult,
        TorchSource,
        is_torch_folder,
        read_torch_folder,
    )
    from pjrt.stablehlo.ir.location import Location
    from pjrt.stablehlo.ir.operation import Block, Function, Operation, ParsedProgram, Value
    from pjrt.stablehlo.ir.tree import CustomNode, Tree, TreeKind
    from pjrt.stablehlo.ir.types import (
        FunctionType,
        FutureType,
        OpaqueType,
        Quantization,
        TensorType,
        TokenType,
        TupleType,
        ValueType,
    )
    from pjrt.stablehlo.ir.unparsing import unparse
    from pjrt.stablehlo.reading.conversion import (
        current_version,
        fingerprint,
        from_hlo,
        minimum_version,
        needed_version,
        partitioning_of,
        plain,
        serialize,
        to_hlo,
        to_module,
        to_text,
        with_entry,
        with_partitioning,
    )
    from pjrt.stablehlo.reading.parser import parse
    from pjrt.stablehlo.reading.reader import read, read_file
    from pjrt.stablehlo.transforms.cutting import Cut, Cutter, cut
    from pjrt.stablehlo.transforms.partitioner import Partitioned, partition
    from pjrt.stablehlo.transforms.refinement import refine, select_platform
    from pjrt.stablehlo.transforms.straightening import Source, StraightLine, straighten

__all__ = [
    "ArgumentInfo",
    "ArrayRole",
    "Block",
    "CallSignature",
    "CollectiveCost",
    "CollectiveTotal",
    "Cost",
    "CustomNode",
    "Cut",
    "Cutter",
    "Encoding",
    "ExportedArray",
    "Function",
    "FunctionType",
    "FutureType",
    "JaxExport",
    "Location",
    "MemoryStep",
    "ModelPackage",
    "NamedSharding",
    "OpaqueType",
    "Operation",
    "OperationCost",
    "OperationInfo",
    "Parameter",
    "ParsedProgram",
    "Partitioned",
    "PeakArray",
    "PeakMemory",
    "ProgramInfo",
    "Quantization",
    "Result",
    "ResultInfo",
    "SavedModel",
    "SavedModelArgument",
    "SavedModelSource",
    "Signature",
    "Source",
    "StraightLine",
    "TensorType",
    "TokenType",
    "TorchArgument",
    "TorchExport",
    "TorchFolder",
    "TorchInput",
    "TorchResult",
    "TorchSource",
    "Tree",
    "TreeKind",
    "TupleType",
    "Value",
    "ValueType",
    "Version",
    "artifact_version",
    "cost",
    "current_version",
    "cut",
    "encoding_of",
    "fingerprint",
    "from_hlo",
    "inspect",
    "is_saved_model",
    "is_torch_export",
    "is_torch_folder",
    "minimum_version",
    "needed_version",
    "parse",
    "parse_for_one_device",
    "parse_hlo_text",
    "partition",
    "partitioning_of",
    "peak_memory",
    "plain",
    "read",
    "read_file",
    "read_jax_export",
    "read_model_package",
    "read_saved_model",
    "read_torch_export",
    "read_torch_folder",
    "refine",
    "select_platform",
    "serialize",
    "signature",
    "static_check",
    "straighten",
    "supports",
    "to_hlo",
    "to_module",
    "to_text",
    "unparse",
    "vet",
    "with_entry",
    "with_partitioning",
]

_HOMES = {
    ".facts.compatibility": "static_check supports",
    ".analysis.cost_analysis": "CollectiveCost CollectiveTotal Cost OperationCost cost parse_for_one_device",
    ".facts.inspection": "OperationInfo ProgramInfo inspect",
    ".analysis.memory_analysis": "ArrayRole MemoryStep PeakArray PeakMemory peak_memory",
    ".reading.conversion": (
        "current_version fingerprint from_hlo minimum_version needed_version partitioning_of plain serialize to_hlo "
        "to_module to_text with_entry with_partitioning"
    ),
    ".transforms.cutting": "Cut Cutter cut",
    ".transforms.straightening": "Source StraightLine straighten",
    ".files.hlo_text": "parse_hlo_text",
    ".files.jax_export": "ExportedArray JaxExport NamedSharding read_jax_export",
    ".files.model_package": "ModelPackage read_model_package",
    ".files.saved_model": "SavedModel SavedModelArgument SavedModelSource is_saved_model read_saved_model",
    ".files.torch_export": "TorchExport is_torch_export read_torch_export",
    ".files.torch_folder": (
        "TorchArgument TorchFolder TorchInput TorchResult TorchSource is_torch_folder read_torch_folder"
    ),
    ".encodings.format": "Encoding Version artifact_version encoding_of",
    ".ir.location": "Location",
    ".ir.operation": "Block Function Operation ParsedProgram Value",
    ".reading.parser": "parse",
    ".reading.reader": "read read_file",
    ".encodings.safe_parse": "vet",
    ".transforms.refinement": "refine select_platform",
    ".transforms.partitioner": "Partitioned partition",
    ".facts.signatures": "ArgumentInfo CallSignature Parameter Result ResultInfo Signature signature",
    ".ir.tree": "CustomNode Tree TreeKind",
    ".ir.types": "FunctionType FutureType OpaqueType Quantization TensorType TokenType TupleType ValueType",
    ".ir.unparsing": "unparse",
}


if not TYPE_CHECKING:  # a type checker has the names from above; with these functions it would accept any other
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
