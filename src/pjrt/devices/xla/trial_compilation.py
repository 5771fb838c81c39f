"""Trial compilations: compiling a program in a subprocess first, where XLA's compiler may end the process.

XLA checks itself with assertions that end the process, and recurses into the program that it compiles. The programs
that it does not survive cannot be listed, but ordinary programs can be recognized: ``is_ordinary`` looks at a program's
outline, which costs microseconds an operation. Every other program is compiled in a subprocess first, once for each
program. That costs about a second: the executable is taken from there, if it is for one device and calls no functions
of this process. (The rules were learned from the fuzzing job, ``python -m benchmarks.fuzz --target cpu``.)

``python -m`` on this module is that subprocess.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import re
import sys
from typing import TYPE_CHECKING, Any

from pjrt.api.compile_options import CompileOptions
from pjrt.api.element_type import ElementType
from pjrt.api.errors import DeadlineExceededError, PjrtError, UnimplementedError
from pjrt.api.program import Program
from pjrt.devices.xla.compilation import compile_program, is_ordinary_call
from pjrt.devices.xla.executable import SERIALIZED
from pjrt.devices.xla.runtime import Runtime
from pjrt.stablehlo.encodings.safe_parse import check_once, run_module
from pjrt.stablehlo.facts.outline import Outline
from pjrt.stablehlo.ir.mlir_module import CHLO_FUNCTIONS
from pjrt.stablehlo.ir.types import TensorType, TokenType, TupleType, ValueType

if TYPE_CHECKING:
    from pjrt.devices.xla.executable import XlaExecutable
    from pjrt.system.python_process import Ended

TIME_LIMIT = 600.0
"""Seconds that a trial may take."""

_ELEMENTS = frozenset(
    ElementType[name]
    for name in (
        *("PRED", "S4", "S8", "S16", "S32", "S64", "U4", "U8", "U16", "U32", "U64", "BF16", "F16", "F32", "F64"),
        *("C64", "C128", "F8E4M3FN", "F8E5M2", "TOKEN"),
    )
)
_MOST_BYTES = 2**40
_DEEPEST_CALLS = 50
_DEEPEST_REGIONS = 50
_LONGEST_CHAIN = 4000
_DIALECTS = frozenset(("builtin", "func", "stablehlo", "chlo", "sdy"))
_UNUSUAL = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("create_token", "cross_replica_sum", "einsum", "map", "real_dynamic_slice", "unary_einsum"),
        *("dynamic_broadcast_in_dim", "dynamic_conv", "dynamic_gather", "dynamic_iota", "dynamic_pad"),
        *("dynamic_reshape", "get_dimension_size", "set_dimension_size", "infeed", "outfeed", "send", "recv"),
        *("uniform_quantize", "uniform_dequantize", "async_start", "async_done", "trace", "rng"),
    )
)


def compile_safely(runtime: Runtime, program: Program, options: CompileOptions | None) -> XlaExecutable:
    """Compile a program for the devices that the options name, after a trial if the program is not ordinary.

    Raises:
        InvalidArgumentError: the bytes are no program, or the compiler rejects it.
        UnimplementedError: the compiler ends its process over the program or would compute something wrongly, or the
            program would wait for ever for values of the host.
        DeadlineExceededError: the trial took too long.
    """

    def inspect(module: Any, options: CompileOptions) -> tuple[Outline, bytes]:
        outline = Outline.of(module)
        outline.check()
        if outline.custom_calls:
            # Here, because few programs need them.
            from pjrt.stablehlo.transforms.custom_calls import prepare_calls, rename_calls

            if names := prepare_calls({target for target, _ in outline.custom_calls}):
                with module as mlir:
                    rename_calls(mlir, names)
        num_devices = len(runtime.all_devices)
        if not _FED.isdisjoint(outline.operations):
            _check_feeds(program, options, num_devices)
        serialized = b""
        if min(options.partitioning.num_replicas, options.partitioning.num_partitions) > 1:
            _attempt_grid(program, options, num_devices)
        elif not is_ordinary(outline) or _has_word_for_xla(module, program.code):
            serialized = attempt(program, options, num_devices)
        # Custom calls may be to functions of this process.
        return outline, b"" if outline.custom_calls or options.partitioning.num_devices > 1 else serialized

    try:
        return compile_program(runtime, program, options, inspect)
    except PjrtError as error:
        from pjrt.stablehlo.facts.compatibility import with_advice  # here: it looks into programs, and imports much

        raise with_advice(error, program, options) from error


_FED = frozenset(f"stablehlo.{name}" for name in ("infeed", "outfeed", "send", "recv"))


def _check_feeds(program: Program, options: CompileOptions, num_devices: int) -> None:
    """Refuse a program that exchanges values with the host while it runs: XLA compiles it, and it waits for ever.

    Raises:
        UnimplementedError: it does so in a function that is used.
    """
    from pjrt.api.capability import Effort, ReasonKind, Verdict  # here: few programs need them
    from pjrt.devices.xla.capability import capabilities
    from pjrt.stablehlo import supports

    support = supports(program, options, capabilities(num_devices), effort=Effort.TYPES)
    reasons = [str(r) for r in support.reasons if r.verdict is Verdict.NO and r.kind is ReasonKind.FEATURE]
    if reasons:
        raise UnimplementedError(f"the device 'cpu' does not run this program: {'; '.join(reasons)}")


def is_ordinary(outline: Outline) -> bool:
    """Whether a program is of the kind that XLA's compiler is known to survive, whether or not it compiles it."""
    functions = outline.functions
    return (
        outline.depth <= _DEEPEST_REGIONS
        and outline.chain <= _LONGEST_CHAIN
        and not functions.bodiless
        and outline.operations["builtin.module"] == 1
        and all(name.partition(".")[0] in _DIALECTS for name in outline.operations)
        and _UNUSUAL.isdisjoint(outline.operations)
        and all(map(_is_ordinary_type, outline.types))
        and functions.depth() <= _DEEPEST_CALLS
        and all(is_ordinary_call(*call) for call in outline.custom_calls)
        and all(itertools.starmap(_is_ordinary_composite, outline.composites))
        # A custom call may ask for an empty array in another layout, and XLA divides by its size.
        and not (outline.custom_calls and any(map(_is_empty, outline.types)))
        and not outline.may_trap
        and all(itertools.starmap(_is_ordinary_choice, outline.choices))
    )


