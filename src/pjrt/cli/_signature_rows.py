"""The arguments and results of a program for ``pjrt inspect``, with the indices, names and symbols of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pjrt.api.errors import PjrtError
from pjrt.models.model_file import ModelFile
from pjrt.stablehlo import ArgumentInfo, ProgramInfo, ResultInfo, TensorType
from pjrt.stablehlo.shapes.argument_shapes import StatedShape
from pjrt.stablehlo.signatures import Parameter, Result


@dataclass(frozen=True, slots=True)
class SignatureRow:
    """An argument or a result.

    Attributes:
        index: the index that a caller of the model gives; None for an argument that no caller passes.
        name: the name that a caller gives; empty if unknown.
        shape: its shape, with the symbols of dynamic sizes.
        info: what the program states about it.
        needed: whether it is an argument of the program. The program of a framework may lack unused ones.
    """

    index: int | None
    name: str
    shape: StatedShape
    info: ArgumentInfo | ResultInfo
    needed: bool = True


def argument_rows(file: ModelFile, info: ProgramInfo) -> list[SignatureRow]:
    """Return the arguments of a program: those that no caller passes, then the parameters of the model in order."""
    parameters = _parameters(file)
    if parameters is None:
        return [_row(index, each) for index, each in enumerate(info.arguments)]
    hidden = int(len(file.platforms) > 1)  # the index of the platform, which commands and models pass
    positions = {each.argument + hidden for each in parameters if each.argument is not None}
    rows = [_row(None, each) for position, each in enumerate(info.arguments) if position not in positions]
    for each in parameters:
        if each.argument is None:
            type_ = TensorType(tuple(None if isinstance(size, str) else size for size in each.shape), each.element_type)
            rows.append(SignatureRow(each.index, each.name, each.shape, ArgumentInfo(each.name, type_), needed=False))
        else:
            rows.append(_row(each.index, info.arguments[each.argument + hidden], each))
    return rows


def result_rows(file: ModelFile, info: ProgramInfo) -> list[SignatureRow]:
    """Return the results of a program."""
    results = () if _parameters(file) is None else file.results
    if len(results) != len(info.results):  # results of the program that are no arrays, such as tokens
        return [_row(index, each) for index, each in enumerate(info.results)]
    return [_row(each.index, of_program, each) for each, of_program in zip(results, info.results, strict=True)]


def _parameters(file: ModelFile) -> Sequence[Parameter] | None:
    try:
        return file.parameters
    except PjrtError:  # an argument that is no array, such as a token
        return None


def _row(index: int | None, info: ArgumentInfo | ResultInfo, call: Result | None = None) -> SignatureRow:
    if not isinstance(info.type, TensorType):
        return SignatureRow(index, info.name, (), info)
    stated: StatedShape = info.symbolic_shape if isinstance(info, ArgumentInfo) else info.shape
    if call is None:
        return SignatureRow(index, info.name, stated, info)
    sizes = [of_call if size is None else size for size, of_call in zip(stated, call.shape, strict=True)]
    return SignatureRow(index, call.name or info.name, sizes, info)
