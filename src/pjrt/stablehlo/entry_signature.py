"""The signature of a program's entry function: its arguments and results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError
from pjrt.api.program import AnyProgram
from pjrt.stablehlo import conversion
from pjrt.stablehlo._mlir import MlirModule
from pjrt.stablehlo.operation import ParsedProgram
from pjrt.stablehlo.parser import parse_module
from pjrt.stablehlo.shapes.argument_shapes import StatedShape
from pjrt.stablehlo.shapes.shape_assertions import symbolic_shapes
from pjrt.stablehlo.types import TensorType, TokenType, ValueType


class _TensorFacts:
    """Short forms for the element type and the shape. A token has the shape of a scalar."""

    __slots__ = ()
    type: ValueType

    @property
    def element_type(self) -> ElementType:
        """The element type.

        Raises:
            InvalidArgumentError: the type is neither a tensor's nor a token's.
        """
        return ElementType.TOKEN if isinstance(self.type, TokenType) else self._tensor().element

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape; None for a size that is known only when the program runs.

        Raises:
            InvalidArgumentError: the type is neither a tensor's nor a token's.
        """
        return () if isinstance(self.type, TokenType) else self._tensor().shape

    def _tensor(self) -> TensorType:
        if not isinstance(self.type, TensorType):
            raise InvalidArgumentError(f"expected a tensor as argument or result of a program, found {self.type}")
        return self.type


@dataclass(frozen=True, slots=True)
class ArgumentInfo(_TensorFacts):
    """An argument of the entry function.

    Attributes:
        name: its name in the author's program; empty if unknown.
        type: its type.
        aliases_output: the result that may use its memory (``tf.aliasing_output``); None if none is named.
        is_donor: whether its memory may be used for any result (``jax.buffer_donor``).
        sharding: its sharding over devices, as the program spells it; empty if none is stated.
        layout: the layout that the program asks for (``mhlo.layout_mode``); empty if none is stated.
        memory_kind: the kind of memory that the program asks for; empty if none is stated.
        symbolic_shape: the shape of a tensor with the symbols that the program states for its dynamic sizes, such as
            ``("b", 16)``; None for a dynamic size without one.
    """

    name: str
    type: ValueType
    aliases_output: int | None = None
    is_donor: bool = False
    sharding: str = ""
    layout: str = ""
    memory_kind: str = ""
    symbolic_shape: tuple[int | str | None, ...] = ()


@dataclass(frozen=True, slots=True)
class ResultInfo(_TensorFacts):
    """A result of the entry function.

    Attributes:
        name: its name in the author's program (``jax.result_info``); empty if unknown.
        type: its type.
        sharding: as for an argument.
        layout: as for an argument.
        memory_kind: as for an argument.
    """

    name: str
    type: ValueType
    sharding: str = ""
    layout: str = ""
    memory_kind: str = ""


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments and results of a program.

    Attributes:
        arguments: the arguments of the entry function.
        results: the results of the entry function.
    """

    arguments: tuple[ArgumentInfo, ...]
    results: tuple[ResultInfo, ...]


def signature(program: AnyProgram, *, trusted: bool = False) -> Signature:
    """Return the arguments and results of a program in any encoding: the part of ``inspect`` that takes little time.

    Args:
        program: the program.
        trusted: as for ``inspect``.

    Raises:
        PjrtError: as for ``inspect``.
    """
    module = conversion.to_module(program, trusted=trusted)
    return signature_of(parse_module(module, bodies=False), module)


def signature_of(parsed: ParsedProgram, module: MlirModule | None = None) -> Signature:
    """Return the arguments and results of a parsed program.

    Args:
        parsed: the program.
        module: the module that it was parsed from, for the symbols of dynamic sizes; without it they have none.
    """
    entry, of_module = parsed.entry, _module_aliases(parsed)
    shapes: list[StatedShape] = [_shape(type_) for type_ in entry.type.arguments]
    if module is not None:
        shapes = symbolic_shapes(module, shapes)
    arguments = zip(_argument_names(parsed), entry.type.arguments, entry.argument_attributes, shapes, strict=True)
    return Signature(
        tuple(
            ArgumentInfo(
                name,
                type_,
                _index(attributes.get("tf.aliasing_output", of_module.get(index))),
                attributes.get("jax.buffer_donor", False) is True,
                *_placement(attributes),
                symbolic_shape=tuple(shape),
            )
            for index, (name, type_, attributes, shape) in enumerate(arguments)
        ),
        tuple(
            ResultInfo(text_of(attributes.get("jax.result_info")), type_, *_placement(attributes))
            for type_, attributes in zip(entry.type.results, entry.result_attributes, strict=True)
        ),
    )


def _shape(type_: ValueType) -> StatedShape:
    return type_.shape if isinstance(type_, TensorType) else ()


def _argument_names(parsed: ParsedProgram) -> tuple[str, ...]:
    """Return the names of the entry function's arguments.

    In a program of ``jax.export`` with dynamic shapes only the function that the entry function wraps has them, behind
    arguments for the symbols.
    """
    names, wrapped = parsed.entry.argument_names, parsed.functions.get("_wrapped_jax_export_main")
    if wrapped is not None and not any(names) and len(wrapped.argument_names) >= len(names):
        names = wrapped.argument_names[len(wrapped.argument_names) - len(names) :]
    # The name of an argument that no caller of the function passes, such as the index of the platform.
    constants = [text_of(attributes.get("jax.global_constant")) for attributes in parsed.entry.argument_attributes]
    return tuple(constant or name for constant, name in zip(constants, names, strict=True))


def _module_aliases(parsed: ParsedProgram) -> dict[int, int]:
    """Return the aliases that a module from HLO states as a whole: the result's number by the argument's."""
    stated = parsed.attributes.get("mhlo.input_output_alias", ())
    aliases: dict[int, int] = {}
    for entry in stated if isinstance(stated, tuple) else ():
        match entry:
            case {"alias": {"parameter_number": int(argument)}, "output_index": output} if len(output) <= 1:
                aliases[argument] = int(output[0]) if len(output) else 0
    return aliases


def _index(attribute: Any) -> int | None:
    return attribute if isinstance(attribute, int) else None


def _placement(attributes: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the sharding, layout and memory kind in the attributes of an argument or result."""
    sharding = attributes.get("sdy.sharding", attributes.get("mhlo.sharding"))
    return (
        text_of(sharding),
        text_of(attributes.get("mhlo.layout_mode")),
        text_of(attributes.get("mhlo.memory_kind")),
    )


def text_of(attribute: Any) -> str:
    """Return an attribute as a program spells it; empty for a missing one."""
    if attribute is None:
        return ""
    return str(getattr(attribute, "text", attribute))
