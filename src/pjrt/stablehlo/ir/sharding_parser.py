"""The parser of shardings, as XLA (``mhlo.sharding``) and Shardy (``sdy.sharding``) write them: all become tiles.

What a program states, its meshes and how it cuts its arguments and results, is also here in a form for people.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import numpy as np

from pjrt.api.errors import InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.stablehlo.ir.argument_shapes import StatedShape
from pjrt.stablehlo.ir.sharding import REDUCTIONS, REPLICATED, Axis, Mesh, MeshSharding, Shape, Sharding
from pjrt.stablehlo.ir.types import TensorType, ValueType

T = TypeVar("T")

_NAME = r"(?:\"((?:[^\"\\]|\\.)*)\"|'((?:[^'\\]|\\.)*)')"
_REDUCTION = rf"({'|'.join(REDUCTIONS)})?"


class _Scanner:
    """Reads a text from left to right; spaces between its parts have no meaning."""

    def __init__(self, text: str, example: str, error: type[PjrtError]) -> None:
        self._text = text
        self._at = 0
        self._example = example
        self._error = error

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Make an error of the numbers in the text one that names the text."""
        try:
            yield
        except PjrtError:
            raise
        except ValueError as error:
            self.fail(error)

    def take(self, pattern: str) -> re.Match[str] | None:
        """Return the next part and go behind it, or None if it does not match."""
        match = re.compile(rf"\s*(?:{pattern})").match(self._text, self._at)
        self._at = self._at if match is None else match.end()
        return match

    def expect(self, pattern: str) -> re.Match[str]:
        """Return the next part, which must match."""
        return self.take(pattern) or self.fail()

    def fail(self, reason: object = None) -> NoReturn:
        """Raise an error that names the text."""
        error = self._error if reason is None else InvalidArgumentError
        why = f"not understood from {self._text[self._at :][:40]!r} on" if reason is None else reason
        raise error(f"expected {self._example}, found {self._text.strip()[:120]}: {why}")

    def items(self, begin: str, item: Callable[[], T], end: str) -> list[T]:
        """Return what is between brackets, separated by commas."""
        self.expect(begin)
        items: list[T] = []
        while not self.take(end):
            if items:
                self.expect(",")
            items.append(item())
        return items

    def number(self) -> int:
        return int(self.expect(r"\d+")[0])

    def numbers(self, begin: str, end: str) -> Shape:
        return tuple(self.items(begin, self.number, end))

    def name(self) -> str:
        match = self.expect(_NAME)
        return str(match[1] if match[1] is not None else match[2])

    def axis(self) -> Axis:
        name = self.name()
        part = self.take(r":\s*\(\s*(\d+)\s*\)\s*(\d+)")
        return Axis(name) if part is None else Axis(name, int(part[1]), int(part[2]))

    def dimensions(self) -> dict[str, Any]:
        """Return the axes of each dimension, such as ``[{"x", ?}p1, {}]``, as fields of a ``MeshSharding``."""

        def cut() -> list[Any]:
            axes = self.items(r"\{", lambda: self.take(r"\?") or self.axis(), r"\}")
            self.take(r"p\d+")
            return axes

        cuts = self.items(r"\[", cut, r"\]")
        axes = tuple(tuple(axis for axis in cut if isinstance(axis, Axis)) for cut in cuts)
        return {"dimensions": axes, "open": frozenset(n for n, cut in enumerate(cuts) if len(cut) > len(axes[n]))}

    def sets(self, *names: str) -> dict[str, Any]:
        """Return sets of axes, such as ``, replicated={"x"}, unreduced=max{"y"}``, as fields of a ``MeshSharding``."""
        found: dict[str, Any] = {}
        while (match := self.take(rf",\s*({'|'.join(names)})\s*=\s*{_REDUCTION}")) is not None:
            if match[1] in found or (match[2] and match[1] != "unreduced"):
                self.fail()
            found[match[1]] = tuple(self.items(r"\{", self.axis, r"\}"))
            if match[2]:
                found["reduction"] = match[2]
        return found

    def mesh_axes(self) -> dict[str, int]:
        """Return the sizes of axes by their names, such as ``["x"=4, "y"=2]``."""

        def size() -> tuple[str, int]:
            name = self.name()
            self.expect("=")
            return name, self.number()

        sizes = self.items(r"\[", size, r"\]")
        if len(dict(sizes)) != len(sizes):
            self.fail("an axis twice")
        return dict(sizes)

    def metadata(self) -> str:
        """Go behind a note in braces, and return it."""
        begin, depth = self._at, 0
        while depth or begin == self._at:
            depth += {"{": 1, "}": -1}.get(self.expect(r"[^{}\"]*(?:\"(?:[^\"\\]|\\.)*\"|\{|\})")[0][-1], 0)
        return self._text[begin : self._at]


