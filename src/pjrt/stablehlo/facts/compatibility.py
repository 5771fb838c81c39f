"""Compatibility: whether a device can run a program, judged by a look into the program.

The device is known by its ``Capabilities`` only. Its declarations are believed; where it declares nothing, the verdict
stays open. A device that lists its operations is expected to look at each of them. A device that does not is a
compiler, which may remove what it could not run, so only what it cannot avoid rules a program out.

When a compilation has failed, ``with_advice`` looks for the reason in the program: the messages of compilers name
operations of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from pjrt.api.capability import (
    SHOWN,
    Capabilities,
    Effort,
    Feature,
    Reason,
    ReasonKind,
    StaticCheck,
    Support,
    Verdict,
    decide,
    format_reason,
)
from pjrt.api.compile_options import CompileOptions
from pjrt.api.element_type import ElementType
from pjrt.api.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    PjrtError,
    ResourceExhaustedError,
    UnimplementedError,
)
from pjrt.api.program import AnyProgram, Program, ProgramFormat, SourceLocation
from pjrt.stablehlo.encodings.format import Version, artifact_version
from pjrt.stablehlo.facts.outline import COLLECTIVES, CallGraph, faults
from pjrt.stablehlo.facts.signatures import ArgumentInfo, signature_of
from pjrt.stablehlo.ir.argument_shapes import is_dynamic, spelled_shape, symbols_in_shape
from pjrt.stablehlo.ir.location import Location
from pjrt.stablehlo.ir.mlir_attributes import left_out
from pjrt.stablehlo.ir.mlir_module import MlirModule, shortened, walk
from pjrt.stablehlo.ir.operation import Function, Operation, ParsedProgram
from pjrt.stablehlo.ir.sharding_parser import StatedSharding
from pjrt.stablehlo.ir.types import FutureType, OpaqueType, TensorType, TupleType, ValueType, decode_type
from pjrt.stablehlo.reading import conversion
from pjrt.stablehlo.reading.conversion import to_module, with_partitioning
from pjrt.stablehlo.reading.parser import parse_module
from pjrt.stablehlo.reading.reader import read

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
            feature = Feature.BOUNDED_DYNAMIC_SHAPES if _is_bounded(type_) else Feature.DYNAMIC_SHAPES
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


def supports(
    program: AnyProgram,
    options: CompileOptions | None,
    capabilities: Capabilities,
    *,
    effort: Effort | str | None = None,
    compile: Callable[[], Any] | None = None,
) -> Support:
    """Return whether a device with these capabilities can run a program.

    Args:
        program: a program in any encoding.
        options: how it is compiled; the defaults are for one device.
        capabilities: what is known of the device.
        effort: the effort to make; None for the cheapest that gives a yes or a no.
        compile: compiles the program for the device; None where that is impossible.

    Raises:
        InvalidArgumentError: the source is not a program.
        DataLossError: the program is truncated or corrupt.
    """
    return decide(effort, static_check(program, options, capabilities), compile)


def static_check(program: AnyProgram, options: CompileOptions | None, capabilities: Capabilities) -> StaticCheck:
    """Return a check of a program for a device with these capabilities; see ``pjrt.api.capability.decide``.

    The program is parsed once, where that is needed.

    Raises:
        InvalidArgumentError: the source is not a program.
        DataLossError: the program is truncated or corrupt.
    """
    code = read(program)
    return _Check(code, with_partitioning(code, options), capabilities).reasons


class _Check:
    """One program and one device."""

    def __init__(self, program: Program, options: CompileOptions, capabilities: Capabilities) -> None:
        self._program = program
        self._options = options
        self._device = capabilities

    def reasons(self, effort: Effort) -> Sequence[Reason]:
        """Return the reasons against the program that an effort finds, and those that leave the verdict open."""
        reasons = [*self._format(), *self._version(effort)]
        if any(reason.verdict is Verdict.NO or reason.kind is ReasonKind.FORMAT for reason in reasons):
            return reasons
        try:
            return [*reasons, *(self._names() if effort is Effort.OPS else self._requirements.reasons())]
        except FailedPreconditionError as error:
            message = f"it cannot be looked into: {error.message}"
        except PjrtError as error:
            message = error.message
        return [*reasons, _open(ReasonKind.FORMAT, str(self._program.format), message)]

    @cached_property
    def _module(self) -> Any:
        return conversion.to_module(self._program, trusted=True)

    @cached_property
    def _requirements(self) -> Requirements:
        return Requirements(parse_module(self._module, largest_constant=0), self._device, self._options)

    def _format(self) -> list[Reason]:
        format_ = str(self._program.format)
        refusal = format_reason(format_, self._device)
        if refusal is not None:
            return [refusal]
        if format_ not in tuple(ProgramFormat):
            return [_open(ReasonKind.FORMAT, format_, f"only the device knows the format '{format_}'")]
        return []

    def _version(self, effort: Effort) -> list[Reason]:
        """Return why the device may not read the program's version, even after a conversion to one that it reads."""
        written, stated = artifact_version(self._program), self._device.stablehlo_current_version
        if stated is None:
            return []
        newest = Version.of(stated)
        message = f"the program is written at StableHLO {written}, the device reads up to {newest}"
        if written is not None and written > newest and not self._is_read_here(written):
            return [Reason(Verdict.NO, ReasonKind.VERSION, str(written), message)]
        if effort is Effort.OPS or not _writes_newer(newest):
            return []
        try:
            conversion.serialize(self._program, newest, trusted=True)
        except InvalidArgumentError as error:
            if written is None:  # then it need not be an artifact
                return [_open(ReasonKind.VERSION, str(newest), error.message)]
            return [Reason(Verdict.NO, ReasonKind.VERSION, str(written), f"{message}, and {error.message}")]
        except PjrtError:  # the parser reports the same later
            return []
        return []

    def _is_read_here(self, written: Version) -> bool:
        """Whether this jaxlib reads an artifact, and so can write it at an older version.

        That includes an artifact of a newer version, if it holds nothing that is new.
        """
        try:
            return written <= conversion.current_version() or bool(self._module)
        except PjrtError:
            return False

    def _names(self) -> list[Reason]:
        runs = self._device.operations
        if runs is None:
            return [_open(ReasonKind.OP, "operations", "the device does not say which operations it runs")]
        missing = [] if self._used <= {*runs, *STRUCTURE} else self._requirements.operations()
        return missing or [_open(ReasonKind.TYPE, "types", "types and attributes were not looked at")]

    @cached_property
    def _used(self) -> set[str]:
        """The names of the operations in the program's functions; nothing else of them is parsed."""
        with self._module as module:
            functions = [inner.operation for inner in module.body if inner.operation.name == "func.func"]
            return {operation.name for function in functions for operation in walk(function)} - {"func.func"}


