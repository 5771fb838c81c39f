"""Capabilities: what a device says that it can do, before it is asked to do it.

PJRT has no one call for this. What is here is put together from what its calls, attributes and extensions tell; a
device of this package also hands it on through the C API, as the attribute ``pjrt.capabilities``.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from pjrt.api.attributes import Attributes, NamedValue
from pjrt.api.element_type import ElementType

ATTRIBUTE = "pjrt.capabilities"
"""The attribute of a topology or plugin that holds ``Capabilities.to_json``."""


class Feature(enum.StrEnum):
    """Something that a device may have or lack; see ``Capabilities.features``."""

    DYNAMIC_SHAPES = "dynamic_shapes"
    """Programs with sizes that are known only when they run."""
    BOUNDED_DYNAMIC_SHAPES = "bounded_dynamic_shapes"
    """Programs with sizes of which an upper bound is known."""
    QUANTIZED_TYPES = "quantized_types"
    """Programs with uniform-quantized types."""
    COLLECTIVES = "collectives"
    """Programs with operations in which several devices take part."""
    SEND_RECV = "send_recv"
    """Programs that send to and receive from the host (``SendCallback``, ``RecvCallback``)."""
    INFEED_OUTFEED = "infeed_outfeed"
    """Programs with ``stablehlo.infeed`` and ``stablehlo.outfeed``."""
    HOST_CALLBACKS = "host_callbacks"
    """Functions of the host called by programs (``Client.register_ffi_handler``)."""
    PARTITIONING = "partitioning"
    """Programs cut into partitions by their sharding annotations (``CompileOptions.num_partitions``)."""
    DONATION = "donation"
    """Arguments that give their memory to results."""
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
    """What is known of a device's abilities; None, or absence from a mapping, is not known.

    Attributes:
        num_devices: how many devices there are.
        element_types: the types that elements of buffers can have.
        memory_kinds: the kinds of memory of a device, its default one first.
        program_formats: the formats of programs that are taken (``ProgramFormat``).
        stablehlo_minimum_version: the oldest StableHLO version that is read.
        stablehlo_current_version: the newest StableHLO version that is read.
        operations: the operations that are run, by their names, each with the element types that are known to work for
            its first operand (for its first result where it takes none); None where that depends on more. All
            other operations are refused.
        custom_calls: the targets of custom calls that are known; others are refused.
        features: what it has and what it lacks.
        variants: what tells devices of one platform apart, such as ``avx512f`` or ``compute_capability``.
    """

    num_devices: int | None = None
    element_types: frozenset[ElementType] | None = None
    memory_kinds: tuple[str, ...] | None = None
    program_formats: tuple[str, ...] | None = None
    stablehlo_minimum_version: tuple[int, ...] | None = None
    stablehlo_current_version: tuple[int, ...] | None = None
    operations: Mapping[str, frozenset[ElementType] | None] | None = None
    custom_calls: frozenset[str] | None = None
    features: Mapping[Feature, bool] = field(default_factory=dict)
    variants: Mapping[str, NamedValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("operations", "features", "variants"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, MappingProxyType):
                object.__setattr__(self, name, MappingProxyType(dict(value)))

    def has(self, feature: Feature) -> bool | None:
        """Whether the device has a feature; None if that is not known."""
        return self.features.get(feature)

    def completed(self, other: Capabilities) -> Capabilities:
        """These, with what is not known here taken from others; features and variants one by one."""
        chosen: dict[str, Any] = {}
        for each in fields(self):
            mine, theirs = getattr(self, each.name), getattr(other, each.name)
            chosen[each.name] = {**theirs, **mine} if each.name in _BY_KEY else theirs if mine is None else mine
        return Capabilities(**chosen)

    # As text.

    def as_dict(self) -> dict[str, Any]:
        """What is known as plain values, for JSON; ``from_dict`` reads it."""
        found: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None and not (each.name in _BY_KEY and not value):
                found[each.name] = _TO_PLAIN.get(each.name, _same)(value)
        return found

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> Capabilities:
        """What ``as_dict`` gave. Features and element types that this version does not know are left out.

        Raises:
            TypeError, ValueError, AttributeError: it is of another form.
        """
        known = {each.name for each in fields(Capabilities)}
        return Capabilities(
            **{name: _FROM_PLAIN.get(name, _same)(value) for name, value in plain.items() if name in known}
        )

    def to_json(self) -> str:
        """What is known as the value of the attribute ``pjrt.capabilities``."""
        import json  # here and below: start-up would feel it

        return json.dumps(self.as_dict(), separators=(",", ":"))

    @staticmethod
    def from_attributes(attributes: Attributes) -> Capabilities:
        """What the attributes of a plugin or topology tell: the versions of StableHLO, and ``pjrt.capabilities`` where
        they have it. One that cannot be read says nothing.
        """
        import json

        given = Capabilities(
            stablehlo_minimum_version=_version(attributes.get("stablehlo_minimum_version")),
            stablehlo_current_version=_version(attributes.get("stablehlo_current_version")),
        )
        text = attributes.get(ATTRIBUTE)
        if not isinstance(text, str):
            return given
        try:
            stated = Capabilities.from_dict(json.loads(text))
        except (TypeError, ValueError, AttributeError):
            return given
        return given.completed(stated)


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
    """The names grouped by their types, so that the same types are not said for each."""
    groups: defaultdict[frozenset[ElementType] | None, list[str]] = defaultdict(list)
    for name, types in sorted(operations.items()):
        groups[types].append(name)
    return [[None if types is None else _names(types), names] for types, names in groups.items()]


def _operations(plain: Iterable[tuple[Any, Iterable[str]]]) -> dict[str, frozenset[ElementType] | None]:
    found: dict[str, frozenset[ElementType] | None] = {}
    for types, names in plain:
        read = None if types is None else _types(types)
        found.update(dict.fromkeys(map(str, names), read))
    return found


def _features(plain: Mapping[str, bool]) -> dict[Feature, bool]:
    return {Feature(name): bool(has) for name, has in plain.items() if name in _FEATURES}


_FEATURES = frozenset(feature.value for feature in Feature)

_TO_PLAIN: dict[str, Any] = {
    "element_types": _names,
    "operations": _plain_operations,
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
    "custom_calls": frozenset,
    "features": _features,
    "variants": lambda plain: {
        str(name): tuple(value) if isinstance(value, list) else value for name, value in plain.items()
    },
}