# XLA's spellings.

_XLA = "a sharding such as {devices=[2,1]<=[2]} or {mesh['x'=2], [{'x'}, {}]}"


def parse_gspmd(text: str | bytes, rank: int) -> Sharding:
    """Return the sharding of a value that is written as ``{devices=[2,1,4]<=[8] last_tile_dim_replicate}``.

    XLA's newer spelling over the axes of a mesh is read, too (see ``parse_mesh_sharding``), and serialized messages.

    Args:
        text: the sharding.
        rank: the number of dimensions of the value.

    Raises:
        UnimplementedError: the sharding is of an unknown kind.
        InvalidArgumentError: its numbers contradict each other, or the rank.
        DataLossError: the message is no sharding.
    """
    stated = text if isinstance(text, bytes) else text.encode()
    if Sharding.is_serialized(stated):
        return Sharding.from_proto(stated).of_rank(rank)
    text = stated.decode()
    if not text.strip():
        return REPLICATED
    scanner = _Scanner(text, _XLA, UnimplementedError)
    with scanner.reading():
        if is_over_mesh(text):
            named = _mesh_sharding(scanner)
            if named.dimensions and len(named.dimensions) != rank:
                scanner.fail(f"{len(named.dimensions)} dimensions of a value that has {rank}")
            return REPLICATED if named.device is not None else Sharding.of_axes(named).of_rank(rank)
        scanner.expect(r"\{")
        if scanner.take(r"replicated|manual|unknown|maximal\s+device\s*=\s*\d+"):
            _notes(scanner)
            return REPLICATED
        scanner.expect("devices=")
        return _tiled(scanner, rank)


def _tiled(scanner: _Scanner, rank: int) -> Sharding:
    tiles = scanner.numbers(r"\[", r"\]")
    if scanner.take("<="):
        iota = scanner.numbers(r"\[", r"\]")
        order = scanner.numbers(r"\(", r"\)") if scanner.take("T") else range(len(iota))
        devices = np.arange(math.prod(iota)).reshape(iota).transpose(order)
    else:
        devices = np.array([int(number) for number in scanner.expect(r"\d+(?:\s*,\s*\d+)*")[0].split(",")])
    kinds = ["replicated"] if scanner.take("last_tile_dim_replicate") else []
    if scanner.take(r"last_tile_dims\s*="):
        kinds = scanner.items(r"\{", lambda: scanner.expect("replicated|manual|unreduced")[0].strip(), r"\}")
    reduction = _notes(scanner)
    if sorted(devices.ravel().tolist()) != list(range(math.prod(tiles))) or len(tiles) != rank + len(kinds):
        scanner.fail(f"expected each of {math.prod(tiles)} partitions once, in tiles of {rank} dimensions")
    summed = [rank + i for i, kind in enumerate(kinds) if kind == "unreduced"]
    return Sharding.of_grid(devices.reshape(tiles), rank, summed, reduction)


def _notes(scanner: _Scanner) -> str:
    """Read the end of a sharding, and return the reduction of its terms, which XLA notes in the metadata."""
    scanner.take(r"shard_(?:as|like)\s+\d+")
    metadata = scanner.metadata() if scanner.take(r"metadata\s*=") else ""
    scanner.expect(r"\}\s*$")
    names = {name.lower() for name in re.findall(r'op_type="sdy::reduction_op"\s+op_name="(\w*)"', metadata)} or {"sum"}
    if len(names) > 1 or not names <= set(REDUCTIONS):
        scanner.fail(f"a reduction by {', '.join(sorted(names))}")
    return str(names.pop())


