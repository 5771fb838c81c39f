"""The process that may die: it tries one program after the other and writes one letter for each to its output.

``o``: accepted. ``r``: refused with a ``PjrtError``. ``b``: any other exception, which is a mistake. ``d``: two devices
computed different results.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import math
import os
import resource
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.fuzz.mutations import Mutator
from pjrt import CompileOptions, PjrtError, Program, UnimplementedError, stablehlo

if TYPE_CHECKING:
    import pjrt

TAKEN, REFUSED, BARE, DIFFERENT = b"o", b"r", b"b", b"d"
REMOTE, COMPARE, FILES = "remote", "compare", "files"

_HASTY = CompileOptions(
    option_overrides={"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
)
_OPTIMIZED = 4


def options_for(device: str, number: int) -> CompileOptions | None:
    """Return options for one of many programs: on `cpu`, three of four are compiled without LLVM's optimizations.

    That saves a third of the time: most faults are of what XLA does with a program before that.
    """
    return None if device != "cpu" or number % _OPTIMIZED == 0 else _HASTY


def main() -> None:
    """Run the programs from one number to another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--binary", type=float, required=True)
    parser.add_argument("--target", choices=[*TARGETS, REMOTE, COMPARE, FILES], required=True)
    parser.add_argument("--untrusted", action="store_true", help="vet programs in processes first, as the commands do")
    parser.add_argument("--memory", type=int, default=2, help="the most address space that the process may use, in GiB")
    parser.add_argument("begin", type=int)
    parser.add_argument("end", type=int)
    arguments = parser.parse_args()
    makers = {REMOTE: _rounds, COMPARE: _comparisons, FILES: _files}
    attempt = makers.get(arguments.target, _programs)(arguments)
    out = os.dup(1)
    os.dup2(2, 1)  # the output of native code must not be read as letters
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (arguments.memory << 30, arguments.memory << 30))
    is_here = arguments.target in (*TARGETS, FILES) and not arguments.untrusted
    with everything_here() if is_here else contextlib.nullcontext():
        for number in range(arguments.begin, arguments.end):
            os.write(out, attempt(number))
            if number % 500 == 0:
                gc.collect()


@contextlib.contextmanager
def everything_here() -> Iterator[None]:
    """Let this process try what the package tries in another one first, which takes longer than all else.

    This process may die: then the program is tried again, as the package does it.
    """
    from pjrt.devices.xla import trial_compilation
    from pjrt.stablehlo.encodings import safe_parse

    modules = (safe_parse, trial_compilation)
    check_once = safe_parse.check_once
    for module in modules:
        module.check_once = lambda *_: None  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module in modules:
            module.check_once = check_once  # type: ignore[attr-defined]


def _programs(arguments: argparse.Namespace) -> Callable[[int], bytes]:
    """Return a function that tries a program by its number."""
    mutator = Mutator(arguments.seed, arguments.binary)
    attempt = TARGETS[arguments.target]()
    return lambda number: outcome(attempt, mutator.program(number), vetted=arguments.untrusted)


def _rounds(arguments: argparse.Namespace) -> Callable[[int], bytes]:
    """Return a function that makes a round of mutated requests by its number."""
    from benchmarks.fuzz.remote import RemoteTarget

    target = RemoteTarget(arguments.seed)
    return lambda number: BARE if BARE in target.round(number) else TAKEN


def _files(arguments: argparse.Namespace) -> Callable[[int], bytes]:
    """Return a function that gives a mutated file to a command by its number."""
    from benchmarks.fuzz.files import FilesTarget

    return FilesTarget(arguments.seed, apart=arguments.untrusted).attempt


def _comparisons(arguments: argparse.Namespace) -> Callable[[int], bytes]:
    """Return a function that compares `reference` and `cpu` over a random program by its number."""
    from benchmarks.fuzz.comparison import Comparison

    comparison = Comparison(arguments.seed, arguments.end)

    def attempt(number: int) -> bytes:
        try:
            return TAKEN if comparison.agrees(number) else DIFFERENT
        except UnimplementedError:  # `cpu` says of some programs that XLA computes them wrongly
            return REFUSED
        except Exception:
            return BARE

    return attempt


def outcome(attempt: Callable[[Program], object], code: bytes, *, vetted: bool) -> bytes:
    """Return the letter of a program; an unforeseen error is printed to the error output."""
    try:
        program = stablehlo.read(code)
        if vetted:
            stablehlo.vet(program)
        attempt(program)
    except PjrtError as error:
        # An unforeseen exception of an in-process device has become a PjrtError with a cause.
        return BARE if error.__cause__ is not None and _is_unforeseen(error) else REFUSED
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return BARE
    return TAKEN


def _is_unforeseen(error: PjrtError) -> bool:
    cause = error.__cause__
    unforeseen = isinstance(
        cause, (AssertionError, AttributeError, RecursionError, LookupError, TypeError, ZeroDivisionError, NameError)
    )
    if unforeseen and error.code.name == "INTERNAL":
        print(f"{type(cause).__name__}: {error.message}", file=sys.stderr)
        return True
    return False


def _parsing() -> Callable[[Program], object]:
    return lambda program: stablehlo.inspect(program, trusted=not stablehlo.format.is_text(program.code))


def _compiling(device: str) -> Callable[[], Callable[[Program], object]]:
    def prepare() -> Callable[[Program], object]:
        import pjrt

        client = pjrt.client(device)

        def attempt(program: Program) -> None:
            executable = client.compile(program, options_for(device, zlib.crc32(program.code)))
            try:
                _run(executable, program)
            finally:
                executable.delete()

        return attempt

    return prepare


def _run(executable: pjrt.LoadedExecutable, program: Program) -> None:
    """Run a program with ones, if it is small; not if it has a loop, which a mutation may have made endless."""
    specs = executable.parameter_specs
    sizes = [math.prod(shape) for shape in (*(spec.shape for spec in specs), *executable.output_shapes)]
    if b"while" not in program.code and sum(sizes) <= _MOST_ELEMENTS and executable.num_replicas == 1:
        for result in executable(*(np.ones(spec.shape, spec.element_type.dtype) for spec in specs)):
            np.asarray(result)


_MOST_ELEMENTS = 1 << 20


TARGETS = {"parse": _parsing, "reference": _compiling("reference"), "cpu": _compiling("cpu")}

if __name__ == "__main__":
    main()
