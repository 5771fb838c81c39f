"""Conversions between HLO protos and MLIR, by XLA's own converters, and what these leave undone."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from pjrt.api.errors import DataLossError, InvalidArgumentError, UnimplementedError
from pjrt.stablehlo.encodings import hlo_proto, jaxlib
from pjrt.stablehlo.ir import mlir_module
from pjrt.stablehlo.ir.mlir_module import MlirModule, inline, shortened, top_level, walk
from pjrt.stablehlo.ir.sharding import Axis, Mesh, MeshSharding, axes_of
from pjrt.stablehlo.ir.sharding_parser import is_over_mesh, parse_mesh, parse_mesh_axes, parse_mesh_sharding

# ``dynamic-slice`` and ``dynamic-update-slice`` once took their start indices in one operand, a vector; XLA still
# accepts and compiles that (PyTorch/XLA sends it for ``torch.randperm``), but its converter does not. Each such
# operand
# becomes one scalar a dimension here: a slice of the vector, reshaped.

_VECTOR_AT = {b"dynamic-slice": 1, b"dynamic-update-slice": 2}
"""The index of the operand that is the vector of start indices, which is the last operand then."""


def modernized(module: bytes) -> bytes:
    """Return the ``HloModuleProto`` without older forms; the same object if it has none.

    Raises:
        DataLossError: the module is corrupt.
    """
    if not any(opcode in module for opcode in _VECTOR_AT):
        return module
    proto = hlo_proto.parse_message("HloModuleProto", module)
    ids = {instruction.id for computation in proto.computations for instruction in computation.instructions}
    rewritten = [_rewrite(computation.instructions, ids) for computation in proto.computations]
    return bytes(proto.SerializeToString()) if any(rewritten) else module


def _rewrite(instructions: Any, ids: set[int]) -> bool:
    """Rewrite the older instructions of a computation; return whether there were any."""
    by_id = {instruction.id: instruction for instruction in instructions}
    highest = max(by_id, default=0)
    older = [
        (at, instruction, by_id[instruction.operand_ids[-1]])
        for at, instruction in enumerate(instructions)
        if _takes_a_vector(instruction, by_id)
    ]
    for at, instruction, vector in reversed(older):  # the last first: the places of the others stay as they are
        element_type, scalars = vector.shape.element_type, []
        for index in range(vector.shape.dimensions[0]):
            name = b"%s.start.%d" % (instruction.name, index)
            slice_id, scalar_id = _free_id(highest, ids), _free_id(highest, ids)
            _insert(
                instructions,
                at + 2 * index,
                element_type,
                [1],
                name=name + b".slice",
                opcode=b"slice",
                slice_dimensions=[{"start": index, "limit": index + 1, "stride": 1}],
                id=slice_id,
                operand_ids=[vector.id],
            )
            _insert(
                instructions,
                at + 2 * index + 1,
                element_type,
                [],
                name=name,
                opcode=b"reshape",
                id=scalar_id,
                operand_ids=[slice_id],
            )
            scalars.append(scalar_id)
        instruction.operand_ids[-1:] = scalars
    return bool(older)


def _takes_a_vector(instruction: Any, by_id: dict[int, Any]) -> bool:
    at, operands = _VECTOR_AT.get(instruction.opcode), instruction.operand_ids
    if at is None or len(operands) != at + 1 or operands[0] not in by_id or operands[at] not in by_id:
        return False
    # One index for each dimension of the operand: a damaged size must not make endless work.
    return list(by_id[operands[at]].shape.dimensions) == [len(by_id[operands[0]].shape.dimensions)]


def _free_id(above: int, ids: set[int]) -> int:
    """Take an id that no instruction has, near those of the computation: ids may say which computation it is."""
    id_ = above + 1
    while id_ in ids:
        id_ += 1
    ids.add(id_)
    return id_


def _insert(instructions: Any, at: int, element_type: int, dimensions: list[int], **fields: Any) -> None:
    layout = {"minor_to_major": range(len(dimensions))}
    shape = {"element_type": element_type, "dimensions": dimensions, "layout": layout}
    instructions.insert(at, hlo_proto.new_message("HloInstructionProto", shape=shape, **fields))


# XLA's converter from HLO to StableHLO keeps the axes and loses the order of the mesh's devices, and so does its
# partitioner since jaxlib 0.12: other devices would exchange values.

_TAG = b"\xea\x05"
"""How the field ``mesh_axes_replica_group_list`` of an instruction begins."""


def with_listed_groups(module: bytes) -> bytes:
    """Return the ``HloModuleProto`` with a list of devices for each group; the same object if it has no others.

    Raises:
        DataLossError: the module is corrupt.
    """
    if _TAG not in module:
        return module
    proto, changed = hlo_proto.parse_message("HloModuleProto", module), False
    for computation in proto.computations:
        for instruction in computation.instructions:
            if not instruction.HasField("mesh_axes_replica_group_list"):
                continue
            stated, changed = instruction.mesh_axes_replica_group_list, True
            try:
                mesh = Mesh.of_proto(stated.mesh)
                groups = mesh.groups_along(axes_of(stated.axes, list(mesh.axes)))
            except ValueError as error:
                raise DataLossError(f"corrupt groups of devices in {instruction.name!r}: {error}") from error
            instruction.ClearField("mesh_axes_replica_group_list")
            instruction.collective_device_list.replica_groups.extend(
                hlo_proto.new_message("ReplicaGroup", replica_ids=group) for group in groups
            )
    return bytes(proto.SerializeToString()) if changed else module


_GROUPS = "replica_groups"


def list_groups(module: MlirModule) -> None:
    """List the devices of each group that is stated as axes of a mesh, in place.

    Raises:
        InvalidArgumentError: the program lacks the mesh, or the mesh an axis.
    """
    ir = jaxlib.load("mlir.ir", "list the devices of groups")
    with module as mlir:
        named = {each.attributes["sym_name"].value: each for each in top_level(mlir) if each.name == "sdy.mesh"}

        def mesh(name: str) -> Mesh:
            if name not in named:
                raise InvalidArgumentError(f"expected the mesh {name} in the program, found {', '.join(named)}")
            return parse_mesh(str(named[name].attributes["mesh"]))

        for operation in walk(mlir.operation):
            attributes = operation.attributes
            groups = parse_mesh_axes(str(attributes[_GROUPS]), mesh) if _GROUPS in attributes else None
            if groups is not None:
                attributes[_GROUPS] = ir.DenseIntElementsAttr.get(np.array(groups, np.int64))


def from_hlo_proto(code: bytes, *, legalized: bool) -> MlirModule:
    """Return the MLIR module for an HLO proto of any kind.

    Args:
        code: the proto.
        legalized: whether the module is to be StableHLO alone; otherwise it may hold deprecated operations and those of
            the mhlo dialect.

    Raises:
        InvalidArgumentError: XLA refuses the proto, or an operation has no counterpart in StableHLO.
    """
    place = hlo_proto.screen(code)
    xla = jaxlib.load("_jax", "convert HLO protos")
    try:
        converted = xla.mlir.hlo_to_stablehlo(with_listed_groups(modernized(code[place.begin : place.end])))
    except (MemoryError, RuntimeError, ValueError) as error:  # of the standard library of C++: senseless sizes
        raise InvalidArgumentError(shortened(str(error))) from error
    module = mlir_module.parse(converted)
    _take_optimizations_back(module)
    if legalized:
        _legalize(module)
    return module


def to_hlo_proto(module: MlirModule, *, tuple_result: bool) -> bytes:
    """Return the ``HloModuleProto`` for an MLIR module.

    Raises:
        InvalidArgumentError: XLA refuses the module; the message is XLA's own.
    """
    xla, code = jaxlib.load("_jax", "convert to HLO protos"), mlir_module.write_bytecode(module)
    try:
        computation = xla.mlir.mlir_module_to_xla_computation(code, use_tuple_args=False, return_tuple=tuple_result)
        proto: bytes = computation.as_serialized_hlo_module_proto()
    except (RuntimeError, ValueError) as error:
        raise InvalidArgumentError(shortened(str(error))) from error
    return proto


def _take_optimizations_back(module: MlirModule) -> None:
    """Replace the operations that XLA's own optimizations make, which a compiler does not take, and drop their layouts.

    The layouts are those of buffers of the device that the program was optimized for.
    """
    ir = jaxlib.load("mlir.ir", "convert HLO protos")
    with module as mlir, ir.Location.unknown():
        operations = list(walk(mlir.operation))
        if not any(operation.name in _OPTIMIZED for operation in operations):
            return
        for operation in reversed(operations):  # the inner ones before those that hold them
            for name in _LAYOUTS:
                if name in operation.attributes and operation.name not in _OPTIMIZED:
                    del operation.attributes[name]
            if operation.name == "mhlo.copy":
                operation.results[0].replace_all_uses_with(operation.operands[0])
                operation.erase()
            elif operation.name == "mhlo.fusion":
                inline(operation)
            elif operation.name == "mhlo.bitcast":
                _replace_bitcast(operation)


_OPTIMIZED = frozenset({"mhlo.bitcast", "mhlo.copy", "mhlo.fusion"})
_LAYOUTS = ("result_layout", "xla_shape")


def _replace_bitcast(operation: Any) -> None:
    """Replace a bitcast, which takes the memory of an array for that of one of another shape and layout."""
    ir = jaxlib.load("mlir.ir", "convert HLO protos")
    place: dict[str, Any] = {"loc": operation.location, "ip": ir.InsertionPoint(operation)}
    (value,), (result,) = operation.operands, operation.results
    element = result.type.element_type
    if math.prod(value.type.shape) != math.prod(result.type.shape):
        return  # what such a one means depends on the device
    if value.type.element_type != element:
        type_ = ir.RankedTensorType.get(value.type.shape, element)
        value = ir.Operation.create("stablehlo.bitcast_convert", [type_], [value], **place).result
    orders = [
        list(reversed(list(operation.attributes[name]))) if name in operation.attributes else list(range(rank))
        for name, rank in (("source_layout", len(value.type.shape)), ("result_layout", len(result.type.shape)))
    ]

    def transposed(value: Any, permutation: list[int]) -> Any:
        if permutation == sorted(permutation):
            return value
        type_ = ir.RankedTensorType.get([value.type.shape[d] for d in permutation], element)
        attributes = {"permutation": ir.DenseI64ArrayAttr.get(permutation)}
        return ir.Operation.create("stablehlo.transpose", [type_], [value], attributes, **place).result

    source, target = orders
    in_memory = ir.RankedTensorType.get([result.type.shape[d] for d in target], element)
    value = ir.Operation.create("stablehlo.reshape", [in_memory], [transposed(value, source)], **place).result
    result.replace_all_uses_with(transposed(value, [target.index(d) for d in range(len(target))]))
    operation.erase()


def _legalize(module: MlirModule) -> None:
    """Replace deprecated operations and those of the mhlo dialect that have a counterpart.

    Raises:
        InvalidArgumentError: an operation has no counterpart, as some of optimized HLO have none.
    """
    with module as mlir:
        for operation in reversed(list(walk(mlir.operation))):  # the inner ones before those that hold them
            if operation.name == "stablehlo.custom_call":
                take_tuple_apart(operation)
            else:
                _replace_mhlo(operation)
    try:
        mlir_module.run_passes(module, _LEGALIZATION)
    except InvalidArgumentError as error:
        match = _WITHOUT_COUNTERPART.search(error.message)
        if match is None:
            raise
        raise InvalidArgumentError(
            f"expected HLO that has a counterpart in StableHLO, found the operation {match[1]}, as XLA's optimizations "
            "make it; give the program before them, such as the dump whose name ends in before_optimizations.txt"
        ) from error


_WITHOUT_COUNTERPART = re.compile(r"failed to legalize operation 'mhlo\.(\w+)'")
_LEGALIZATION = (
    "builtin.module(func.func(chlo-legalize-to-stablehlo,stablehlo-legalize-deprecated-ops{fail-on-unused=false}),"
    "hlo-legalize-to-stablehlo)"
)


def _replace_mhlo(operation: Any) -> None:
    """Replace an operation of XLA's that StableHLO's passes would leave as a custom call."""
    name = operation.name
    if name == "mhlo.erf":
        _replace(operation, "chlo.erf", {})
    elif name == "mhlo.topk" and operation.attributes["largest"].value:
        _replace(operation, "chlo.top_k", {"k": operation.attributes["k"]})


def _replace(operation: Any, name: str, attributes: dict[str, Any]) -> None:
    replacement = _create(operation, name, [result.type for result in operation.results], attributes)
    for old, new in zip(operation.results, replacement.results, strict=True):
        old.replace_all_uses_with(new)
    operation.erase()


def take_tuple_apart(operation: Any) -> Any:
    """Give a custom call several results in place of one tuple, which is all that HLO has; return the call."""
    ir = jaxlib.load("mlir.ir", "convert HLO protos")
    if len(operation.results) != 1 or not isinstance(operation.results[0].type, ir.TupleType):
        return operation
    readers = [use.owner.operation for use in operation.results[0].uses]
    if any(reader.name != "stablehlo.get_tuple_element" for reader in readers):
        return operation
    tuple_, attributes = operation.results[0].type, operation.attributes
    types = [tuple_.get_type(number) for number in range(tuple_.num_types)]
    named = {attributes[number].name: attributes[number].attr for number in range(len(attributes))}
    replacement = _create(operation, operation.name, types, named)
    for reader in readers:
        reader.results[0].replace_all_uses_with(replacement.results[reader.attributes["index"].value])
        reader.erase()
    operation.erase()
    return replacement


def _create(like: Any, name: str, types: list[Any], attributes: dict[str, Any]) -> Any:
    """Return a new operation in front of another, with its operands and its location."""
    ir = jaxlib.load("mlir.ir", "convert HLO protos")
    return ir.Operation.create(
        name,
        results=types,
        operands=list(like.operands),
        attributes=attributes,
        loc=like.location,
        ip=ir.InsertionPoint(like),
    )


# Where Shardy is to partition a program, XLA since jaxlib 0.12 spells the shardings of its HLO so: they are Shardy's,
# without its dialect. XLA itself takes that spelling back only from some programs, and ends the process over others;
# GSPMD does not end over it, and older versions do not know it. Every XLA knows the dialect.

_PURPOSE = "spell shardings as Shardy does"
_XLA, _SHARDY = "mhlo.sharding", "sdy.sharding"
_INTO_PART, _OUT_OF_PART = "xla.sdy.GlobalToLocalShape", "xla.sdy.LocalToGlobalShape"
_PART = "xla.sdy.manual_computation_body"
_OF_VALUES = ("arg_attrs", "res_attrs")


def to_shardy(module: MlirModule) -> None:
    """Spell the shardings of a program over the axes of a mesh as Shardy does, in place.

    Raises:
        InvalidArgumentError: the numbers of a sharding contradict each other.
        UnimplementedError: a sharding is of a form that is not known here, or that this jaxlib's Shardy does not know.
    """
    with module as mlir:
        stated = [parse_mesh_sharding(text) for each in walk(mlir.operation) for text in _over_mesh(each)]
        if stated:
            jaxlib.dialect("sdy").register_dialect(module.context)
            _Respelling(mlir, next((each.mesh for each in stated if each.mesh.axes), stated[0].mesh)).run()


def drop_tiles(module: MlirModule) -> None:
    """Drop the shardings of GSPMD's from a program that states the same ones as Shardy's, in the form for HLO.

    JAX 0.6 writes both. XLA takes such a program for GSPMD's, and refuses it then for its custom calls of Shardy's.
    """
    with module as mlir:
        for operation in walk(mlir.operation):
            if _XLA in operation.attributes:
                del operation.attributes[_XLA]
            for name in _OF_VALUES if operation.name == "func.func" else ():
                if name in operation.attributes:
                    rows = operation.attributes[name]
                    kept = [{item.name: item.attr for item in row if item.name != _XLA} for row in rows]
                    operation.attributes[name] = type(rows).get(
                        [type(row).get(items) for row, items in zip(rows, kept, strict=True)]
                    )


def _over_mesh(operation: Any) -> Iterator[str]:
    """Yield the shardings over a mesh of an operation, and of a function's arguments and results."""
    attributes = operation.attributes
    rows = [attributes[name] for name in _OF_VALUES if name in attributes] if operation.name == "func.func" else []
    for holder in (attributes, *(row for all_rows in rows for row in all_rows)):
        if _XLA in holder:
            yield from filter(is_over_mesh, _elements(_spelled(holder)))