def _is_ordinary_composite(name: str, attributes: str, has_region: bool) -> bool:
    """Whether XLA is known to survive a composite.

    One of CHLO stands for an operation, as ``jax.export`` writes those: XLA makes the operation of it and checks its
    types, but ends the process over attributes of other kinds. Of others it calls the decomposition.
    """
    if has_region:
        return False
    if name == "chlo.top_k":
        return _TOP_K_ATTRIBUTES.fullmatch(attributes) is not None
    is_known = name in _CHLO if name.startswith("chlo.") else re.fullmatch(r"[A-Za-z_][\w.$]*", name) is not None
    return is_known and not attributes


_CHLO = CHLO_FUNCTIONS | {f"chlo.{name}" for name in ("conj", "next_after", "polygamma", "square", "zeta")}
_TOP_K_ATTRIBUTES = re.compile(r"\{(is_stable = (true|false), )?k = \d{1,18} : i64\}")


def _is_ordinary_choice(name: str, element: ElementType, attributes: str) -> bool:
    """Whether XLA has an operation of ``Outline.choices`` for the element type.

    XLA checks comparisons only after it has computed those of constants, which ends the process if it has none such.
    And it calls a remainder of complex numbers that it does not have.
    """
    words = set(_WORD.findall(attributes))
    if element.is_complex:
        return name.endswith("divide") or (name.endswith("compare") and words <= {"EQ", "NE", "FLOAT", "NOTYPE"})
    if element.is_floating:
        return words.isdisjoint({"SIGNED", "UNSIGNED"})
    return words.isdisjoint({"FLOAT", "TOTALORDER", "UNSIGNED" if element.name.startswith("S") else "SIGNED"})


_WORD = re.compile("[A-Z]+")


def _has_word_for_xla(module: Any, code: bytes) -> bool:
    """Whether a program has a string for XLA itself that XLA may not survive.

    It may parse those that nest deeply: Shardy's attributes of older programs are MLIR. And a call that it is told not
    to inline is compiled by a part that knows not all operations. What only modules from HLO state is
    trusted, and so are the tiles of layouts.

    Args:
        module: the program.
        code: its bytes. They show the names of such attributes, unless text spells them with escapes.
    """
    words = ("xla.sdy", "\\", *_WORDS_OF_CALLS, *_WORDS_OF_MODULES)
    if not any(word.encode() in code for word in words) and _TILES.search(code) is None:
        return False
    with module as mlir:
        if any(word in mlir.operation.attributes for word in _WORDS_OF_MODULES):
            return True
        text = mlir.operation.get_asm(large_elements_limit=16)
    if any(word in text for word in _WORDS_OF_CALLS) or _TILED_LAYOUT.search(text) is not None:
        return True
    return any(_depth(string) > _DEEPEST_STRING for string in _STRING.findall(text))