def is_over_mesh(text: str) -> bool:
    """Whether a sharding of XLA's is over the axes of a mesh: its third kind (HloShardingV3)."""
    return re.match(r"\s*\{\s*(?:mesh|maximal_mesh|single_device)\b", text) is not None


def parse_mesh_sharding(text: str) -> MeshSharding:
    """Return the sharding that is written as ``{mesh['x'=4,'y'=2], [{'x'}, {}], unreduced=max{'y'}}``.

    Raises:
        UnimplementedError: the text is no such sharding.
        InvalidArgumentError: its numbers contradict each other, or it names an axis that the mesh lacks.
    """
    scanner = _Scanner(text, _XLA, UnimplementedError)
    with scanner.reading():
        return _mesh_sharding(scanner)


def _mesh_sharding(scanner: _Scanner) -> MeshSharding:
    fields: dict[str, Any] = {}
    if scanner.take(r"\{\s*(?:maximal_mesh|single_device)\s*\[\s*device_id\s*="):
        device = scanner.number()
        scanner.expect(r"\]")
        mesh, fields["device"] = Mesh({}, (device,)), device
    else:
        scanner.expect(r"\{\s*mesh")
        axes = scanner.mesh_axes()
        mesh = Mesh.of(axes)
        if scanner.take(r",\s*device_ids\s*=\s*\((?=\s*\d)"):
            mesh = Mesh(axes, scanner.numbers("", r"\)"))
            if mesh == Mesh.of(axes):
                scanner.fail("devices in the order of their numbers, which XLA does not list")
        elif scanner.take(r",\s*device_ids\s*=\s*\("):
            grid = scanner.numbers(r"\[", r"\]")
            mesh = Mesh.of(axes, (), grid, scanner.numbers(r"\(", r"\)") if scanner.take("T") else ())
            scanner.expect(r"\)")
        whole = scanner.take(rf",\s*(?:replicated|(manual)|(unreduced)(?:\s*=\s*{_REDUCTION})?)(?=\s*[,}}])")
        if whole is None:
            scanner.expect(",")
            fields = scanner.dimensions() | scanner.sets("replicated", "manual", "unreduced")
        elif whole[1] or whole[2]:
            fields = {whole[1] or whole[2]: tuple(map(Axis, axes)), "reduction": whole[3] or "sum"}
    if scanner.take(r",\s*metadata\s*="):
        scanner.metadata()
    scanner.expect(r"\}\s*$")
    sharding = MeshSharding(mesh, **fields)
    sharding.check_spelling()
    return sharding


# Shardy's spellings.


def parse_mesh(text: str) -> Mesh:
    """Return the mesh that is written as ``#sdy.mesh<["x"=4, "y"=2], device_ids=[…]>``.

    Raises:
        InvalidArgumentError: the text is no mesh.
    """
    scanner = _Scanner(text, 'a mesh such as <["x"=4, "y"=2]>', InvalidArgumentError)
    with scanner.reading():
        mesh = _shardy_mesh(scanner)
        scanner.expect("$")
    return mesh


def _shardy_mesh(scanner: _Scanner) -> Mesh:
    scanner.expect(r"(?:#sdy\.)?(?:mesh)?<")
    axes = scanner.mesh_axes()
    listed = scanner.numbers(r"\[", r"\]") if scanner.take(r",\s*device_ids\s*=") else ()
    scanner.expect(">")
    return Mesh.of(axes, listed)


