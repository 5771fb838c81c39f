"""A client for who writes a device that runs StableHLO: ``compile`` is given the program parsed, and gives a function.

It joins the host runtime, which knows no programs, with the room that reads them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

from pjrt.api.attributes import Attributes
from pjrt.api.capability import Capabilities, Feature
from pjrt.api.compile_options import CompileOptions
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.api.program import Program, ProgramFormat
from pjrt.api.shape_spec import ShapeSpec
from pjrt.host import Compiled, HostClient
from pjrt.stablehlo import (
    Function,
    ParsedProgram,
    TensorType,
    TokenType,
    ValueType,
    Version,
    current_version,
    minimum_version,
    partitioning_of,
    read,
    static_check,
    to_module,
)
from pjrt.stablehlo.layouts import with_asked_layouts
from pjrt.stablehlo.outline import Outline
from pjrt.stablehlo.parser import parse_module
from pjrt.stablehlo.partitioner import partition

ParsedCompileFunction = Callable[[ParsedProgram, CompileOptions], "Compiled | Callable[..., Any]"]
"""An author's ``compile(program, options)``."""

_STRUCTURE = frozenset({"func.return", "stablehlo.return", "func.call"})
"""Operations that every device has to follow; they are not asked for in ``operations``."""


class StableHloClient(HostClient):
    """The client of a device that is a function from a parsed program to a function on numpy arrays.

    Args:
        name: the platform's name.
        compile: called with a ``pjrt.stablehlo.ParsedProgram`` and ``pjrt.CompileOptions``; returns a function that
            takes one read-only numpy array a parameter and returns an array or a sequence of them, or a
            ``pjrt.host.Compiled``. Types and donation that it does not state are taken from the program. A program of
            several partitions arrives partitioned by XLA: it is the program of one device, with collectives. If
            ``capabilities`` states ``Feature.PARTITIONING``, the program arrives whole, and ``compile`` partitions it
            and returns a ``Compiled`` with the types of one partition; if it denies the feature, such a program is
            refused.
        operations: the names of the operations that the device runs, such as ``stablehlo.add``; a program with another
            is refused with the operation and where it comes from. All, if not said.
        newest: the newest StableHLO version that it reads; frameworks send programs at that version. The newest there
            is, if not said.
        capabilities: what else the device can do, such as its element types; ``client.supports`` and ``pjrt check``
            take it at its word.
        options: everything else that ``pjrt.host.HostClient`` takes: ``num_devices``, ``memory_kinds``,
            ``memory_limit``, …
    """

    def __init__(
        self,
        name: str,
        *,
        compile: ParsedCompileFunction,
        operations: Collection[str] | None = None,
        newest: Version | str | None = None,
        attributes: Attributes | None = None,
        capabilities: Capabilities | None = None,
        **options: Any,
    ) -> None:
        known = None if operations is None else frozenset(operations)
        listed = Capabilities(
            operations=None if known is None else dict.fromkeys(known), features={Feature.PARTITIONING: True}
        )
        stated = (capabilities or Capabilities()).completed(listed)
        own_partitioner = None if capabilities is None else capabilities.has(Feature.PARTITIONING)
        super().__init__(
            name,
            compile=functools.partial(_compile, name, compile, known, own_partitioner),
            formats=(ProgramFormat.MLIR, ProgramFormat.HLO, ProgramFormat.HLO_WITH_CONFIG),
            attributes={**_versions(newest), **(attributes or {})},
            capabilities=stated,
            static_check=static_check,
            partitioning=partitioning_of,
            **options,
        )


def _versions(newest: Version | str | None) -> Attributes:
    current = Version.parse(newest) if isinstance(newest, str) else newest or current_version()
    oldest = minimum_version()
    return {
        "stablehlo_current_version": (current.major, current.minor, current.patch),
        "stablehlo_minimum_version": (oldest.major, oldest.minor, oldest.patch),
    }


def _compile(
    name: str,
    compile: ParsedCompileFunction,
    known: frozenset[str] | None,
    own_partitioner: bool | None,
    program: Program,
    options: CompileOptions,
) -> Compiled:
    partitioned = None
    if options.partitioning.num_partitions > 1 and options.spmd and not own_partitioner:
        if own_partitioner is False:
            raise UnimplementedError(
                f"the device '{name}' does not partition programs: this one is for "
                f"{options.partitioning.num_partitions} partitions, with the shapes of whole arrays; compile it for "
                "one, or on a device that partitions, such as 'cpu' or 'reference'"
            )
        partitioned = partition(program, options)
    module = to_module(read(program), trusted=True) if partitioned is None else partitioned.module
    Outline.of(module).check()
    parsed = parse_module(module)
    del module
    if known is not None:
        _check_operations(name, parsed, known)
    compiled = Compiled.of(compile(parsed, options))
    entry = parsed.entry
    aliases, donated = _donations(entry)
    if partitioned is not None:
        compiled = dataclasses.replace(
            compiled,
            parameter_shardings=partitioned.parameter_shardings,
            output_shardings=partitioned.result_shardings,
        )
    return dataclasses.replace(
        compiled,
        name=entry.name if compiled.name in ("main", "run") else compiled.name,
        parameters=with_asked_layouts(
            _specs(entry.type.arguments) if compiled.parameters is None else compiled.parameters,
            entry.argument_attributes,
        ),
        outputs=with_asked_layouts(
            _specs(entry.type.results) if compiled.outputs is None else compiled.outputs, entry.result_attributes
        ),
        aliases=compiled.aliases or aliases,
        donated=compiled.donated or donated,
    )


def _check_operations(name: str, parsed: ParsedProgram, known: frozenset[str]) -> None:
    for operation in parsed.walk():
        if operation.name not in known and operation.name not in _STRUCTURE:
            raise UnimplementedError(
                f"the device '{name}' does not run {operation.name} ({operation.location}); "
                f"it runs {', '.join(sorted(known))}"
            )


def _specs(types: Sequence[ValueType]) -> tuple[ShapeSpec, ...]:
    specs = []
    for type_ in types:
        if isinstance(type_, TokenType):
            specs.append(ShapeSpec((), ElementType.TOKEN))
        elif isinstance(type_, TensorType) and type_.is_static:
            specs.append(ShapeSpec(type_.sizes, type_.element))
        else:
            raise InvalidArgumentError(
                f"expected arguments and results of static shape, found {type_}; give the program its sizes first"
            )
    return tuple(specs)


def _donations(entry: Function) -> tuple[dict[int, int], tuple[int, ...]]:
    """The parameters that the program gives away: to a result, or to whoever wants their memory."""
    aliases: dict[int, int] = {}
    donated: list[int] = []
    for number, attributes in enumerate(entry.argument_attributes):
        if (result := attributes.get("tf.aliasing_output")) is not None:
            aliases[number] = int(result)
        elif attributes.get("jax.buffer_donor"):
            donated.append(number)
    return aliases, tuple(donated)