_TILES = re.compile(rb"\{[\d, ]*:")
_TILED_LAYOUT = re.compile(r'mhlo\.layout_mode"? = "\{[\d, ]*:')
_WORDS_OF_CALLS = ("inlineable", "xla_cpu_")
_WORDS_OF_MODULES = tuple(
    f"mhlo.{name}"
    for name in (
        *("cross_program_prefetches", "input_output_alias", "spmd_output_sharding", "spmd_parameters_shardings"),
        *("xla_entry_computation_parameter_layouts", "xla_entry_computation_parameter_tiles"),
        *("xla_entry_computation_result_layout", "xla_entry_computation_result_tiles"),
    )
)
"""Attributes of a module that comes from HLO. XLA's converter trusts them, and ends the process if they do not fit."""


def _depth(text: str) -> int:
    steps = (1 if letter in "([{<" else -1 if letter in ")]}>" else 0 for letter in text)
    return max(itertools.accumulate(steps), default=0)


_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_DEEPEST_STRING = 50


def _is_empty(type_: ValueType) -> bool:
    return isinstance(type_, TensorType) and 0 in type_.sizes


def _is_ordinary_type(type_: ValueType) -> bool:
    if isinstance(type_, TupleType):
        return all(map(_is_ordinary_type, type_.elements))
    if isinstance(type_, TensorType):
        if type_.quantization is not None or type_.element not in _ELEMENTS or not type_.is_static:
            return False
        sizes = type_.sizes
        nbytes = math.prod(sizes) * type_.element.dtype.itemsize
        return nbytes <= _most_bytes() and max(sizes, default=0) <= _MOST_BYTES
    return isinstance(type_, TokenType)


@functools.cache
def _most_bytes() -> int:
    """Return the memory of this machine: XLA's compiler computes with values, and ends the process without memory."""
    try:
        return min(_MOST_BYTES, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):  # not on every system
        return _MOST_BYTES


def attempt(program: Program, options: CompileOptions, num_devices: int) -> bytes:
    """Compile a program in a subprocess; return if the compiler survives it, even if it rejects the program.

    Returns:
        The serialized executable; nothing if there is none, or if the program was attempted before.

    Raises:
        UnimplementedError: the compiler ends the subprocess.
        DeadlineExceededError: the compiler did not finish in time.
    """
    proto, output = options.to_proto(), b""

    def survives() -> bool:
        nonlocal output
        exit_ = _compiled_elsewhere(program, proto, num_devices)
        output = exit_.output if exit_ is not None else b""
        return exit_ is not None

    check_once(program, b"compiler " + proto + b" %d" % num_devices, survives)
    return output if output.startswith(SERIALIZED) else b""


def _attempt_grid(program: Program, options: CompileOptions, num_devices: int) -> None:
    """Attempt a program of several replicas, each of several partitions.

    A tiled sharding has a tile for each partition, and XLA checks that it has one for each device of all replicas: if
    not, that ends the process. Programs whose values are all replicated survive it.
    """
    try:
        attempt(program, options, num_devices)
    except UnimplementedError as error:
        raise UnimplementedError(
            f"{error.message}; the device 'cpu' does not run {options.partitioning} with values that are cut over the "
            "partitions: compile it for one replica, or use the device 'reference'"
        ) from error


def _compiled_elsewhere(program: Program, proto: bytes, num_devices: int) -> Ended | None:
    try:
        exit_ = run_module(
            __name__,
            program.format,
            proto.hex(),
            str(num_devices),
            str(len(program)),
            given=program.code,
            time_limit=TIME_LIMIT,
        )
    except TimeoutError as error:
        raise DeadlineExceededError(
            f"the device 'cpu' does not compile this program: XLA's compiler did not finish within {TIME_LIMIT:.0f} s "
            "in a subprocess"
        ) from error
    if exit_ is not None and exit_.status:
        reason = f": {exit_.reason}" if exit_.reason else ""
        raise UnimplementedError(
            f"the device 'cpu' does not compile this program: XLA's compiler ends its process over it "
            f"({exit_.how}){reason}"
        )
    return exit_


def main(arguments: list[str]) -> None:
    """Compile the program on the standard input; its format, options, number of devices and size are arguments."""
    format_, proto, num_devices, size = arguments
    options = CompileOptions.from_proto(bytes.fromhex(proto))
    runtime = Runtime(int(num_devices))
    try:
        program = Program(sys.stdin.buffer.read(int(size)), format_)
        executable = compile_program(runtime, program, options, lambda module, _: (Outline.of(module), b""))
        sys.stdout.buffer.write(executable.serialize())
    except PjrtError:  # the parent gets the same error when it compiles the program itself
        pass
    finally:
        runtime.close("the trial is over")


if __name__ == "__main__":
    main(sys.argv[1:])
