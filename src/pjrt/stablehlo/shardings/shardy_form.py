"""XLA's shardings over the axes of a mesh in the form of Shardy's dialect.

Where Shardy is to partition a program, XLA since jaxlib 0.12 spells the shardings of its HLO so: they are Shardy's,
without its dialect. XLA itself takes that spelling back only from some programs, and ends the process over others;
GSPMD does not end over it, and older versions do not know it. Every XLA knows the dialect.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pjrt.api.errors import UnimplementedError
from pjrt.stablehlo import jaxlib
from pjrt.stablehlo._hlo_conversion import take_tuple_apart
from pjrt.stablehlo._mlir import MlirModule
from pjrt.stablehlo.mlir_walk import top_level, walk
from pjrt.stablehlo.shardings.mesh_sharding import Axis, Mesh, MeshSharding
from pjrt.stablehlo.shardings.sharding_parser import is_over_mesh, parse_mesh_sharding

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
