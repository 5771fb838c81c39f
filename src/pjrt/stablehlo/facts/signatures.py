"""The arguments and results of a program: as a device needs them, as the program states them, as a caller sees them.

The last, call signatures, are nested and have names. They may differ from the signature of the program's entry
function: a file can hold values for some arguments, and a program may not need all that the caller passes.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.api.program import AnyProgram, Program
from pjrt.api.shape_spec import ShapeSpec, TiledLayout
from pjrt.stablehlo.encodings import jaxlib
from pjrt.stablehlo.ir.argument_shapes import StatedShape, is_dynamic, symbolic_shapes
from pjrt.stablehlo.ir.mlir_module import MlirModule
from pjrt.stablehlo.ir.operation import ParsedProgram
from pjrt.stablehlo.ir.sharding import Sharding
from pjrt.stablehlo.ir.tree import Tree
from pjrt.stablehlo.ir.types import TensorType, TokenType, ValueType
from pjrt.stablehlo.reading import conversion
from pjrt.stablehlo.reading.parser import parse_module
from pjrt.stablehlo.reading.reader import as_program

LAYOUT_ATTRIBUTE = "mhlo.layout_mode"
"""The attribute of an argument or result in which a framework asks for a layout."""
_MEMORY_KIND = "mhlo.memory_kind"
_DEFAULT_KIND = "device"
_UNSPECIFIC = ("default", "auto")


def shape_spec(type_: ValueType) -> ShapeSpec | None:
    """Return the shape and element type of an argument or result; ``None`` if it is unknown before the program runs."""
    if isinstance(type_, TokenType):
        return ShapeSpec((), ElementType.TOKEN)
    if isinstance(type_, TensorType) and type_.is_static:
        return ShapeSpec(type_.sizes, type_.element)
    return None


def donations(attributes: Sequence[Mapping[str, Any]]) -> tuple[dict[int, int], list[int]]:
    """Return the arguments that a program donates.

    Args:
        attributes: the attributes of each argument.

    Returns:
        The result whose memory an argument becomes (``tf.aliasing_output``), by the argument's number; and the numbers
        of arguments whose memory any result may use (``jax.buffer_donor``).

    Raises:
        InvalidArgumentError: an attribute names no result.
    """
    aliases, donors = {}, []
    for number, stated in enumerate(attributes):
        if "tf.aliasing_output" in stated:
            output = _index(stated["tf.aliasing_output"])
            if output is None:
                raise InvalidArgumentError(
                    f"expected tf.aliasing_output of argument {number} to be the number of a result, "
                    f"found {stated['tf.aliasing_output']!r}"
                )
            aliases[number] = output
        elif stated.get("jax.buffer_donor"):
            donors.append(number)
    return aliases, donors


def memory_kinds(attributes: Sequence[Mapping[str, Any]]) -> list[str | None] | None:
    """Return the kinds of memory that a program asks for, for its arguments or results (``mhlo.memory_kind``).

    Args:
        attributes: the attributes of each argument, or of each result.

    Returns:
        The kind of each, ``None`` for the device's default, which frameworks call ``device``; or ``None`` if all are in
        the default memory.
    """
    kinds = [stated.get(_MEMORY_KIND) for stated in attributes]
    asked = [kind if isinstance(kind, str) and kind != _DEFAULT_KIND else None for kind in kinds]
    return asked if any(kind is not None for kind in asked) else None


def with_asked_layouts(specs: Sequence[ShapeSpec], attributes: Sequence[Mapping[str, Any]]) -> list[ShapeSpec]:
    """Return the specs of a program's arguments or results with the layouts that the program asks for.

    Frameworks state them in an attribute of the argument or result. Where that is ``auto`` or missing, the spec stays
    as it is, and the device chooses.

    Args:
        specs: the arguments or results.
        attributes: the attributes of each; where tuples were taken apart their number differs, and they are ignored.

    Raises:
        InvalidArgumentError: an attribute spells no layout.
    """
    if len(specs) != len(attributes):
        return list(specs)
    return [_asked(spec, given.get(LAYOUT_ATTRIBUTE)) for spec, given in zip(specs, attributes, strict=True)]


def _asked(spec: ShapeSpec, mode: object) -> ShapeSpec:
    if not isinstance(mode, str) or mode in _UNSPECIFIC or spec.element_type is ElementType.TOKEN:
        return spec
    return dataclasses.replace(spec, layout=TiledLayout.parse(mode))


def free_transposes(
    function: Any, arguments: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return the attributes of a program's results with a layout for those that are ``auto`` and transposed.

    It is the layout in which the transpose moves nothing, as XLA's compilers choose it.

    Args:
        function: the function, in the bindings of MLIR.
        arguments: the attributes of each argument, which may state a layout.
        results: the attributes of each result.
    """
    chosen = list(results)
    automatic = [number for number, stated in enumerate(results) if stated.get(LAYOUT_ATTRIBUTE) == "auto"]
    *_, returned = function.regions[0].blocks[0].operations if automatic else (function,)
    for number in automatic:
        value = returned.operands[number]
        permutations = []
        while (name := getattr(value.owner, "name", "")) in ("stablehlo.reshape", "stablehlo.transpose"):
            source = value.owner.operands[0]
            if name == "stablehlo.transpose":
                permutations.append(list(value.owner.attributes["permutation"]))
            elif source.type != value.type:  # the partitioner leaves reshapes to the same shape
                break
            value = source
        if permutations:
            stated = arguments[value.arg_number] if hasattr(value, "arg_number") else {}
            mode = stated.get(LAYOUT_ATTRIBUTE)
            order: Sequence[int] = range(len(permutations[0]))[::-1]
            if isinstance(mode, str) and mode not in _UNSPECIFIC:
                order = TiledLayout.parse(mode).minor_to_major
            for permutation in reversed(permutations):
                order = [permutation.index(dimension) for dimension in order]
            chosen[number] = {**chosen[number], LAYOUT_ATTRIBUTE: "{" + ",".join(map(str, order)) + "}"}
    return chosen


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
    program = as_program(program)
    if not jaxlib.is_installed():
        from pjrt.stablehlo.reading.plain_signature import can_read  # here: with jaxlib it is not needed

        if can_read(program):
            return plainly_signed(program)
    module = conversion.to_module(program, trusted=trusted)
    found = signature_of(parse_module(module, bodies=False), module)
    conversion.keep_module(program, module)
    return found


