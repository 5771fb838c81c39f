"""Capabilities: what a device declares that it can do, and whether it can run a program.

PJRT has no single call for capabilities. They are put together from PJRT's calls, attributes and extensions. The
devices of this package also pass them through the C API, as the attribute ``pjrt.capabilities``.

An ``Effort`` limits how much is done to find out, before it runs, whether a program does. The verdict is yes or no only
if that is certain. Otherwise it is maybe, and the reasons name what is unknown.
"""

from __future__ import annotations

import enum
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from pjrt.api.device import Attributes, NamedValue
from pjrt.api.element_type import ElementType
from pjrt.api.errors import (
    AbortedError,
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    PjrtError,
    ResourceExhaustedError,
    UnavailableError,
    UnimplementedError,
)
from pjrt.api.executable import Executable
from pjrt.api.loaded_executable import LoadedExecutable
from pjrt.api.program import AnyProgram, Program, SourceLocation

if TYPE_CHECKING:
    from pjrt.api.client import Client
    from pjrt.api.compile_options import CompileOptions
    from pjrt.api.topology import TopologyDescription


ATTRIBUTE = "pjrt.capabilities"
"""The attribute of a topology or plugin that holds ``Capabilities.to_json``."""


class Feature(enum.StrEnum):
    """An ability that a device may have or lack; see ``Capabilities.features``."""

    DYNAMIC_SHAPES = "dynamic_shapes"
    """Programs with sizes that only a run decides."""
    BOUNDED_DYNAMIC_SHAPES = "bounded_dynamic_shapes"
    """Programs with sizes that only a run decides, up to a known bound."""
    QUANTIZED_TYPES = "quantized_types"
    """Programs with uniform-quantized types."""
    COLLECTIVES = "collectives"
    """Programs with operations in which several devices take part."""
    SEND_RECV = "send_recv"
    """Programs that send to and receive from the host (``SendCallback``, ``RecvCallback``)."""
    INFEED_OUTFEED = "infeed_outfeed"
    """Programs with ``stablehlo.infeed`` and ``stablehlo.outfeed``."""
    HOST_CALLBACKS = "host_callbacks"
    """Host functions that programs call (``Client.register_ffi_handler``)."""
    PARTITIONING = "partitioning"
    """Programs cut into partitions by their sharding annotations (``CompileOptions.num_partitions``)."""
    DONATION = "donation"
    """Arguments whose memory results take over."""
    LAYOUTS = "layouts"
    """Buffers with dimensions in another order than the default one (``TiledLayout.minor_to_major``)."""
    TILED_LAYOUTS = "tiled_layouts"
    """Buffers in tiles (``TiledLayout.tiles``)."""
    STRIDED_LAYOUTS = "strided_layouts"
    """Buffers with strides of any size (``StridedLayout``)."""
    AOT_TOPOLOGIES = "aot_topologies"
    """Compiling for a topology (``TopologyDescription.compile``)."""
    SERIALIZATION = "serialization"
    """Executables as bytes (``Executable.serialize``, ``Client.deserialize``)."""
    ASYNC_TRANSFERS = "async_transfers"
    """Buffers filled piece by piece (``Client.create_buffers_for_async_host_to_device``)."""
    CROSS_HOST_TRANSFERS = "cross_host_transfers"
    """Buffers sent between processes (``Client.cross_host_send_buffers``)."""
    UNINITIALIZED_BUFFERS = "uninitialized_buffers"
    """``Client.create_uninitialized_buffer``."""
    ERROR_BUFFERS = "error_buffers"
    """``Client.create_error_buffer``."""
    ALIAS_BUFFERS = "alias_buffers"
    """``Client.create_alias_buffer``."""
    DEVICE_VIEWS = "device_views"
    """``Client.create_view_of_device_buffer``."""
    DMA_MAPPING = "dma_mapping"
    """``Client.dma_map``."""
    EXECUTE_CONTEXTS = "execute_contexts"
    """``Client.create_execute_context``."""
    MEMORY_STATISTICS = "memory_statistics"
    """``Device.memory_stats``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The declared abilities of a device; ``None``, or absence from a mapping, means unknown.

    Attributes:
        num_devices: the number of devices.
        element_types: the element types of buffers.
        memory_kinds: the kinds of memory of a device, its default one first.
        program_formats: the accepted formats of programs (``ProgramFormat``).
        stablehlo_minimum_version: the oldest StableHLO version that the device reads.
        stablehlo_current_version: the newest StableHLO version that the device reads.
        operations: the operations that the device runs, by name, each with the element types that are known to work for
            its first operand (for its first result if it has no operand); ``None`` if that depends on more. All other
            operations are unsupported.
        native_operations: the operations that the device's own code runs, where a fallback runs the others.
        custom_calls: the supported targets of custom calls; all others are unsupported.
        features: which features the device has, and which it lacks.
        variants: facts that tell devices of one platform apart, such as ``avx512f`` or ``compute_capability``.
    """

    num_devices: int | None = None
    element_types: frozenset[ElementType] | None = None
    memory_kinds: tuple[str, ...] | None = None
    program_formats: tuple[str, ...] | None = None
    stablehlo_minimum_version: tuple[int, ...] | None = None
    stablehlo_current_version: tuple[int, ...] | None = None
    operations: Mapping[str, frozenset[ElementType] | None] | None = None
    native_operations: frozenset[str] | None = None
    custom_calls: frozenset[str] | None = None
    features: Mapping[Feature, bool] = field(default_factory=dict)
    variants: Mapping[str, NamedValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("operations", "features", "variants"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, MappingProxyType):
                object.__setattr__(self, name, MappingProxyType(dict(value)))

    def has(self, feature: Feature) -> bool | None:
        """Return whether the device has a feature; ``None`` if that is unknown."""
        return self.features.get(feature)

    def completed(self, other: Capabilities) -> Capabilities:
        """Return these, with unknown entries taken from another; features and variants are merged one by one."""
        chosen: dict[str, Any] = {}
        for each in fields(self):
            mine, theirs = getattr(self, each.name), getattr(other, each.name)
            chosen[each.name] = {**theirs, **mine} if each.name in _BY_KEY else theirs if mine is None else mine
        return Capabilities(**chosen)

    # As text.

    def as_dict(self) -> dict[str, Any]:
        """Return the known entries as plain values, for JSON; ``from_dict`` reads them."""
        plain: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None and not (each.name in _BY_KEY and not value):
                plain[each.name] = _TO_PLAIN.get(each.name, _same)(value)
        return plain

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> Capabilities:
        """Return the capabilities that ``as_dict`` wrote. Unknown features and element types are left out.

        Raises:
            TypeError, ValueError, AttributeError: the values have another form.
        """
        names = {each.name for each in fields(Capabilities)}
        return Capabilities(
            **{name: _FROM_PLAIN.get(name, _same)(value) for name, value in plain.items() if name in names}
        )

    def to_json(self) -> str:
        """Return the value of the attribute ``pjrt.capabilities``."""
        import json  # Imported here and below, because it would slow down start-up.

        return json.dumps(self.as_dict(), separators=(",", ":"))

    @staticmethod
    def from_attributes(attributes: Attributes) -> Capabilities:
        """Return the capabilities in the attributes of a plugin or topology: the versions of StableHLO, and
        ``pjrt.capabilities`` if it is there. One that cannot be parsed is ignored.
        """
        import json

        versions = Capabilities(
            stablehlo_minimum_version=_version(attributes.get("stablehlo_minimum_version")),
            stablehlo_current_version=_version(attributes.get("stablehlo_current_version")),
        )
        text = attributes.get(ATTRIBUTE)
        if not isinstance(text, str):
            return versions
        try:
            declared = Capabilities.from_dict(json.loads(text))
        except (TypeError, ValueError, AttributeError):
            return versions
        return versions.completed(declared)


_BY_KEY = ("features", "variants")


def _version(value: Any) -> tuple[int, ...] | None:
    if isinstance(value, (tuple, list)) and value and all(isinstance(number, int) for number in value):
        return tuple(value)
    return None


def _same(value: Any) -> Any:
    return value


def _names(types: Iterable[ElementType]) -> list[str]:
    return [type_.name for type_ in sorted(types)]


def _types(names: Iterable[str]) -> frozenset[ElementType]:
    return frozenset(ElementType[name] for name in names if name in ElementType.__members__)


def _plain_operations(operations: Mapping[str, frozenset[ElementType] | None]) -> list[list[Any]]:
    """Group the names by their types, so that a set of types is written once."""
    groups: defaultdict[frozenset[ElementType] | None, list[str]] = defaultdict(list)
    for name, types in sorted(operations.items()):
        groups[types].append(name)
    return [[None if types is None else _names(types), names] for types, names in groups.items()]


def _operations(plain: Iterable[tuple[Any, Iterable[str]]]) -> dict[str, frozenset[ElementType] | None]:
    operations: dict[str, frozenset[ElementType] | None] = {}
    for types, names in plain:
        types_of_group = None if types is None else _types(types)
        operations.update(dict.fromkeys(map(str, names), types_of_group))
    return operations


def _features(plain: Mapping[str, bool]) -> dict[Feature, bool]:
    return {Feature(name): bool(has) for name, has in plain.items() if name in _FEATURES}


_FEATURES = frozenset(feature.value for feature in Feature)

_TO_PLAIN: dict[str, Any] = {
    "element_types": _names,
    "operations": _plain_operations,
    "native_operations": sorted,
    "custom_calls": sorted,
    "features": lambda features: {feature.value: has for feature, has in features.items()},
    "variants": dict,
}
_FROM_PLAIN: dict[str, Any] = {
    "element_types": _types,
    "memory_kinds": tuple,
    "program_formats": tuple,
    "stablehlo_minimum_version": _version,
    "stablehlo_current_version": _version,
    "operations": _operations,
    "native_operations": frozenset,
    "custom_calls": frozenset,
    "features": _features,
    "variants": lambda plain: {
        str(name): tuple(value) if isinstance(value, list) else value for name, value in plain.items()
    },
}


class Verdict(enum.StrEnum):
    """Whether a device can run a program."""

    YES = "yes"
    NO = "no"
    MAYBE = "maybe"


class Effort(enum.StrEnum):
    """The work that is done to find the verdict, the cheapest first."""

    OPS = "ops"
    """Look at the names of the program's operations, its format and its version."""
    TYPES = "types"
    """Look at types and attributes too: element types, shapes, targets of custom calls, kinds of memory, counts."""
    COMPILE = "compile"
    """Compile the program, and throw the executable away."""


class ReasonKind(enum.StrEnum):
    """The subject of a reason."""

    OP = "op"
    TYPE = "type"
    ATTRIBUTE = "attribute"
    VERSION = "version"
    FORMAT = "format"
    FEATURE = "feature"
    COMPILE = "compile"


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason why a device cannot run a program, or why that is unknown.

    Attributes:
        verdict: ``NO`` if it rules the program out, ``MAYBE`` if it leaves the question open.
        kind: the kind of the subject.
        subject: the operation, type, attribute, version, format or feature.
        message: the program's need and the device's ability.
        locations: the first few places in the source.
        count: the number of places; 0 if the reason has no places.
    """

    verdict: Verdict
    kind: ReasonKind
    subject: str
    message: str
    locations: tuple[SourceLocation, ...] = ()
    count: int = 0

    def __str__(self) -> str:
        at = ", ".join(map(str, self.locations))
        more = self.count - len(self.locations)
        return self.message + (f" [{at}{f' and {more} more' if at and more > 0 else ''}]" if at else "")


@dataclass(frozen=True, slots=True)
class Support:
    """Whether a device can run a program.

    Attributes:
        verdict: yes, no or maybe; a ``Support`` is true if it is yes.
        effort: the effort that found the verdict.
        reasons: the reasons for a no, then those for a maybe; empty if the verdict is yes.
    """

    verdict: Verdict
    effort: Effort
    reasons: tuple[Reason, ...] = ()

    @staticmethod
    def of(effort: Effort, reasons: Sequence[Reason]) -> Support:
        """Return the verdict for these reasons; yes if there are none."""
        ordered = tuple(sorted(reasons, key=lambda reason: reason.verdict is not Verdict.NO))
        return Support(ordered[0].verdict if ordered else Verdict.YES, effort, ordered)

    def __bool__(self) -> bool:
        return self.verdict is Verdict.YES

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict and its reasons as plain values, for JSON; ``from_dict`` reads them."""
        return {
            "verdict": self.verdict.value,
            "effort": self.effort.value,
            "reasons": [
                {
                    "verdict": reason.verdict.value,
                    "kind": reason.kind.value,
                    "subject": reason.subject,
                    "message": reason.message,
                    "count": reason.count,
                    "locations": [place._asdict() for place in reason.locations],
                }
                for reason in self.reasons
            ],
        }

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> Support:
        """Return the verdict that ``as_dict`` wrote."""
        reasons = tuple(
            Reason(
                Verdict(each["verdict"]),
                ReasonKind(each["kind"]),
                each["subject"],
                each["message"],
                tuple(SourceLocation(**place) for place in each["locations"]),
                each["count"],
            )
            for each in plain["reasons"]
        )
        return Support(Verdict(plain["verdict"]), Effort(plain["effort"]), reasons)


StaticCheck = Callable[[Effort], Sequence[Reason]]
"""A look at a program: it returns its reasons against the program for ``Effort.OPS`` or ``Effort.TYPES``."""


def format_reason(format_: str, capabilities: Capabilities) -> Reason | None:
    """Return the reason against a program of a format that the device does not take; ``None`` if it may take it."""
    accepted = capabilities.program_formats
    if accepted is None or format_ in accepted:
        return None
    message = f"the program has the format '{format_}', the device takes {', '.join(map(repr, accepted))}"
    return Reason(Verdict.NO, ReasonKind.FORMAT, format_, message)


def only_format(program: AnyProgram, capabilities: Capabilities) -> StaticCheck:
    """Return a check of a program's format and of nothing else, for devices that do not look into programs."""
    unknown = Reason(Verdict.MAYBE, ReasonKind.OP, "operations", "the device does not look into programs")
    reason = format_reason(str(Program.of(program).format), capabilities) or unknown
    return lambda effort: (reason,)


def decide(effort: Effort | str | None, static_check: StaticCheck, compile: Callable[[], Any] | None) -> Support:
    """Return the verdict of one effort, or of the cheapest effort that gives a yes or a no.

    Args:
        effort: the effort to make; ``None`` for as much as is needed.
        static_check: a look at the program.
        compile: a function that compiles the program; ``None`` if the device must be present for that and is not.

    Raises:
        InvalidArgumentError: the effort is unknown.
    """
    chosen = _effort(effort)
    undecided: Support | None = None
    for cheap in (Effort.OPS, Effort.TYPES):
        if chosen in (None, cheap):
            reasons = static_check(cheap)
            against = [reason for reason in reasons if reason.verdict is Verdict.NO]
            support = Support.of(cheap, against or reasons)
            if chosen is cheap or support.verdict is not Verdict.MAYBE:
                return support
            undecided = support
    if compile is None:
        missing = Reason(
            Verdict.MAYBE, ReasonKind.COMPILE, "compile", "it was not compiled: there is no compiler without the device"
        )
        return Support.of(chosen or Effort.TYPES, [*(() if undecided is None else undecided.reasons), missing])
    return _compiled(compile, undecided)


def _effort(effort: Effort | str | None) -> Effort | None:
    try:
        return None if effort is None else Effort(effort)
    except ValueError:
        raise InvalidArgumentError(f"expected the effort 'ops', 'types' or 'compile', found {effort!r}") from None


def _compiled(compile: Callable[[], Any], before: Support | None) -> Support:
    """Return the compiler's verdict. A no keeps the doubts from before, because they may point to its place."""
    try:
        compile()
    except PjrtError as error:
        doubts = () if before is None else before.reasons
        located = [reason for reason in doubts if reason.locations or reason.kind is ReasonKind.VERSION]
        return Support.of(Effort.COMPILE, [refusal(error), *located])
    return Support(Verdict.YES, Effort.COMPILE)


_TRANSIENT = (AbortedError, CancelledError, DeadlineExceededError, FailedPreconditionError, UnavailableError)
"""Errors about the compiler's own state, not about the program."""


def refusal(error: PjrtError) -> Reason:
    """Return the reason for the error of a compilation, with the operation and the places that its text names."""
    verdict = Verdict.MAYBE if isinstance(error, _TRANSIENT) else Verdict.NO
    text = " ".join(error.message.split())
    match = _OPERATION.search(text)
    places = tuple(dict.fromkeys(places_in(error.message)))
    kind, subject = (ReasonKind.OP, match[0]) if match else (ReasonKind.COMPILE, error.code.name)
    message = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return Reason(verdict, kind, subject, message, places[:SHOWN], len(places))


def try_compiling(place: Client | TopologyDescription, program: AnyProgram, options: CompileOptions | None) -> None:
    """Compile a program for a client or topology, and throw the executable away.

    Raises:
        ResourceExhaustedError: a run needs more memory than a device has.
        PjrtError: the compiler refuses the program.
    """
    executable = place.compile(program, options)
    try:
        check_memory(executable, _memory_limit(place))
    finally:
        if isinstance(executable, LoadedExecutable):
            executable.delete()


def check_memory(executable: Executable, limit: int | None) -> None:
    """Compare the memory that one run of an executable needs with that of a device.

    Args:
        executable: the executable; one that does not report its memory passes.
        limit: the bytes of memory of the device; ``None`` if unknown.

    Raises:
        ResourceExhaustedError: the run needs more memory than the device has.
    """
    if limit is None:
        return
    try:
        needed = executable.memory_stats().needed_in_bytes
    except UnimplementedError:
        return
    if needed > limit:
        raise ResourceExhaustedError(
            f"a run needs {needed} bytes of memory on each device, {needed / limit:.0%} of the {limit} that a device "
            "has; use more partitions, a smaller program or devices with more memory"
        )


def _memory_limit(place: Client | TopologyDescription) -> int | None:
    if not hasattr(place, "addressable_devices"):  # to import either class would be a circle
        return place.device_descriptions[0].memory_limit_in_bytes
    for device in cast("Client", place).addressable_devices:
        try:
            limit = device.memory_stats().bytes_limit
        except UnimplementedError:
            limit = None
        return device.description.memory_limit_in_bytes if limit is None else limit
    return None


SHOWN = 8
"""The most places that a reason lists."""

_LONGEST = 2000
_OPERATION = re.compile(r"\b(?:stablehlo|chlo|mhlo|vhlo|sdy|func|arith|shape|tensor|linalg|math)\.[a-z_]\w*")
_PLACE = re.compile(r"(?P<file>(?<!\S)-|<program>|[^\s\"'()\[\]<>:,]+\.\w+|\"[^\"]+\"):(?P<line>\d+):(?P<column>\d+)")
_NO_COLUMN = re.compile(r"\bLocation:\s+(?P<file>[^\s:]+):(?P<line>\d+)(?![\d:])")
_OF_COMPILERS = (".cc", ".cpp", ".h")
"""The endings of the files of compilers: a place in them is not a place in a program."""

_LINE = re.compile(r"\bline (?P<line>\d+), column (?P<column>\d+)")


def places_in(message: str) -> list[SourceLocation]:
    """Return the places that an error's text names: ``model.py:7:3``, ``-:1:60``, ``line 1, column 60``."""
    places = []
    for match in _PLACE.finditer(message):
        file = match["file"].strip('"')
        if file.endswith(_OF_COMPILERS):
            continue
        places.append(
            SourceLocation("", "-" if file == "<program>" else file, int(match["line"]), int(match["column"]))
        )
    places += [SourceLocation("", "-", int(match["line"]), int(match["column"])) for match in _LINE.finditer(message)]
    places += [SourceLocation("", match["file"], int(match["line"]), 0) for match in _NO_COLUMN.finditer(message)]
    return places
