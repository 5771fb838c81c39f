"""A parsed program held against what a device says of itself: operation by operation, type by type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pjrt.api.capability import Capabilities, Feature
from pjrt.api.compatibility import SHOWN, Reason, ReasonKind, SourceLocation, Verdict
from pjrt.api.compile_options import CompileOptions
from pjrt.api.element_type import ElementType
from pjrt.stablehlo._call_graph import CallGraph, reached
from pjrt.stablehlo.inspection import COLLECTIVES
from pjrt.stablehlo.location import Location
from pjrt.stablehlo.operation import Function, Operation, ParsedProgram
from pjrt.stablehlo.outline import faults
from pjrt.stablehlo.types import FutureType, OpaqueType, TensorType, TupleType, ValueType

STRUCTURE = frozenset({"func.return", "func.call", "stablehlo.return", "chlo.return", "mhlo.return", "sdy.return"})
"""Operations that hold a program together; no device is asked for them."""

_FEATURE_OF = {
    **dict.fromkeys(COLLECTIVES, Feature.COLLECTIVES),
    **dict.fromkeys(("stablehlo.send", "stablehlo.recv"), Feature.SEND_RECV),
    **dict.fromkeys(("stablehlo.infeed", "stablehlo.outfeed"), Feature.INFEED_OUTFEED),
}
_UNDERSTOOD = frozenset(
    {"jax.buffer_donor", "jax.result_info", "mhlo.layout_mode", "mhlo.memory_kind", "tf.aliasing_output"}
)
"""Attributes of arguments and results that are looked at here, or that no device looks at."""

_NO, _MAYBE = Verdict.NO, Verdict.MAYBE


class Suitability:
    """One program and one device.

    Args:
        program: the program.
        device: what is known of the device.
        options: how the program is compiled.
    """

    def __init__(self, program: ParsedProgram, device: Capabilities, options: CompileOptions) -> None:
        self._program = program
        self._device = device
        self._options = options
        self._looks_at_each = device.operations is not None
        self._found: dict[tuple[Verdict, ReasonKind, str], _Gathered] = {}

    def operations(self) -> list[Reason]:
        """What the names of operations say."""
        self._found.clear()
        for operation, is_run in self._walk():
            self._name(operation, is_run)
        return self._gathered()

    def reasons(self) -> list[Reason]:
        """What names, types and attributes say; none if the device is known to run the program."""
        self._found.clear()
        self._counts()
        self._faults()
        self._signature(self._program.entry)
        for operation, is_run in self._walk():
            if operation.name in STRUCTURE:
                continue
            self._name(operation, is_run)
            self._target(operation, is_run)
            self._feature(operation, is_run)
            self._types(operation, is_run)
        if not self._looks_at_each:
            self._add(_MAYBE, ReasonKind.OP, "operations", "the device does not say which operations it runs")
        return self._gathered()

    # The parts of a program.

    def _walk(self) -> Iterator[tuple[Operation, bool]]:
        """Every operation, with whether the program surely gets to it: those of functions that nothing refers to
        may be left out by a device.
        """
        used = reached(self._program)
        for function in self._program.functions.values():
            if function.body is not None:
                for operation in function.body.walk():
                    yield operation, function.name in used

    def _faults(self) -> None:
        """Yield what no device can run; ``Outline.check`` refuses the same where the program is compiled."""
        functions = self._program.functions
        for name, message in faults(CallGraph.of(self._program), self._all_types()):
            kind, location = ReasonKind.TYPE, None
            if name in functions:
                kind, location = ReasonKind.OP, functions[name].location
            self._add(_NO, kind, name, message, location)

    def _all_types(self) -> list[ValueType]:
        found: dict[ValueType, None] = {}
        for function in self._program.functions.values():
            found.update(dict.fromkeys((*function.type.arguments, *function.type.results)))
        for operation in self._program.walk():
            found.update(dict.fromkeys(value.type for value in operation.results))
        return list(found)

    def _counts(self) -> None:
        how, there = self._options.partitioning, self._device.num_devices
        if how.num_partitions > 1:
            if self._device.has(Feature.PARTITIONING) is False and self._options.spmd:
                message = f"the device does not cut programs, this one is for {how.num_partitions} partitions"
                self._add(_NO, ReasonKind.FEATURE, "partitioning", message)
            message = "whether it can be cut into partitions is known only when it is compiled"
            self._add(_MAYBE, ReasonKind.ATTRIBUTE, "partitions", message)
        if there is None or how.num_devices <= there:
            return
        self._add(
            _NO,
            ReasonKind.ATTRIBUTE,
            "num_partitions" if how.num_partitions > 1 else "num_replicas",
            f"{how} need {how.num_devices} devices, there are {there}",
        )

    def _signature(self, entry: Function) -> None:
        """What goes in and comes out: that no compiler does away with."""
        if entry.name != "main":
            self._add(_MAYBE, ReasonKind.ATTRIBUTE, entry.name, f"the function to run is {entry.name}, not main")
        for types, attributes, is_argument in (
            (entry.type.arguments, entry.argument_attributes, True),
            (entry.type.results, entry.result_attributes, False),
        ):
            for type_, given in zip(types, attributes, strict=True):
                self._value(type_, entry.location, certain=is_argument)
                self._placement(given, entry.location)
        self._attributes(entry)

    def _placement(self, given: Any, location: Location) -> None:
        kind, known = given.get("mhlo.memory_kind"), self._device.memory_kinds
        if kind is not None and (known is None or str(kind) not in known):
            has = "does not say which it has" if known is None else f"has {', '.join(known)}"
            message = f"the program asks for memory of the kind '{kind}', the device {has}"
            self._add(_MAYBE, ReasonKind.ATTRIBUTE, f"mhlo.memory_kind = {kind}", message, location)
        layout = given.get("mhlo.layout_mode")
        if layout is not None and str(layout) not in ("default", "auto") and not self._device.has(Feature.LAYOUTS):
            message = f"the program asks for the layout {layout}"
            self._add(_MAYBE, ReasonKind.ATTRIBUTE, f"mhlo.layout_mode = {layout}", message, location)

    def _attributes(self, entry: Function) -> None:
        """What arguments and results are said to be beside their types: some of it may be refused."""
        aliases = [given["tf.aliasing_output"] for given in entry.argument_attributes if "tf.aliasing_output" in given]
        places = range(len(entry.type.results))
        if len(set(map(str, aliases))) < len(aliases) or any(alias not in places for alias in aliases):
            message = f"the program gives arguments to the results {', '.join(map(str, aliases))}"
            self._add(_MAYBE, ReasonKind.ATTRIBUTE, "tf.aliasing_output", message, entry.location)
        for given in (*entry.argument_attributes, *entry.result_attributes):
            for name in sorted(given.keys() - _UNDERSTOOD):
                message = f"what the device makes of the attribute {name} is not known"
                self._add(_MAYBE, ReasonKind.ATTRIBUTE, name, message)

    # One operation.

    def _name(self, operation: Operation, is_run: bool) -> None:
        runs = self._device.operations
        if runs is None or operation.name in runs or operation.name in STRUCTURE:
            return
        self._add(
            _NO if is_run else _MAYBE,
            ReasonKind.OP,
            operation.name,
            f"the device does not run {operation.name}",
            operation.location,
        )

    def _target(self, operation: Operation, is_run: bool) -> None:
        if operation.name != "stablehlo.custom_call":
            return
        target, known = str(operation.attributes.get("call_target_name", "")), self._device.custom_calls
        if known is None:
            message = f"the device does not say whether it has the custom call '{target}'"
            self._add(_MAYBE, ReasonKind.OP, f"custom_call @{target}", message, operation.location)
        elif target not in known:
            message = f"the device has no custom call '{target}'"
            verdict = _NO if is_run else _MAYBE
            self._add(verdict, ReasonKind.OP, f"custom_call @{target}", message, operation.location)

    def _feature(self, operation: Operation, is_run: bool) -> None:
        feature = _FEATURE_OF.get(operation.name)
        if feature is not None:
            self._needs(feature, f"{operation.name}", operation.location, certain=is_run)

    def _types(self, operation: Operation, is_run: bool) -> None:
        certain = is_run and self._looks_at_each
        for value in operation.results:
            self._value(value.type, operation.location, certain=certain)
        runs = self._device.operations
        if runs is None or operation.name not in runs:
            return
        taken = runs[operation.name]
        if taken is None:
            message = "for some operations the device does not say what it depends on whether they run"
            self._add(_MAYBE, ReasonKind.OP, "operations", message)
            return
        tensor = next(
            (v.type for v in (*operation.operands, *operation.results) if isinstance(v.type, TensorType)), None
        )
        if tensor is None or tensor.quantization is not None or tensor.element in taken:
            return
        self._add(
            _NO if is_run else _MAYBE,
            ReasonKind.TYPE,
            f"{operation.name} on {tensor.element.mlir}",
            f"the device does not run {operation.name} on {tensor.element.mlir}, but on {_spelled(taken)}",
            operation.location,
        )

    # One type.

    def _value(self, type_: ValueType, location: Location, *, certain: bool) -> None:
        if isinstance(type_, TensorType):
            self._tensor(type_, location, certain)
        elif isinstance(type_, TupleType | FutureType):
            for inner in type_.elements:
                self._value(inner, location, certain=certain)
        elif isinstance(type_, OpaqueType):
            self._add(_MAYBE, ReasonKind.TYPE, type_.text, f"whether the device has {type_} is not known", location)

    def _tensor(self, type_: TensorType, location: Location, certain: bool) -> None:
        types = self._device.element_types
        if types is None:
            message = "the device does not say which element types it has"
            self._add(_MAYBE, ReasonKind.TYPE, "element types", message)
        elif type_.element not in types:
            message = f"{type_.element.mlir} is no element type of the device: it has {_spelled(types)}"
            self._add(_NO if certain else _MAYBE, ReasonKind.TYPE, type_.element.mlir, message, location)
        if type_.quantization is not None:
            self._needs(Feature.QUANTIZED_TYPES, str(type_), location, certain=certain)
            self._add(_MAYBE, ReasonKind.TYPE, "quantized types", "which operations take quantized types is not known")
        if not type_.is_static:
            bounded = type_.bounds is not None and all(
                size is not None or bound is not None for size, bound in zip(type_.shape, type_.bounds, strict=True)
            )
            feature = Feature.BOUNDED_DYNAMIC_SHAPES if bounded else Feature.DYNAMIC_SHAPES
            self._needs(feature, str(type_), location, certain=certain)
            self._add(_MAYBE, ReasonKind.FEATURE, "sizes", "whether the sizes fit is known only when it is compiled")

    def _needs(self, feature: Feature, subject: str, location: Location, *, certain: bool) -> None:
        has = self._device.has(feature)
        if has:
            return
        words = feature.value.replace("_", " ")
        if has is None:
            self._add(_MAYBE, ReasonKind.FEATURE, words, f"whether the device has {words} is not known, for {subject}")
            return
        message = f"the device has no {words}, which {subject} needs"
        self._add(_NO if certain else _MAYBE, ReasonKind.FEATURE, words, message, location)

    # What was found.

    def _add(
        self, verdict: Verdict, kind: ReasonKind, subject: str, message: str, location: Location | None = None
    ) -> None:
        gathered = self._found.get((verdict, kind, subject))
        if gathered is None:
            gathered = self._found[verdict, kind, subject] = _Gathered(message)
        if location is not None:
            gathered.add(location)

    def _gathered(self) -> list[Reason]:
        return [
            Reason(verdict, kind, subject, gathered.message, tuple(gathered.places), gathered.count)
            for (verdict, kind, subject), gathered in self._found.items()
        ]


class _Gathered:
    """One reason, from all the places that give it."""

    def __init__(self, message: str) -> None:
        self.message = message
        self.places: dict[SourceLocation, None] = {}
        self.count = 0

    def add(self, location: Location) -> None:
        """One more place."""
        self.count += 1
        if len(self.places) < SHOWN and location.is_known:
            at = next((place for place in location.places if place.file), location.places[0])
            self.places.setdefault(SourceLocation(location.name, at.file, at.line, at.column))


def _spelled(types: frozenset[ElementType]) -> str:
    shown = [type_.mlir for type_ in sorted(types)][:_SHOWN_TYPES]
    more = len(types) - len(shown)
    return (", ".join(shown) or "none") + (f" and {more} more" if more else "")


_SHOWN_TYPES = 8