def _open(kind: ReasonKind, subject: str, message: str) -> Reason:
    return Reason(Verdict.MAYBE, kind, subject, message)


def _writes_newer(version: Version) -> bool:
    """Whether this jaxlib's StableHLO is newer than a version, so that programs may hold what the version lacks."""
    try:
        return version < conversion.current_version()
    except PjrtError:
        return False


_SHAPES = "compile(program, shapes="
_SHARDINGS = "expected shardings over the devices of the program"


def with_advice(error: PjrtError, program: Program, options: CompileOptions | None = None) -> PjrtError:
    """Return the error of a compilation, or a clearer one if the reason is in the arguments of the program.

    Reasons are constants without values, arguments of dynamic shapes, shardings over another number of devices than
    the program is for, and quantized types where the device has XLA's compiler, which has none.

    Args:
        error: the error.
        program: the program.
        options: the options of the compilation; ``None`` where they leave everything to the program.
    """
    if isinstance(error, FailedPreconditionError | ResourceExhaustedError):  # of the client, not of the program
        return error
    if _SHAPES in error.message or _SHARDINGS in error.message:  # the device is another client of this package
        return error
    try:
        module = to_module(read(program), trusted=True)
        parsed = parse_module(module, bodies=False)
        arguments = signature_of(parsed, module).arguments
        count = with_partitioning(program, options, module).partitioning.num_partitions
        advice = _on_constants(module) or _on_shapes(arguments) or _on_shardings(arguments, parsed, count)
        if advice is not None:
            return InvalidArgumentError(f"{advice}: {shortened(error.message)}")
        refused = _on_types(error, module)
    except PjrtError:
        return error
    return error if refused is None else UnimplementedError(f"{refused}: {shortened(error.message)}")


