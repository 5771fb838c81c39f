"""Trials: compiling a program in a process of its own first, where XLA's compiler may end the process.

XLA checks itself with assertions that end the process, and recurses into what it compiles. What it does not survive
cannot be listed, but what is ordinary can: ``is_ordinary`` looks at a program's outline, which costs microseconds an
operation, and whatever is not ordinary is tried elsewhere, which costs about a second, once for each program. (The
fuzzing job, ``python -m benchmarks.fuzz --target cpu``, is what ordinary was learned from.)

As a program, this module is that other process.
"""

from __future__ import annotations

import sys

from pjrt.api.compile_options import CompileOptions
from pjrt.api.element_type import ElementType
from pjrt.api.errors import DeadlineExceededError, PjrtError, UnimplementedError
from pjrt.api.program import Program
from pjrt.devices.xla import custom_calls
from pjrt.stablehlo.outline import Outline
from pjrt.stablehlo.safe_parse import check_once
from pjrt.stablehlo.types import TensorType, TokenType, TupleType, ValueType

TIME_LIMIT = 600.0
"""Seconds that a trial may take."""

_ELEMENTS = frozenset(
    element
    for element in ElementType
    if element.name
    in [
        "PRED",
        "S4",
        "S8",
        "S16",
        "S32",
        "S64",
        "U4",
        "U8",
        "U16",
        "U32",
        "U64",
        "BF16",
        "F16",
        "F32",
        "F64",
        "C64",
        "C128",
        "F8E4M3FN",
        "F8E5M2",
        "TOKEN",
    ]
)
_MOST_BYTES = 2**40
_DEEPEST_CALLS = 50
_DEEPEST_REGIONS = 50
_LONGEST_CHAIN = 4000
_DIALECTS = frozenset(("builtin", "func", "stablehlo", "chlo", "sdy"))
_UNUSUAL = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("composite", "create_token", "cross_replica_sum", "einsum", "map", "real_dynamic_slice", "unary_einsum"),
        *("dynamic_broadcast_in_dim", "dynamic_conv", "dynamic_gather", "dynamic_iota", "dynamic_pad"),
        *("dynamic_reshape", "get_dimension_size", "set_dimension_size", "infeed", "outfeed", "send", "recv"),
        *("uniform_quantize", "uniform_dequantize", "async_start", "async_done", "trace", "rng"),
    )
)


def is_ordinary(outline: Outline) -> bool:
    """Whether a program is of the kind that XLA's compiler is known to survive, whether it takes it or not."""
    functions = outline.functions
    return (
        outline.depth <= _DEEPEST_REGIONS
        and outline.chain <= _LONGEST_CHAIN
        and not functions.bodiless
        and outline.operations["builtin.module"] == 1
        and all(name.partition(".")[0] in _DIALECTS for name in outline.operations)
        and _UNUSUAL.isdisjoint(outline.operations)
        and all(map(_is_ordinary, outline.types))
        and functions.depth() <= _DEEPEST_CALLS
        and all(custom_calls.is_ordinary(*call) for call in outline.custom_calls)
    )


def _is_ordinary(type_: ValueType) -> bool:
    if isinstance(type_, TupleType):
        return all(map(_is_ordinary, type_.elements))
    if isinstance(type_, TensorType):
        return (
            type_.is_static
            and type_.quantization is None
            and type_.element in _ELEMENTS
            and type_.nbytes <= _MOST_BYTES
            and all(size <= _MOST_BYTES for size in type_.sizes)
        )
    return isinstance(type_, TokenType)


def attempt(program: Program, options: CompileOptions, num_devices: int) -> None:
    """Compiles a program elsewhere; returns if the compiler lives on, whatever it thinks of the program.

    Raises:
        UnimplementedError: it does not.
        DeadlineExceededError: it was not done in time.
    """
    proto = options.to_proto()
    check_once(program, b"compiler " + proto + b" %d" % num_devices, lambda: _survives(program, proto, num_devices))


def _survives(program: Program, proto: bytes, num_devices: int) -> bool:
    from pjrt.system.python_process import run_module  # here: what is ordinary needs no other process

    try:
        ended = run_module(
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
            f"the device 'cpu' does not compile this program: XLA's compiler was not done with it after "
            f"{TIME_LIMIT:.0f} s in a process of its own"
        ) from error
    if ended is None:
        return False
    if ended.crashed:
        told = f": {ended.reason}" if ended.reason else ""
        raise UnimplementedError(
            f"the device 'cpu' does not compile this program: XLA's compiler ends its process over it "
            f"({ended.how}){told}"
        )
    return True


def main(arguments: list[str]) -> None:
    """Compiles the program on the standard input: format, options, number of devices and its size are arguments."""
    from pjrt.devices.xla.client import XlaClient
    from pjrt.devices.xla.compilation import compile_here

    format_, proto, num_devices, size = arguments
    options = CompileOptions.from_proto(bytes.fromhex(proto))
    client = XlaClient(int(num_devices))
    try:
        compile_here(client, Program(sys.stdin.buffer.read(int(size)), format_), options)
    except PjrtError:  # it says so again where it is to be compiled
        pass
    finally:
        client.close()


if __name__ == "__main__":
    main(sys.argv[1:])
