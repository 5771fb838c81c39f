"""The client for authors of devices that run StableHLO: kernels for operations, or a compiler of parsed programs.

It joins the host runtime, which knows no programs, with the package that reads them, and with the reference
interpreter, which runs what the author's code does not.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from pjrt.api.capability import Capabilities, Feature
from pjrt.api.compile_options import CompileOptions
from pjrt.api.device import Attributes
from pjrt.api.errors import InvalidArgumentError, PjrtError, UnimplementedError, from_author, in_operation
from pjrt.api.printable import perhaps
from pjrt.api.program import Program, ProgramFormat
from pjrt.api.shape_spec import ShapeSpec
from pjrt.devices.author.code import (
    AuthorCode,
    CompilationRecord,
    CompilationReplay,
    CompileParsed,
    DeserializeParsed,
    Kernel,
    capabilities_of,
    is_among,
    shares,
)
from pjrt.devices.author.comparison import ReferenceComparison
from pjrt.devices.author.values import DeviceValues, HostValues
from pjrt.devices.author.whole_program import on_gathered_arguments, participants_of
from pjrt.devices.collectives import xla_collectives
from pjrt.devices.reference.compiler import compile_program
from pjrt.devices.reference.compiler import operations as interpreted_operations
from pjrt.devices.reference.core.block import INTERPRETER
from pjrt.devices.reference.evaluator import Evaluator
from pjrt.devices.reference.observers import Observation, Profile
from pjrt.host import Compiled, HostClient
from pjrt.host.executable import untiled
from pjrt.host_memory.array import order_of_spec
from pjrt.host_memory.tolerance import Tolerance
from pjrt.stablehlo import (
    Operation,
    ParsedProgram,
    ValueType,
    Version,
    cost,
    current_version,
    fingerprint,
    minimum_version,
    partitioning_of,
    read,
    refine,
    static_check,
    to_module,
)
from pjrt.stablehlo.facts.compatibility import with_advice
from pjrt.stablehlo.facts.outline import Outline
from pjrt.stablehlo.facts.signatures import donations, memory_kinds, shape_spec, with_asked_layouts
from pjrt.stablehlo.reading.parser import parse_module
from pjrt.stablehlo.transforms.partitioner import partition, with_notes

_log = logging.getLogger("pjrt")

_STRUCTURE = frozenset({"func.return", "stablehlo.return", "func.call"})
"""Operations that every device must follow; ``operations`` need not list them."""


class StableHloClient(HostClient):
    """The client of a device that runs StableHLO programs: kernels for operations, or a compiler of parsed programs.

    Args:
        name: the platform's name.
        kernels: functions by the names of the operations that they compute, such as ``stablehlo.dot_general``, or by
            the targets of custom calls, such as ``mychip.spin`` of ``jax.ffi.ffi_call("mychip.spin", …)``. A kernel is
            called as ``kernel(operation, *arrays)``, with a ``pjrt.stablehlo.Operation`` and read-only numpy
            arrays. It returns an array, or a sequence of one array for each result, or ``NotImplemented`` for an
            operation that it does not compute, such as one of other types; the fallback computes that one.
        compile: called with a ``pjrt.stablehlo.ParsedProgram`` and ``pjrt.CompileOptions``; returns a function that
            takes one read-only numpy array for each parameter and returns an array or a sequence of arrays, or a
            ``pjrt.host.Compiled``. Types and donation that the ``Compiled`` does not declare are those of the program.
            A program of several partitions arrives partitioned by XLA: it is the program of one device, with
            collectives. If ``capabilities`` declares ``Feature.PARTITIONING``, the program arrives whole, and
            ``compile`` partitions it and returns a ``Compiled`` with the types of one partition; if it denies the
            feature, such a program fails to compile. With a ``fallback``, ``compile`` gets the largest runs of
            operations that it takes, each as a program of one function; it may raise ``UnimplementedError`` to leave
            a run to the fallback; a ``DeclinedError`` names the operations that are the reason, and the others of the
            run are offered again.
        deserialize: ``deserialize(payload, program, options)`` returns what ``compile`` does, from the bytes of
            ``Compiled.serialize`` and the same program. Serialized executables then hold these bytes, of the program or
            of each of its runs, and are loaded without compiling.
        fallback: ``"reference"``, for the interpreter that runs everything that the author's code does not: other
            operations, control flow, calls, composites, custom calls and callbacks. By default a program with an
            operation that the device does not run fails to compile.
        whole_programs: with a ``fallback``, offer ``compile`` each program whole before it is cut into runs, with its
            control flow and calls; if it raises ``UnimplementedError``, the program is cut.
        fuse: whether ``compile`` takes an operation into a run; called with the operation, whose constant operands have
            their constant as ``owner``. Default: the operation is one of ``operations``, if these are given.
        operations: the names of the operations that ``compile`` takes, such as ``stablehlo.add``; a custom call also
            counts by its target. Without a fallback, a
            program with another operation fails to compile, with the operation and its source location in the message.
            Default: all.
        trace: called with every step, its inputs and its outputs, on the thread of the device that runs it.
        profile: add up the time per operation in ``client.profile``, with the device that ran it.
        break_at: names of operations or source locations (parts of them do) before which to stop in ``pdb``.
        debug_nans: stop with an error at the first operation that makes a NaN or an infinity from finite inputs.
        compare_with_reference: run the interpreter's kernel on the inputs of each operation that the author's code
            computes, and stop with an error at the first whose results differ; a ``pjrt.models.Tolerance``, or True for
            the tolerances of ``pjrt.compare``. Random numbers and operations with effects are not compared.
        newest: the newest StableHLO version that the device reads; frameworks send programs at that version. Default:
            the newest version that this package reads.
        capabilities: the other abilities of the device, such as its element types; ``client.supports`` and
            ``pjrt check`` rely on them.
        options: all other options of ``pjrt.host.HostClient``: ``num_devices``, ``memory_kinds``, ``memory_limit``, …

    With ``trace``, ``profile``, ``break_at``, ``debug_nans`` or ``compare_with_reference``, ``compile`` gets each
    operation as a program of its own, and the interpreter runs control flow and calls.

    Raises:
        InvalidArgumentError: there are neither kernels nor ``compile``, or ``fuse`` is given without ``compile`` and a
            fallback, or the fallback is unknown.
    """

    __slots__ = ("profile",)

    def __init__(
        self,
        name: str,
        *,
        kernels: Mapping[str, Kernel] | None = None,
        compile: CompileParsed | None = None,
        deserialize: DeserializeParsed | None = None,
        fallback: str | None = None,
        whole_programs: bool = False,
        fuse: Callable[[Operation], bool] | None = None,
        operations: Collection[str] | None = None,
        trace: Callable[..., object] | None = None,
        profile: bool | Profile = False,
        break_at: str | Iterable[str] = (),
        debug_nans: bool = False,
        compare_with_reference: bool | Tolerance = False,
        newest: Version | str | None = None,
        attributes: Attributes | None = None,
        capabilities: Capabilities | None = None,
        **options: Any,
    ) -> None:
        _check_code(kernels, compile, fallback, fuse)
        _check_operation_names(kernels, operations, fallback is not None)
        names = None if operations is None else frozenset(operations)
        own_partitioner = None if capabilities is None else capabilities.has(Feature.PARTITIONING)
        observation = Observation.of(
            trace=trace, profile=profile, break_at=break_at, debug_nans=debug_nans, interpreter=INTERPRETER
        )
        if compare_with_reference is not False:
            tolerance = compare_with_reference if isinstance(compare_with_reference, Tolerance) else None
            comparison = ReferenceComparison(tolerance)
            observation = dataclasses.replace(observation, observers=(comparison, *observation.observers))
        self.profile = observation.profile
        interpreted = kernels is not None or fallback is not None or bool(observation.observers)

        own_memory = options.get("memory") is not None
        offers_whole = interpreted and whole_programs and not observation.observers

        def compile_by(author: CompileParsed | None, program: Program, compile_options: CompileOptions) -> Compiled:
            if author is not None and (offers_whole or not interpreted):
                try:
                    return _compile(name, author, names, own_partitioner, own_memory, program, compile_options)
                except UnimplementedError as error:
                    if not interpreted:
                        raise
                    _log.info("%s declined a whole program: %s", name, error.message)
            if own_partitioner is False:
                _refuse_partitions(name, compile_options)

            evaluators: list[Evaluator] = []

            def evaluator(module: Any) -> Evaluator:
                code = AuthorCode(
                    name,
                    kernels or {},
                    author,
                    fuse or (lambda operation: names is None or is_among(operation, names)),
                    longest=1 if observation.observers else None,
                    fallback=fallback is not None,
                    values=HostValues()
                    if self.memory is None
                    else DeviceValues(name, self.memory, waits=bool(observation.observers)),
                    options=compile_options,
                )
                fold = not observation.observers
                evaluators.append(Evaluator(module, fold=fold, handlers=self.ffi_handlers, author=code))
                return evaluators[-1]

            compiled = compile_program(
                program, compile_options, evaluator, observation.loop, vet=False, allocations=self.memory is not None
            )
            count = cast("Callable[[], dict[str, float]]", compiled.cost)

            def costs() -> dict[str, float]:
                counts = shares(evaluators[0].region.block)
                try:
                    return count() | counts
                except UnimplementedError:  # a shape is known only when the program runs
                    return counts

            return dataclasses.replace(compiled, cost=costs)

        def compile_recorded(program: Program, compile_options: CompileOptions) -> Compiled:
            if compile is None or deserialize is None:
                return compile_by(compile, program, compile_options)
            record = CompilationRecord(compile)
            compiled = compile_by(record.compile, program, compile_options)
            return dataclasses.replace(compiled, serialize=record.serialize)

        def load(payload: bytes, program: Program, compile_options: CompileOptions) -> Compiled:
            assert deserialize is not None  # else no payload is written
            replay = CompilationReplay(payload, deserialize)
            compiled = compile_by(replay.compile, program, compile_options)
            return dataclasses.replace(compiled, serialize=replay.serialize)

        super().__init__(
            name,
            compile=compile_recorded,
            deserialize=None if deserialize is None else load,
            formats=(ProgramFormat.MLIR, ProgramFormat.HLO, ProgramFormat.HLO_WITH_CONFIG),
            attributes={**stablehlo_versions(newest), **(attributes or {})},
            capabilities=lambda: (capabilities or Capabilities()).completed(
                capabilities_of(kernels, names, fallback is not None, self.ffi_handlers)
            ),
            static_check=static_check,
            partitioning=partitioning_of,
            refine=refine,
            fingerprint=lambda program: fingerprint(program, trusted=True),  # it was compiled
            **{"collectives": xla_collectives, **options},
        )


def _check_code(
    kernels: Mapping[str, Kernel] | None,
    compile: CompileParsed | None,
    fallback: str | None,
    fuse: Callable[[Operation], bool] | None,
) -> None:
    """Check that the author's code makes a device.

    Raises:
        InvalidArgumentError: a part is missing, or is not what it must be.
    """
    if kernels is None and compile is None and fallback is None:
        raise InvalidArgumentError("expected kernels=, compile= or fallback='reference', found none of them")
    if fallback not in (None, INTERPRETER):
        raise InvalidArgumentError(f"expected fallback={INTERPRETER!r} or None, found {fallback!r}")
    if fuse is not None and (compile is None or fallback is None):
        raise InvalidArgumentError("fuse= chooses the operations for compile= and leaves the others to fallback=")
    if kernels is not None and not isinstance(kernels, Mapping):
        raise InvalidArgumentError(
            f"expected kernels as a dictionary of functions by names such as 'stablehlo.add', found {kernels!r}"
        )
    for operation, kernel in (kernels or {}).items():
        if not callable(kernel):
            raise InvalidArgumentError(
                f"expected kernels as functions by names such as 'stablehlo.add', found {kernel!r} for {operation!r}"
            )


def _check_operation_names(
    kernels: Mapping[str, Kernel] | None, operations: Collection[str] | None, fallback: bool
) -> None:
    """Check the names of operations. With a fallback, the code behind a misspelled one would never run.

    Raises:
        InvalidArgumentError: a name has no dialect, or is almost that of another operation.
    """
    if isinstance(operations, str):
        raise InvalidArgumentError(f"expected operations as a list or a set of names, found the string {operations!r}")
    for name in (*(kernels or ()), *(operations or ())):
        if not isinstance(name, str) or not name or f"stablehlo.{name}" in interpreted_operations():
            raise InvalidArgumentError(f"expected names of operations such as 'stablehlo.add', found {name!r}")
        is_known = not fallback or not name.startswith("stablehlo.") or name in interpreted_operations()
        if meant := "" if is_known else perhaps(name, interpreted_operations(), cutoff=0.9):
            raise InvalidArgumentError(f"no operation is called {name!r}{meant}")


def stablehlo_versions(newest: Version | str | None = None) -> Attributes:
    """Return the attributes of a platform that reads StableHLO: the versions that it reads, up to ``newest``."""
    current = Version.parse(newest) if isinstance(newest, str) else newest or current_version()
    oldest = minimum_version()
    return {
        "stablehlo_current_version": (current.major, current.minor, current.patch),
        "stablehlo_minimum_version": (oldest.major, oldest.minor, oldest.patch),
    }


def _compile(
    name: str,
    compile: CompileParsed,
    operations: frozenset[str] | None,
    own_partitioner: bool | None,
    own_memory: bool,
    program: Program,
    options: CompileOptions,
) -> Compiled:
    partitioned, gathers = None, False
    if options.partitioning.num_partitions > 1 and options.spmd and not own_partitioner:
        if own_partitioner is False:
            _refuse_partitions(name, options)
        try:
            partitioned = partition(program, options)
        except UnimplementedError as error:
            if own_memory:  # gathered arguments are arrays on the host
                raise
            gathers = True
            _log.info("a program runs whole on '%s', on gathered arguments: %s", name, error.message)
    source = read(program) if partitioned is None else partitioned.program
    module = to_module(source, trusted=True) if partitioned is None else partitioned.module
    Outline.of(module).check()
    parsed = dataclasses.replace(parse_module(module), source=source)
    del module
    if operations is not None:
        _check_operations(name, parsed, operations)
    try:
        compiled = Compiled.of(compile(parsed, options))
    except PjrtError as error:
        raise with_advice(error, program, options) from error
    if gathers:
        return on_gathered_arguments(parsed, compiled, options.partitioning.num_partitions)
    entry = parsed.entry
    aliases, donated = donations(entry.argument_attributes)
    if partitioned is not None:
        notes = partitioned.notes
        compiled = dataclasses.replace(
            compiled,
            parameter_shardings=partitioned.parameter_shardings,
            output_shardings=partitioned.result_shardings,
            optimized=compiled.optimized or (lambda: with_notes(source, *notes)),
        )
    own_parameters = _specs(entry.type.arguments, program) if compiled.parameters is None else compiled.parameters
    own_outputs = _specs(entry.type.results, program) if compiled.outputs is None else compiled.outputs
    parameters = with_asked_layouts(own_parameters, entry.argument_attributes)
    outputs = with_asked_layouts(own_outputs, entry.result_attributes)
    takes_rows = own_memory and all(spec.layout is None for spec in (*own_parameters, *own_outputs))
    if own_memory and not takes_rows:
        _expect_same_order("argument", own_parameters, parameters)
        _expect_same_order("result", own_outputs, outputs)
    return dataclasses.replace(
        compiled,
        cost=compiled.cost or (lambda: cost(source, trusted=True).as_dict()),
        run=_Explained(compiled.run, parsed),
        takes_rows=takes_rows,
        participants=compiled.participants or participants_of(parsed),
        name=(parsed.name or entry.name) if compiled.name in ("main", "run") else compiled.name,
        parameters=parameters,
        parameter_names=entry.argument_names if compiled.parameter_names is None else compiled.parameter_names,
        outputs=outputs,
        aliases=compiled.aliases or aliases,
        donated=compiled.donated or donated,
        # In memory of the device's own only the author's function can put its results elsewhere.
        output_memory_kinds=compiled.output_memory_kinds
        or (None if own_memory else memory_kinds(entry.result_attributes)),
        parameter_memory_kinds=compiled.parameter_memory_kinds or memory_kinds(entry.argument_attributes),
    )


class _Explained:
    """The function of a whole program: an exception that names no operation is told with those of the program.

    Args:
        run: the author's function.
        program: the program.
    """

    __slots__ = ("_program", "_run")

    def __init__(self, run: Callable[..., Any], program: ParsedProgram) -> None:
        self._run = run
        self._program = program

    def __call__(self, *values: Any) -> Any:
        try:
            return self._run(*values)
        except (PjrtError, MemoryError):  # the author chose the message, or the runtime waits for memory
            raise
        except Exception as error:
            raise self._explain(error) from error

    def _explain(self, error: Exception) -> PjrtError:
        body = self._program.entry.body
        operations = [each for each in body.operations[:-1] if each.name != "stablehlo.constant"] if body else []
        if len(operations) == 1:
            return operations[0].failed(error)
        places = [str(each.location) for each in operations if each.location.is_known]
        if not places:
            return from_author(error)
        return in_operation(error, f"one of {len(operations)} operations, {places[0]} to {places[-1]}")


def _expect_same_order(what: str, own: Sequence[ShapeSpec], asked: Sequence[ShapeSpec]) -> None:
    """Check that a program asks for no other order of dimensions than the author's function has.

    Raises:
        UnimplementedError: it does.
    """
    for number, (spec, wanted) in enumerate(zip(own, asked, strict=True)):
        if wanted.layout is not None and order_of_spec(untiled(spec)) != order_of_spec(untiled(wanted)):
            raise UnimplementedError(
                f"{what} {number}: the program asks for the layout {wanted.layout}, and the device's code has "
                f"{spec.layout or 'rows'}"
            )


def _refuse_partitions(name: str, options: CompileOptions) -> None:
    """Refuse a program of several partitions, for a device whose author denies that it partitions."""
    if options.partitioning.num_partitions > 1 and options.spmd:
        raise UnimplementedError(
            f"the device '{name}' does not partition programs: this one is for "
            f"{options.partitioning.num_partitions} partitions, with the shapes of whole arrays; compile it for "
            "one, or on a device that partitions, such as 'cpu' or 'reference'"
        )


def _check_operations(name: str, parsed: ParsedProgram, operations: frozenset[str]) -> None:
    for operation in parsed.walk():
        if not is_among(operation, operations) and operation.name not in _STRUCTURE:
            called = f" @{operation.call_target}" if operation.call_target else ""
            raise UnimplementedError(
                f"the device '{name}' does not run {operation.name}{called} ({operation.location}); "
                f"it runs {', '.join(sorted(operations))}"
            )


def _specs(types: Sequence[ValueType], program: Program) -> list[ShapeSpec]:
    specs = []
    for type_ in types:
        spec = shape_spec(type_)
        if spec is None:
            error = InvalidArgumentError(f"expected arguments and results of static shape, found {type_}")
            raise with_advice(error, program)
        specs.append(spec)
    return specs