def check_shapes(program: Program, capabilities: Capabilities) -> None:
    """Check that the arguments of a program have sizes that a device takes, before its compiler gets them.

    What cannot be read here, such as a program of another dialect, is left to the compiler.

    Raises:
        InvalidArgumentError: an argument has an unknown size, and the device has no dynamic shapes.
    """
    if capabilities.has(Feature.DYNAMIC_SHAPES) is not False or program.format != ProgramFormat.MLIR:
        return
    try:
        module = to_module(program, trusted=True)
        arguments = signature_of(parse_module(module, bodies=False), module).arguments
    except PjrtError:
        return
    conversion.keep_module(program, module)
    types = [each.type for each in arguments]
    if any(isinstance(each, TensorType) and not each.is_static and not _is_bounded(each) for each in types):
        raise InvalidArgumentError(str(_on_shapes(arguments)))


def _is_bounded(type_: TensorType) -> bool:
    return type_.bounds is not None and all(
        size is not None or bound is not None for size, bound in zip(type_.shape, type_.bounds, strict=True)
    )


_WITHOUT_TYPE = ("primitive_type_invalid", "ends its process", "Seen buffers")
"""The words of errors of XLA's compiler, and of the trial in another process, over a type that XLA does not have."""


def _on_types(error: PjrtError, module: MlirModule) -> str | None:
    if not any(words in error.message for words in _WITHOUT_TYPE):
        return None
    with module as mlir:
        for operation in walk(mlir.operation):
            for value in (*operation.operands, *operation.results):
                place = Location(str(operation.location))
                if isinstance(decode_type(value.type), OpaqueType):
                    return f"expected ranked tensors of StableHLO's element types, found {value.type} ({place})"
                if "!quant." in str(value.type):
                    return (
                        f"the device's compiler has no quantized types, and this program has values of {value.type} "
                        f"({place}); run it on 'reference', or write the arithmetic on integers out, as the pass "
                        "stablehlo-legalize-quant-to-math does"
                    )
    return None


def _on_constants(module: MlirModule) -> str | None:
    constants = left_out(module)
    if not constants:
        return None
    return (
        f"expected the values of {len(constants)} constants, which were left out when the program was written, first "
        f"that of type {constants[0].results[0].type}, {constants[0].location}; write it with all elements of its "
        "constants"
    )


def _on_shapes(arguments: tuple[ArgumentInfo, ...]) -> str | None:
    dynamic = {
        i: argument.symbolic_shape for i, argument in enumerate(arguments) if is_dynamic(argument.symbolic_shape)
    }
    if not dynamic:
        return None
    symbols = sorted({symbol for shape in dynamic.values() for symbol in symbols_in_shape(shape)})
    example: dict[Any, Any] = dict.fromkeys(symbols, 8)
    if not symbols:
        example = {i: tuple(size if isinstance(size, int) else 8 for size in shape) for i, shape in dynamic.items()}
    spelled = ", ".join(f"{arguments[index].name or index} {spelled_shape(shape)}" for index, shape in dynamic.items())
    return (
        f"the device does not compile programs with dynamic shapes, and this one has arguments of such shapes "
        f"({spelled}); give their shapes, as in {_SHAPES}{example}), or by --shape"
    )


def _on_shardings(arguments: tuple[ArgumentInfo, ...], parsed: ParsedProgram, count: int) -> str | None:
    meshes = parsed.meshes
    for index, argument in enumerate(arguments):
        sharding = StatedSharding.of(argument.sharding, len(argument.symbolic_shape), meshes)
        if sharding.tiling is None or sharding.tiling.is_replicated or len(sharding.tiling.places) == count:
            continue
        return (
            f"{_SHARDINGS}, which states {count} partitions, found one over {len(sharding.tiling.places)} for argument "
            f"{argument.name or index} ({sharding}); state as many partitions as the mesh has devices"
        )
    return None
