"""The requirements of a parsed program, held against what a device declares: operation by operation, type by type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pjrt.api.capability import SHOWN, Capabilities, Feature, Reason, ReasonKind, Verdict
from pjrt.api.compile_options import CompileOptions
from pjrt.api.element_type import ElementType
from pjrt.api.program import SourceLocation
from pjrt.stablehlo._call_graph import CallGraph
from pjrt.stablehlo.location import Location
from pjrt.stablehlo.operation import Function, Operation, ParsedProgram
from pjrt.stablehlo.outline import COLLECTIVES, faults
from pjrt.stablehlo.types import FutureType, OpaqueType, TensorType, TupleType, ValueType

STRUCTURE = frozenset({"func.return", "func.call", "stablehlo.return", "chlo.return", "mhlo.return", "sdy.return"})
"""Operations that hold a program together; no device declares them."""

_FEATURE_OF = {
    **dict.fromkeys(COLLECTIVES, Feature.COLLECTIVES),
    **dict.fromkeys(("stablehlo.send", "stablehlo.recv"), Feature.SEND_RECV),
    **dict.fromkeys(("stablehlo.infeed", "stablehlo.outfeed"), Feature.INFEED_OUTFEED),
}
_UNDERSTOOD = frozenset(
    {"jax.buffer_donor", "jax.result_info", "mhlo.layout_mode", "mhlo.memory_kind", "tf.aliasing_output"}
)
"""Attributes of arguments and results that are checked here, or that no device looks at."""

_NO, _MAYBE = Verdict.NO, Verdict.MAYBE
_SHOWN_TYPES = 8


class Requirements:
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
        self._runs = device.operations
        self._gathered: dict[tuple[Verdict, ReasonKind, str], _Gathered] = {}

    def operations(self) -> list[Reason]:
        """Return the reasons that the names of operations give."""
        self._gathered.clear()
        for operation, certain in self._walk():
            self._name(operation, certain)
        return self._reasons()

    def reasons(self) -> list[Reason]:
        """Return the reasons that names, types and attributes give; none if the device is known to run the program."""
        self._gathered.clear()
        self._counts()
        self._faults()
        self._entry(self._program.entry)
        for operation, certain in self._walk():
            if operation.name not in STRUCTURE:
                self._operation(operation, certain)
        if self._runs is None:
            self._add(_MAYBE, ReasonKind.OP, "operations", "the device does not say which operations it runs")
        return self._reasons()

    # The parts of a program.

    def _walk(self) -> Iterator[tuple[Operation, bool]]:
        """Yield every operation, with whether the program certainly runs it.

        A device may leave out functions that nothing refers to, by any attribute.
        """
        used = CallGraph.of(self._program, attributes=None).reached()
        for function in self._program.functions.values():
            if function.body is not None:
                for operation in function.body.walk():
                    yield operation, function.name in used

    def _faults(self) -> None:
        """Add what no device can run; ``Outline.check`` refuses the same where the program is compiled."""
        functions = self._program.functions
        types = dict.fromkeys(value.type for operation in self._program.walk() for value in operation.results)
        for function in functions.values():
            types |= dict.fromkeys((*function.type.arguments, *function.type.results))
        for name, message in faults(CallGraph.of(self._program), types):
            if name in functions:
                self._add(_NO, ReasonKind.OP, name, message, functions[name].location)
            else:
                self._add(_NO, ReasonKind.TYPE, name, message)

    def _counts(self) -> None:
        how, available = self._options.partitioning, self._device.num_devices
        if how.num_partitions > 1:
            if self._device.has(Feature.PARTITIONING) is False and self._options.spmd:
                message = f"the device does not cut programs, this one is for {how.num_partitions} partitions"
                self._add(_NO, ReasonKind.FEATURE, "partitioning", message)
            message = "whether it can be cut into partitions is known only when it is compiled"
            self._add(_MAYBE, ReasonKind.ATTRIBUTE, "partitions", message)
        if available is not None and how.num_devices > available:
            subject = "num_partitions" if how.num_partitions > 1 else "num_replicas"
            message = f"{how} need {how.num_devices} devices, there are {available}"
            self._add(_NO, ReasonKind.ATTRIBUTE, subject, message)

    def _entry(self, entry: Function) -> None:
        """Check the arguments and results, which no compiler can remove."""
        if entry.name != "main":
            self._add(_MAYBE, ReasonKind.ATTRIBUTE, entry.name, f"the function to run is {entry.name}, not main")
        for type_, attributes in zip(entry.type.arguments, entry.argument_attributes, strict=True):
            self._value(type_, entry.location, certain=True)
            self._placement(attributes, entry.location)
        for type_, attributes in zip(entry.type.results, entry.result_attributes, strict=True):
            self._value(type_, entry.location, certain=False)
            self._placement(attributes, entry.location)
        self._aliases(entry)
        for attributes in (*entry.argument_attributes, *entry.result_attributes):
            for name in sorted(attributes.keys() - _UNDERSTOOD):
                message = f"what the device makes of the attribute {name} is not known"
                self._add(_MAYBE, ReasonKind.ATTRIBUTE, name, message)

    def _placement(self, attributes: Mapping[str, Any], location: Location) -> None:
        kind, available = attributes.get("mhlo.memory_kind"), self._device.memory_kinds
        if kind is not None and (available is None or str(kind) not in available):
            has = "does not say which it has" if available is None else f"has {', '.join(available)}"
            message = f"the program asks for memory of the kind '{kind}', the device {has}"
            self._add(_MAYBE, ReasonKind.ATTRIBUTE, f"mhlo.memory_kind = {kind}", message, location)
        layout = attributes.get("mhlo.layout_mode")
        if layout is not None and str(layout) not in ("default", "auto") and not self._device.has(Feature.LAYOUTS):
            message = f"the program asks for the layout {layout}"
            self._add(_MAYBE, ReasonKind.ATTRIBUTE, f"mhlo.layout_mode = {layout}", message, location)

    def _aliases(self, entry: Function) -> None:
        """Add results that are given to several arguments, or do not exist: a device may refuse them."""
        name = "tf.aliasing_output"
        results = [attributes[name] for attributes in entry.argument_attributes if name in attributes]
        existing = range(len(entry.type.results))
        if len(set(map(str, results))) < len(results) or any(result not in existing for result in results):
            message = f"the program gives arguments to the results {', '.join(map(str, results))}"
            self._add(_MAYBE, ReasonKind.ATTRIBUTE, name, message, entry.location)

    # One operation.

    def _operation(self, operation: Operation, certain: bool) -> None:
        name, location = operation.name, operation.location
        self._name(operation, certain)
        if name == "stablehlo.custom_call":
            self._target(operation, certain)
        if name in _FEATURE_OF:
            self._needs(_FEATURE_OF[name], name, location, certain=certain)
        for value in operation.results:
            self._value(value.type, location, certain=certain and self._runs is not None)
        if self._runs is not None and name in self._runs:
            self._element_types(operation, self._runs[name], certain)

    def _name(self, operation: Operation, certain: bool) -> None:
        name = operation.name
        if self._runs is not None and name not in self._runs and name not in STRUCTURE:
            self._against(certain, ReasonKind.OP, name, f"the device does not run {name}", operation.location)

    def _target(self, operation: Operation, certain: bool) -> None:
        target, available = str(operation.attributes.get("call_target_name", "")), self._device.custom_calls
        if available is None:
            message = f"the device does not say whether it has the custom call '{target}'"
            self._add(_MAYBE, ReasonKind.OP, f"custom_call @{target}", message, operation.location)
        elif target not in available:
            message = f"the device has no custom call '{target}'"
            self._against(certain, ReasonKind.OP, f"custom_call @{target}", message, operation.location)

    def _element_types(self, operation: Operation, accepted: frozenset[ElementType] | None, certain: bool) -> None:
        """Check the element type of the operation's first tensor, on which a device decides whether it runs it."""
        if accepted is None:
            message = "for some operations the device does not say what it depends on whether they run"
            self._add(_MAYBE, ReasonKind.OP, "operations", message)
            return
        types = (value.type for value in (*operation.operands, *operation.results))
        tensor = next((type_ for type_ in types if isinstance(type_, TensorType)), None)
        if tensor is not None and tensor.quantization is None and tensor.element not in accepted:
            subject = f"{operation.name} on {tensor.element.mlir}"
            message = f"the device does not run {subject}, but on {_spelled(accepted)}"
            self._against(certain, ReasonKind.TYPE, subject, message, operation.location)

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
        available = self._device.element_types
        if available is None:
            message = "the device does not say which element types it has"
            self._add(_MAYBE, ReasonKind.TYPE, "element types", message)
        elif type_.element not in available:
            message = f"{type_.element.mlir} is no element type of the device: it has {_spelled(available)}"
            self._against(certain, ReasonKind.TYPE, type_.element.mlir, message, location)
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
        has, words = self._device.has(feature), feature.value.replace("_", " ")
        if has is None:
            self._add(_MAYBE, ReasonKind.FEATURE, words, f"whether the device has {words} is not known, for {subject}")
        elif not has:
            message = f"the device has no {words}, which {subject} needs"
            if feature is Feature.DYNAMIC_SHAPES:
                message += "; give the shapes of the arguments: --shape, or pjrt.stablehlo.refine"
            self._against(certain, ReasonKind.FEATURE, words, message, location)

    # The reasons.

    def _against(self, certain: bool, kind: ReasonKind, subject: str, message: str, location: Location) -> None:
        """Add a reason that rules the program out if it certainly meets it."""
        self._add(_NO if certain else _MAYBE, kind, subject, message, location)

    def _add(
        self, verdict: Verdict, kind: ReasonKind, subject: str, message: str, location: Location | None = None
    ) -> None:
        gathered = self._gathered.setdefault((verdict, kind, subject), _Gathered(message))
        if location is not None:
            gathered.add(location)

    def _reasons(self) -> list[Reason]:
        return [
            Reason(*key, gathered.message, tuple(gathered.places), gathered.count)
            for key, gathered in self._gathered.items()
        ]


class _Gathered:
    """One reason, from all the places that give it."""

    def __init__(self, message: str) -> None:
        self.message = message
        self.places: dict[SourceLocation, None] = {}
        self.count = 0

    def add(self, location: Location) -> None:
        """Count one more place."""
        self.count += 1
        if len(self.places) < SHOWN and location.is_known:
            at = next((place for place in location.places if place.file), location.places[0])
            self.places.setdefault(SourceLocation(location.name, at.file, at.line, at.column))


def _spelled(types: frozenset[ElementType]) -> str:
    shown = [type_.mlir for type_ in sorted(types)][:_SHOWN_TYPES]
    more = len(types) - len(shown)
    return (", ".join(shown) or "none") + (f" and {more} more" if more else "")