def plainly_signed(program: Program) -> Signature:
    """Return the arguments and results of MLIR text or an HLO proto, without jaxlib.

    Raises:
        PjrtError: as for ``plain_types``.
    """
    from pjrt.stablehlo.reading.plain_signature import plain_types

    arguments, results = plain_types(program)
    return Signature(
        tuple(
            ArgumentInfo(
                name,
                type_,
                int(alias[1]) if (alias := re.search(r"tf\.aliasing_output\s*=\s*(\d+)", text)) else None,
                bool(re.search(r"jax\.buffer_donor\s*=\s*true", text)),
                *_written_placement(text),
                tuple(_shape(type_)) if isinstance(type_, TensorType) else (),
            )
            for name, type_, text in arguments
        ),
        tuple(ResultInfo(name, type_, *_written_placement(text)) for name, type_, text in results),
    )


def _written_placement(text: str) -> tuple[str, str, str]:
    return _stated(text, "mhlo.sharding"), _stated(text, LAYOUT_ATTRIBUTE), _stated(text, _MEMORY_KIND)


def _stated(text: str, attribute: str) -> str:
    """Return the text of an attribute in the text of several; empty where it is not among them."""
    match = re.search(rf'{re.escape(attribute)}\s*=\s*"((?:[^"\\]|\\.)*)"', text)
    return match[1] if match else ""


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
    return (
        text_of(attributes.get("sdy.sharding")) or _sharding(attributes.get("mhlo.sharding")),
        text_of(attributes.get("mhlo.layout_mode")),
        text_of(attributes.get("mhlo.memory_kind")),
    )


def _sharding(stated: str | bytes | None) -> str:
    """Return a sharding as XLA spells it, also one that a program states as a serialized message."""
    message = stated if isinstance(stated, bytes) else text_of(stated).encode()
    if not Sharding.is_serialized(message):
        return message.decode()
    try:
        return Sharding.from_proto(message).to_text()
    except PjrtError:  # one without tiles
        return message.hex()


def text_of(attribute: Any) -> str:
    """Return an attribute as a program spells it; empty for a missing one."""
    if attribute is None:
        return ""
    return str(getattr(attribute, "text", attribute))


Sizes = tuple[int | str | None, ...]
"""A shape: a size is a number, the symbol of a dynamic size such as ``batch``, or None for one without a symbol."""


