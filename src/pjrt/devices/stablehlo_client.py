"""The client for authors of devices that run StableHLO: ``compile`` takes a parsed program and returns a function.

It joins the host runtime, which knows no programs, with the package that reads them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection
from typing import Any

from pjrt.api.attributes import Attributes
from pjrt.api.capability import Capabilities, Feature
from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.api.program import Program, ProgramFormat
from pjrt.api.shape_spec import ShapeSpec
from pjrt.host import Compiled, HostClient
from pjrt.stablehlo import (
    ParsedProgram,
    ValueType,
    Version,
    current_version,
    minimum_version,
    partitioning_of,
    read,
    static_check,
    to_module,
)
from pjrt.stablehlo.entry import donations, shape_spec, with_asked_layouts
from pjrt.stablehlo.outline import Outline
from pjrt.stablehlo.parser import parse_module
from pjrt.stablehlo.partitioner import partition

ParsedCompileFunction = Callable[[ParsedProgram, CompileOptions], "Compiled | Callable[..., Any]"]
"""An author's ``compile(program, options)``."""

_STRUCTURE = frozenset({"func.return", "stablehlo.return", "func.call"})
"""Operations that every device must follow; ``operations`` need not list them."""


class StableHloClient(HostClient):
    """The client of a device that is a function from a parsed program to a function on numpy arrays.

    Args:
        name: the platform's name.
        compile: called with a ``pjrt.stablehlo.ParsedProgram`` and ``pjrt.CompileOptions``; returns a function that
            takes one read-only numpy array for each parameter and returns an array or a sequence of arrays, or a
            ``pjrt.host.Compiled``. Types and donation that the ``Compiled`` does not declare are those of the program.
            A program of several partitions arrives partitioned by XLA: it is the program of one device, with
            collectives. If ``capabilities`` declares ``Feature.PARTITIONING``, the program arrives whole, and
            ``compile`` partitions it and returns a ``Compiled`` with the types of one partition; if it denies the
            feature, such a program fails to compile.
        operations: the names of the operations that the device runs, such as ``stablehlo.add``. A program with another
            operation fails to compile, with the operation and its source location in the message. Default: all.
        newest: the newest StableHLO version that the device reads; frameworks send programs at that version. Default:
            the newest version that this package reads.
        capabilities: the other abilities of the device, such as its element types; ``client.supports`` and
            ``pjrt check`` rely on them.
        options: all other options of ``pjrt.host.HostClient``: ``num_devices``, ``memory_kinds``, ``memory_limit``, …
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
        names = None if operations is None else frozenset(operations)
        defaults = Capabilities(
            operations=None if names is None else dict.fromkeys(names), features={Feature.PARTITIONING: True}
        )
        own_partitioner = None if capabilities is None else capabilities.has(Feature.PARTITIONING)
        super().__init__(
            name,
            compile=functools.partial(_compile, name, compile, names, own_partitioner),
            formats=(ProgramFormat.MLIR, ProgramFormat.HLO, ProgramFormat.HLO_WITH_CONFIG),
            attributes={**_versions(newest), **(attributes or {})},
            capabilities=(capabilities or Capabilities()).completed(defaults),
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
    operations: frozenset[str] | None,
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
    if operations is not None:
        _check_operations(name, parsed, operations)
    compiled = Compiled.of(compile(parsed, options))
    entry = parsed.entry
    aliases, donated = donations(entry.argument_attributes)
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
            [_spec(type_) for type_ in entry.type.arguments] if compiled.parameters is None else compiled.parameters,
            entry.argument_attributes,
        ),
        outputs=with_asked_layouts(
            [_spec(type_) for type_ in entry.type.results] if compiled.outputs is None else compiled.outputs,
            entry.result_attributes,
        ),
        aliases=compiled.aliases or aliases,
        donated=compiled.donated or donated,
    )


def _check_operations(name: str, parsed: ParsedProgram, operations: frozenset[str]) -> None:
    for operation in parsed.walk():
        if operation.name not in operations and operation.name not in _STRUCTURE:
            raise UnimplementedError(
                f"the device '{name}' does not run {operation.name} ({operation.location}); "
                f"it runs {', '.join(sorted(operations))}"
            )


def _spec(type_: ValueType) -> ShapeSpec:
    spec = shape_spec(type_)
    if spec is None:
        raise InvalidArgumentError(
            f"expected arguments and results of static shape, found {type_}; refine the program's shapes first"
        )
    return spec
