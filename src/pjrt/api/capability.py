"""Capabilities: what a device declares that it can do.

PJRT has no single call for this. Capabilities are put together from PJRT's calls, attributes and extensions. The
devices of this package also pass them through the C API, as the attribute ``pjrt.capabilities``.
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
