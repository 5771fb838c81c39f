"""Call signatures: the arguments and results of a program as its caller sees them, nested and with names.

They may differ from those of the program's entry function: a file can hold values for some arguments, and a program may
not need all that the caller passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.stablehlo.entry_signature import ArgumentInfo, ResultInfo, Signature
from pjrt.stablehlo.tree import Tree
from pjrt.stablehlo.types import TensorType

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
        return any(not isinstance(size, int) for size in self.shape)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape, where it is static.

        Raises:
            InvalidArgumentError: a size is known only when the program is called.
        """
        sizes = tuple(size for size in self.shape if isinstance(size, int))
        if len(sizes) != len(self.shape):
            raise InvalidArgumentError(f"expected a static shape, found {self}: give the shapes of the arguments")
        return sizes

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
        output_tree: the nested structure of the results; None if it is unknown.
    """

    parameters: tuple[Parameter, ...]
    results: tuple[Result, ...]
    input_tree: Tree | None = None
    output_tree: Tree | None = None

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