def parse_sdy(text: str, mesh: Callable[[str], Mesh], manual: Collection[str] | None = None) -> list[Sharding]:
    """Return the shardings that are written as ``#sdy.sharding<@mesh, [{"x"}, {}]>``, or as a list of such.

    Args:
        text: the attribute as MLIR prints it.
        mesh: finds a mesh by its name.
        manual: the only axes that count; all by default.

    Raises:
        InvalidArgumentError: the text has no sharding, or one that is written otherwise.
    """

    def counting(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return axes if manual is None else tuple(axis for axis in axes if axis.name in manual)

    return [
        Sharding.of_axes(
            dataclasses.replace(
                named, dimensions=tuple(map(counting, named.dimensions)), unreduced=counting(named.unreduced)
            )
        )
        for named in parse_shardy(text, mesh)
    ]


def parse_shardy(text: str, mesh: Callable[[str], Mesh]) -> list[MeshSharding]:
    """Return the shardings over the axes of meshes that Shardy writes; see ``parse_sdy``."""
    scanner = _Scanner(text, "a sharding of Shardy", InvalidArgumentError)

    def one() -> MeshSharding:
        scanner.expect("<")
        match = scanner.take(r"@(?:([\w.$-]+)|\"([^\"]*)\"),")
        if match is None:
            stated = _shardy_mesh(scanner)
            scanner.expect(",")
        else:
            stated = mesh(match[1] or match[2])
        fields = scanner.dimensions() | scanner.sets("replicated", "unreduced")
        scanner.expect(">")
        return MeshSharding(stated, **fields)

    with scanner.reading():
        per_value = scanner.take(r"#sdy\.sharding_per_value<") is not None
        if not per_value and not scanner.take(r"(?=\[)"):
            scanner.take(r"#sdy\.sharding")
            shardings = [one()]
        else:
            shardings = scanner.items(r"\[", one, r"\]")
            if per_value:
                scanner.expect(">")
        scanner.expect("$")
    return shardings


_MESH_AXES = r"#stablehlo\.replica_group_mesh_axes<\s*mesh\s*=\s*(?:@(?:([\w.$-]+)|\"([^\"]*)\")|#stablehlo\.mesh<)"


def parse_mesh_axes(text: str, mesh: Callable[[str], Mesh]) -> list[list[int]] | None:
    """Return the groups of devices that StableHLO writes as ``#stablehlo.replica_group_mesh_axes<mesh = @mesh, …>``.

    Args:
        text: the attribute as MLIR prints it.
        mesh: finds a mesh by its name.

    Returns:
        The devices of each group; None if the text is something else.

    Raises:
        InvalidArgumentError: the text is written otherwise, or names an axis that the mesh lacks.
    """
    scanner = _Scanner(text, "replica groups along the axes of a mesh", InvalidArgumentError)
    begin = scanner.take(_MESH_AXES)
    if begin is None:
        return None
    with scanner.reading():
        stated = mesh(begin[1] or begin[2]) if begin[1] or begin[2] else _stablehlo_mesh(scanner)
        scanner.expect(r",\s*axes\s*=")
        axes = scanner.items(r"\[", lambda: _axis_ref(scanner), r"\]")
        scanner.expect(">$")
        return stated.groups_along(axes)


def _stablehlo_mesh(scanner: _Scanner) -> Mesh:
    def size() -> tuple[str, int]:
        scanner.expect(r"(?:#stablehlo\.mesh_axis)?<\s*name\s*=")
        name = scanner.name()
        scanner.expect(r",\s*size\s*=")
        number = scanner.number()
        scanner.expect(">")
        return name, number

    scanner.expect(r"axes\s*=")
    axes = dict(scanner.items(r"\[", size, r"\]"))
    listed: Shape = ()
    if scanner.take(r",\s*device_ids\s*=\s*dense<"):
        listed = scanner.numbers(r"\[", r"\]")
        scanner.expect(r">\s*:\s*tensor<\d+xi64>")
    scanner.expect(">")
    return Mesh.of(axes, listed)


def _axis_ref(scanner: _Scanner) -> Axis:
    scanner.expect(r"(?:#stablehlo\.axis_ref)?<\s*name\s*=")
    name = scanner.name()
    part = scanner.take(r",\s*sub_axis_info\s*=\s*\((\d+)\)\s*(\d+)")
    scanner.expect(">")
    return Axis(name) if part is None else Axis(name, int(part[1]), int(part[2]))


def shardings_of(
    attributes: Sequence[Mapping[str, Any]],
    types: Sequence[ValueType],
    symbol: Callable[[str], Mapping[str, Any]],
) -> list[Sharding | None]:
    """Return the shardings of a function's arguments or results: Shardy's if there is one, else XLA's, else None.

    Args:
        attributes: those of each value.
        types: the type of each.
        symbol: finds the attributes of a named op of the module.
    """
    return [sharding_of(*each, symbol) for each in zip(attributes, types, strict=True)]


def sharding_of(
    attributes: Mapping[str, Any], type_: ValueType, symbol: Callable[[str], Mapping[str, Any]], number: int = 0
) -> Sharding | None:
    """Return the sharding of a value that attributes state: Shardy's if there is one, else XLA's, else None.

    Args:
        attributes: those of the value, or of the operation that has it as a result.
        type_: the type of the value.
        symbol: finds the attributes of a named op of the module.
        number: which of the operation's results the value is.
    """
    if not isinstance(type_, TensorType):
        return None
    if "sdy.sharding" in attributes:
        text = getattr(attributes["sdy.sharding"], "text", str(attributes["sdy.sharding"]))
        return parse_sdy(text, lambda name: parse_mesh(symbol(name)["mesh"].text))[number]
    if "mhlo.sharding" in attributes:
        return parse_gspmd(attributes["mhlo.sharding"], type_.rank)
    return None


@dataclass(frozen=True, slots=True)
class StatedSharding:
    """The sharding of an argument or a result, as a program states it.

    Attributes:
        text: the sharding in Shardy's or GSPMD's spelling.
        tiling: the tiles of the value on the devices; None if the sharding cannot be read.
        axes: the axes of the mesh that cut each dimension; empty for a sharding of GSPMD's, which has no axes.
    """

    text: str
    tiling: Sharding | None = None
    axes: tuple[tuple[str, ...], ...] = ()

    @staticmethod
    def of(text: str, rank: int, meshes: Mapping[str, Mesh]) -> StatedSharding:
        """Return the sharding of a value of some rank.

        Args:
            text: as a program spells it.
            rank: the number of dimensions of the value.
            meshes: the meshes of the program by their names.
        """
        try:
            if "sdy" not in text:
                named = parse_mesh_sharding(text) if is_over_mesh(text) else None
                tiling = parse_gspmd(text, rank)
            else:
                (named, *_) = parse_shardy(text, lambda name: _mesh(meshes, name))
                tiling = Sharding.of_axes(named)
        except PjrtError:
            return StatedSharding(text)
        axes = () if named is None or named.device is not None else named.spelled_axes
        return StatedSharding(text, tiling, axes if len(axes) == rank else ())

    def shard_shape(self, shape: StatedShape) -> StatedShape:
        """Return the shape of the part that a device has. A symbolic size that is cut by 4 is ``b/4``.

        The last parts of a dimension that does not divide evenly are padded.
        """
        tiles = self.tiling.tiles if self.tiling is not None else ()
        counts = tiles or (1,) * len(shape)
        return tuple(map(_part, shape, counts))

    def is_even(self, shape: StatedShape) -> bool:
        """Whether the known sizes of a shape divide by the numbers of their parts."""
        tiles = self.tiling.tiles if self.tiling is not None else ()
        return all(not isinstance(size, int) or size % count == 0 for size, count in zip(shape, tiles, strict=False))

    def __str__(self) -> str:
        """Return the axes or the number of parts of each dimension, such as ``data, -`` or ``4 × 1 parts``."""
        if self.tiling is None:
            return self.text
        if self.tiling.is_replicated:
            return "replicated"
        terms = f"; {self.tiling.num_terms} terms of a {self.tiling.reduction}" if self.tiling.terms else ""
        if self.axes:
            return ", ".join("+".join(axes) or "-" for axes in self.axes) + terms
        parts = " × ".join(map(str, self.tiling.tiles)) + " parts"
        return (parts if self.tiling.copies == 1 else f"{parts}, {self.tiling.copies} copies") + terms


def _mesh(meshes: Mapping[str, Mesh], name: str) -> Mesh:
    if name not in meshes:
        raise InvalidArgumentError(f"expected a mesh of the program ({', '.join(meshes)}), found {name}")
    return meshes[name]


def _part(size: int | str | None, count: int) -> int | str | None:
    if isinstance(size, int):
        return -(-size // count)
    if count == 1:
        return size
    if size is None:
        return f"?/{count}"
    return f"{size}/{count}" if size.isidentifier() else f"({size})/{count}"