@dataclass(frozen=True, slots=True)
class Result:
    """One array that a program returns.

    Attributes:
        index: its position among the results.
        name: its path in the nested results, such as ``result['logits']``; empty if unknown.
        element_type: the type of its elements.
        shape: its shape; a dynamic size is a symbol or None.
        sharding: its sharding over devices, as the program spells it; empty if none is stated.
    """

    index: int
    name: str
    element_type: ElementType
    shape: Sizes
    sharding: str = ""

    @property
    def is_dynamic(self) -> bool:
        """Whether a size of it is known only when the program is called."""
        return is_dynamic(self.shape)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape, where it is static.

        Raises:
            InvalidArgumentError: a size is known only when the program is called.
        """
        if is_dynamic(self.shape):
            raise InvalidArgumentError(f"expected a static shape, found {self}: give the shapes of the arguments")
        return cast("tuple[int, ...]", self.shape)

    def __str__(self) -> str:
        return f"result {self._description()}"

    def _description(self) -> str:
        label = f"{self.index}" + (f" ({self.name})" if self.name else "")
        sizes = ",".join("?" if size is None else str(size) for size in self.shape)
        return f"{label}: {self.element_type.name.lower()}[{sizes}]"


@dataclass(frozen=True, slots=True)
class Parameter(Result):
    """One array that a program takes.

    Attributes:
        donated: whether the program may use its memory for results; an array on the devices is deleted by the call.
        argument: its position among the arguments of the entry function; None if the program does not need it.
    """

    donated: bool = False
    argument: int | None = None

    def __str__(self) -> str:
        return f"argument {self._description()}"


@dataclass(frozen=True, slots=True)
class CallSignature:
    """The arguments and results of a program as its caller sees them.

    Attributes:
        parameters: the arrays that it takes, in order.
        results: the arrays that it returns, in order.
        input_tree: the nested structure of the arguments, a tuple of the positional ones and a dictionary of the
            others; None if it is unknown.
        output_tree: the nested structure of the results that a call returns; None if it is unknown.
        updates: the last results may be new values of weights and parameters, for the next call: the positions of
            these among the arguments of the entry function, by the index of the result.
    """

    parameters: tuple[Parameter, ...]
    results: tuple[Result, ...]
    input_tree: Tree | None = None
    output_tree: Tree | None = None
    updates: Mapping[int, int] = field(default_factory=dict)

    def result_names(self) -> tuple[str, ...]:
        """Return a different name for each result: its own, or ``result_0`` by its index where names are missing."""
        names = [result.name for result in self.results]
        return tuple(name if name and names.count(name) == 1 else f"result_{index}" for index, name in enumerate(names))

    @staticmethod
    def of(signature: Signature) -> CallSignature:
        """Return the flat call signature of an entry function.

        Raises:
            UnimplementedError: an argument or a result is not an array, such as a token.
        """
        parameters, results = [], []
        for index, argument in enumerate(signature.arguments):
            type_ = _tensor(f"argument {index}", argument)
            parameters.append(
                Parameter(
                    index,
                    argument.name,
                    type_.element,
                    argument.symbolic_shape,
                    argument.sharding,
                    donated=argument.is_donor or argument.aliases_output is not None,
                    argument=index,
                )
            )
        for index, result in enumerate(signature.results):
            type_ = _tensor(f"result {index}", result)
            results.append(Result(index, result.name, type_.element, type_.shape, result.sharding))
        return CallSignature(tuple(parameters), tuple(results))

    def program_signature(self, weights: Mapping[int, TensorType] | None = None) -> Signature:
        """Return the arguments and results of the entry function, whose shapes are static.

        Args:
            weights: the types of arguments that are no parameters, by their positions among the arguments.

        Raises:
            InvalidArgumentError: a size is known only when the program is called.
        """
        arguments = {position: ArgumentInfo("", type_) for position, type_ in (weights or {}).items()}
        for each in self.parameters:
            if each.argument is not None:
                type_ = TensorType(each.sizes, each.element_type)
                arguments[each.argument] = ArgumentInfo(each.name, type_, is_donor=each.donated, sharding=each.sharding)
        results = (
            ResultInfo(each.name, TensorType(each.sizes, each.element_type), sharding=each.sharding)
            for each in self.results
        )
        return Signature(tuple(arguments[position] for position in sorted(arguments)), tuple(results))

    def with_types(self, signature: Signature) -> CallSignature:
        """Return the same names and structure with the shapes of an entry function, such as that of a refined program.

        Args:
            signature: the arguments and results of the entry function.
        """
        parameters = (
            each
            if each.argument is None
            else replace(each, shape=_tensor(str(each), signature.arguments[each.argument]).shape)
            for each in self.parameters
        )
        results = (
            replace(each, shape=_tensor(str(each), signature.results[each.index]).shape) for each in self.results
        )
        return replace(self, parameters=tuple(parameters), results=tuple(results))


def _tensor(label: str, value: ArgumentInfo | ResultInfo) -> TensorType:
    if not isinstance(value.type, TensorType):
        raise UnimplementedError(f"{label} of the program is a {value.type}; only tensors are supported here")
    return value.type