def _spelled(holder: Any) -> str:
    """Return the sharding that attributes state. (It may also be a serialized message, which is no text.)"""
    return str(holder[_XLA].value_bytes.decode(errors="replace"))


def _elements(text: str) -> list[str]:
    """Return the shardings of the elements of a tuple; the sharding of another value alone."""
    if not text.lstrip().startswith("{{"):
        return [text]
    elements, depth, begin = [], 0, 0
    for match in re.finditer(r"\"(?:[^\"\\]|\\.)*\"|[{}]", text):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if (match[0], depth) == ("{", 2):
            begin = match.start()
        elif (match[0], depth) == ("}", 1):
            elements.append(text[begin : match.end()])
    return elements


class _Respelling:
    """A program whose shardings are being spelled as Shardy does.

    Args:
        mlir: the program.
        mesh: the mesh by which values are replicated whose sharding states none.
    """

    def __init__(self, mlir: Any, mesh: Mesh) -> None:
        self._ir = jaxlib.load("mlir.ir", _PURPOSE)
        self._mlir = mlir
        self._mesh = mesh
        self._names: dict[str, str] = {}
        self._symbols = {each.attributes["sym_name"].value for each in top_level(mlir) if "sym_name" in each.attributes}

    def run(self) -> None:
        """Spell all shardings anew."""
        self._rename_parts()
        for operation in list(walk(self._mlir.operation)):
            if _target(operation) in (_INTO_PART, _OUT_OF_PART):
                take_tuple_apart(operation)
        for operation in list(walk(self._mlir.operation)):
            if _target(operation) == _OUT_OF_PART and _XLA in operation.attributes:
                self._make_part(operation)
        for operation in list(walk(self._mlir.operation)):
            if operation.name == "func.func":
                self._spell_function(operation)
            elif _XLA in operation.attributes:
                self._spell(operation)

    def _rename_parts(self) -> None:
        """Give functions other names: by theirs, XLA takes them for parts in its own form."""
        ir, names = self._ir, {}
        for operation in top_level(self._mlir):
            if operation.name == "func.func" and operation.attributes["sym_name"].value.startswith(_PART):
                old = operation.attributes["sym_name"].value
                names[old] = self._new_symbol(old.removeprefix("xla.sdy."))
                operation.attributes["sym_name"] = ir.StringAttr.get(names[old])
        for operation in walk(self._mlir.operation) if names else ():
            if operation.name == "func.call" and operation.attributes["callee"].value in names:
                operation.attributes["callee"] = ir.FlatSymbolRefAttr.get(names[operation.attributes["callee"].value])

    def _make_part(self, end: Any) -> None:
        """Replace the borders of a part for one device, and the call between them, by Shardy's operation for both."""
        ir = self._ir
        calls = {value.owner.operation for value in end.operands if not isinstance(value, ir.BlockArgument)}
        call = calls.pop() if len(calls) == 1 else None
        begins = {getattr(value.owner, "operation", None) for value in call.operands} if call is not None else set()
        begin = begins.pop() if len(begins) == 1 and None not in begins else None
        inner = [] if begin is None else list(begin.results)
        if (
            call is None
            or call.name != "func.call"
            or list(call.operands) != inner
            or list(call.results) != list(end.operands)
            or (begin is not None and _target(begin) != _INTO_PART)
        ):
            raise UnimplementedError(f"expected {_OUT_OF_PART} of what a call of a part gives, found {end}")
        outer = [] if begin is None else list(begin.operands)
        axes = {
            axis: None
            for holder in (call, *([] if begin is None else [begin]))
            for text in _over_mesh(holder)
            for axis in self._by_shardy(parse_mesh_sharding(text).manual)
        }
        part = ir.Operation.create(
            "sdy.manual_computation",
            results=[result.type for result in end.results],
            operands=outer,
            attributes={
                "in_shardings": self._per_value([self._of_operand(value) for value in outer], outer),
                "out_shardings": self._per_value(list(map(parse_mesh_sharding, _over_mesh(end))), end.results),
                "manual_axes": self._attribute(f"#sdy<manual_axes{{{', '.join(axes)}}}>"),
            },
            regions=1,
            loc=end.location,
            ip=ir.InsertionPoint(end),
        )
        with end.location:
            block = part.regions[0].blocks.append(*(value.type for value in inner))
        with ir.InsertionPoint(block), end.location:
            results = [result.type for result in call.results]
            named = {"callee": call.attributes["callee"]}
            inside = ir.Operation.create("func.call", results=results, operands=list(block.arguments), attributes=named)
            ir.Operation.create("sdy.return", operands=list(inside.results))
        for old, new in zip(end.results, part.results, strict=True):
            old.replace_all_uses_with(new)
        for operation in (end, call, begin):
            if operation is not None:
                operation.erase()

    def _of_operand(self, value: Any) -> MeshSharding:
        """Return the sharding by which a value enters a part: that of the operation that has it."""
        texts = [] if isinstance(value, self._ir.BlockArgument) else list(_over_mesh(value.owner.operation))
        if len(texts) != 1:
            raise UnimplementedError(f"expected {_INTO_PART} of a value with a sharding over a mesh, found {value}")
        return parse_mesh_sharding(texts[0])

    def _spell_function(self, function: Any) -> None:
        """Spell the shardings of the arguments and results; inner functions have those of their operations."""
        ir, attributes = self._ir, function.attributes
        is_inner = "sym_visibility" in attributes and attributes["sym_visibility"].value == "private"
        type_ = ir.FunctionType(attributes["function_type"].value)
        for name, types in zip(_OF_VALUES, (type_.inputs, type_.results), strict=True):
            rows = []
            stated = attributes[name] if name in attributes else [ir.DictAttr.get({})] * len(types)
            for row, value_type in zip(stated, types, strict=True):
                named = {each.name: each.attr for each in row}
                (sharding, *others) = self._shardings(named) if _XLA in named else [None]
                if sharding is not None and not others and not sharding.manual:
                    if not is_inner:
                        spelled = self._spelled(sharding, _rank(value_type))
                        named[_SHARDY] = self._attribute(f"#sdy.sharding{spelled}")
                    del named[_XLA]
                rows.append(ir.DictAttr.get(named))
            if name in attributes:
                attributes[name] = ir.ArrayAttr.get(rows)

    def _spell(self, operation: Any) -> None:
        """Spell the sharding of the results of an operation."""
        ir = self._ir
        stated = self._shardings(operation.attributes)
        shardings = [each for each in stated if each is not None]
        if len(shardings) < len(stated) or _target(operation) in (_INTO_PART, _OUT_OF_PART):
            if any(True for _ in _over_mesh(operation)):
                raise UnimplementedError(f"expected shardings over a mesh alone, found {operation}")
            return
        del operation.attributes[_XLA]
        is_ranked = all(isinstance(result.type, ir.RankedTensorType) for result in operation.results)
        if not is_ranked or len(shardings) != len(operation.results) or any(map(_is_all_manual, shardings)):
            return
        if _target(operation) != "Sharding":
            operation.attributes[_SHARDY] = self._per_value(shardings, operation.results)
            return
        value = operation.operands[0]
        if _rank(value.type):
            spelled = self._attribute(f"#sdy.sharding{self._spelled(shardings[0], _rank(value.type))}")
            constraint = ir.Operation.create(
                "sdy.sharding_constraint",
                results=[operation.results[0].type],
                operands=[value],
                attributes={"sharding": spelled},
                loc=operation.location,
                ip=ir.InsertionPoint(operation),
            )
            value = constraint.results[0]
        operation.results[0].replace_all_uses_with(value)
        operation.erase()

    def _shardings(self, holder: Any) -> list[MeshSharding | None]:
        """Return the shardings that attributes state; None for those of GSPMD's that cut a value."""
        known = {"{replicated}": MeshSharding(self._mesh)}
        return [
            parse_mesh_sharding(text) if is_over_mesh(text) else known.get(text.strip())
            for text in _elements(_spelled(holder))
        ]

    def _per_value(self, shardings: Sequence[MeshSharding], values: Iterable[Any]) -> Any:
        pairs = zip(shardings, values, strict=True)
        spelled = ", ".join(self._spelled(sharding, _rank(value.type)) for sharding, value in pairs)
        return self._attribute(f"#sdy.sharding_per_value<[{spelled}]>")

    def _spelled(self, sharding: MeshSharding, rank: int) -> str:
        """Return Shardy's spelling of a sharding, such as ``<@mesh, [{"x"}, {}], unreduced={"y"}>``."""
        mesh = self._name_of(sharding.mesh if sharding.mesh.axes or sharding.device is not None else self._mesh)
        if sharding.device is not None:
            return f"<@{mesh}, []>"
        dimensions = [*sharding.dimensions, *[()] * (rank - len(sharding.dimensions))]
        cuts = (
            ", ".join([*self._by_shardy(axes), *["?"] * (number in sharding.open)])
            for number, axes in enumerate(dimensions)
        )
        kind = "" if sharding.reduction == "sum" else sharding.reduction
        more = "".join(
            f", {name}={prefix}{{{', '.join(self._by_shardy(axes))}}}"
            for name, prefix, axes in (("replicated", "", sharding.replicated), ("unreduced", kind, sharding.unreduced))
            if axes
        )
        return f"<@{mesh}, [{', '.join(f'{{{cut}}}' for cut in cuts)}]{more}>"

    def _by_shardy(self, axes: Iterable[Axis]) -> Iterator[str]:
        for axis in axes:
            name = str(self._ir.StringAttr.get(axis.name))
            yield name if axis.size is None else f"{name}:({axis.before}){axis.size}"

    def _name_of(self, mesh: Mesh) -> str:
        """Return the symbol of a mesh, and declare it if it is a new one."""
        ir, key = self._ir, str(mesh)
        if key not in self._names:
            self._names[key] = self._new_symbol("mesh" if mesh.axes else f"maximal_mesh_{mesh.devices[0]}")
            axes = ", ".join(f"{ir.StringAttr.get(name)}={size}" for name, size in mesh.axes.items())
            is_plain = mesh.devices == tuple(range(len(mesh.devices))) and mesh.axes
            listed = "" if is_plain else f", device_ids={list(mesh.devices)}"
            with ir.Location.unknown():
                ir.Operation.create(
                    "sdy.mesh",
                    attributes={
                        "sym_name": ir.StringAttr.get(self._names[key]),
                        "mesh": self._attribute(f"#sdy.mesh<[{axes}]{listed}>"),
                    },
                    ip=ir.InsertionPoint.at_block_begin(self._mlir.body),
                )
        return self._names[key]

    def _new_symbol(self, name: str) -> str:
        found, number = name, 0
        while found in self._symbols:
            found, number = f"{name}_{number}", number + 1
        self._symbols.add(found)
        return found

    def _attribute(self, text: str) -> Any:
        try:
            return self._ir.Attribute.parse(text)
        except self._ir.MLIRError as error:
            raise UnimplementedError(f"expected a sharding that this jaxlib's Shardy knows, found {text}") from error


def _is_all_manual(sharding: MeshSharding) -> bool:
    """Whether each device has a value of its own along all axes."""
    return bool(sharding.manual) and not sharding.mesh.others(sharding.manual)


def _rank(type_: Any) -> int:
    return int(getattr(type_, "rank", 0))


def _target(operation: Any) -> str:
    attributes = operation.attributes
    return str(attributes["call_target_name"].value) if "call_target_name" in attributes else ""
