"""IREE's compiler: its targets, its calls in a subprocess or in this process, its cache and its errors."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import re
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pjrt.api.checks import expect_all
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, PjrtError
from pjrt.devices.author.code import DeclinedError
from pjrt.devices.iree import packages
from pjrt.stablehlo.ir.operation import Operation, ParsedProgram
from pjrt.system import make_protected_folder, processor_features, writable_by_everyone, write_whole

_BACKENDS = {
    "local-sync": "llvm-cpu",
    "local-task": "llvm-cpu",
    "cuda": "cuda",
    "hip": "rocm",
    "vulkan": "vulkan-spirv",
}
"""The compiler's backend by the runtime's driver."""

DRIVERS = tuple(_BACKENDS)

_GPU_FLAGS = {"cuda": "--iree-cuda-target", "hip": "--iree-rocm-target", "vulkan": "--iree-vulkan-target"}

_FLAGS = (
    # Reads StableHLO, and what JAX writes beside it.
    "--iree-input-type=auto",
    # Without it, f64 becomes f32 without a word, and arguments of f64 are errors.
    "--iree-input-demote-f64-to-f32=false",
)


class Target(NamedTuple):
    """A kind of hardware to compile for.

    Attributes:
        driver: the driver of the runtime that runs the compiled module.
        cpu: the processor, as LLVM names it; ``host`` for this machine's. For the drivers of processors.
        triple: the target triple, as LLVM names it; empty for this machine's. For the drivers of processors.
        gpu: the GPU, as IREE names it, such as ``sm_80`` or ``gfx942``; empty for IREE's default.
        flags: further flags of IREE's compiler.
    """

    driver: str
    cpu: str = "host"
    triple: str = ""
    gpu: str = ""
    flags: tuple[str, ...] = ()

    @staticmethod
    def of(driver: str, cpu: str | None, triple: str | None, gpu: str | None, flags: Sequence[str]) -> Target:
        """Return a target of options that a user gave.

        Raises:
            InvalidArgumentError: the driver is unknown, an option is not for the driver, or a flag is no flag.
        """
        if driver not in DRIVERS:
            raise InvalidArgumentError(f"expected one of {', '.join(DRIVERS)} as driver, found {driver!r}")
        options = {"target_cpu": cpu, "target_triple": triple, "target_gpu": gpu}
        for name, value in options.items():
            if value is not None and (not isinstance(value, str) or not value):
                raise InvalidArgumentError(f"expected the option {name} as a name of LLVM, found {value!r}")
        is_local = driver.startswith("local-")
        for name in ("target_gpu",) if is_local else ("target_cpu", "target_triple"):
            if options[name] is not None:
                raise InvalidArgumentError(f"the option {name} is not for the driver {driver!r}")
        if driver == "hip" and gpu is None:
            raise InvalidArgumentError(
                "expected the option target_gpu for the driver 'hip', such as 'gfx942', found none"
            )
        if isinstance(flags, str):
            raise InvalidArgumentError(f"expected flags of IREE's compiler as a list, found the string {flags!r}")
        checked = tuple(expect_all(flags, str, "flags of IREE's compiler as strings"))
        for flag in checked:
            if not flag.startswith("--"):
                raise InvalidArgumentError(
                    f"expected flags of IREE's compiler such as '--iree-opt-level=O3', found {flag!r}"
                )
        # A processor of another machine is not known here: LLVM's plainest of that triple is what runs anywhere.
        return Target(driver, cpu or ("host" if triple is None else "generic"), triple or "", gpu or "", checked)

    def __str__(self) -> str:
        names = [self.driver, self.triple, self.cpu if self.is_local else self.gpu, *self.flags]
        return " ".join(filter(None, names))

    @property
    def is_local(self) -> bool:
        """Whether processors run the module, in this process."""
        return self.driver.startswith("local-")

    @property
    def is_asynchronous(self) -> bool:
        """Whether calls return before their work is done."""
        return self.driver != "local-sync"

    def compiler_flags(self) -> list[str]:
        """Return the flags of IREE's compiler."""
        flags = list(_FLAGS)
        if self.is_asynchronous:
            flags.append("--iree-execution-model=async-external")
        if self.is_local:
            flags += [
                "--iree-hal-target-device=local",
                f"--iree-hal-local-target-device-backends={_BACKENDS[self.driver]}",
            ]
            flags.append(f"--iree-llvmcpu-target-cpu={self.cpu}")
            if self.triple:
                flags.append(f"--iree-llvmcpu-target-triple={self.triple}")
        else:
            flags.append(f"--iree-hal-target-device={self.driver}")
            if self.gpu:
                flags.append(f"{_GPU_FLAGS[self.driver]}={self.gpu}")
        if not any(flag.startswith("--iree-opt-level") for flag in self.flags):
            flags.append("--iree-opt-level=O2")
        return [*flags, *self.flags]


PURPOSE = "compile programs"

_ERROR = 2
"""The severity of errors among those of IREE's diagnostics: note, warning, error, remark."""


class CompilationError(Exception):
    """A program that the compiler did not compile; its argument is what the compiler printed."""


class CrashError(Exception):
    """A crash of the compiler."""


def in_subprocess(code: bytes, flags: Sequence[str]) -> bytes:
    """Return the compiled module of a program. The compiler runs as a program of its own: it may crash.

    Starting it takes about 50 ms; compiling takes ten times as long even for the smallest program.

    Args:
        code: the program, as StableHLO text.
        flags: flags of the compiler.

    Raises:
        CompilationError: the compiler refused the program or a flag.
        CrashError: the compiler crashed.
        FailedPreconditionError: the compiler is not installed.
    """
    done = subprocess.run([_program(), "-", *flags], input=code, capture_output=True, check=False)
    if done.returncode == 0:
        return done.stdout
    messages = done.stderr.decode(errors="replace")
    if (done.returncode < 0 or done.returncode > 1) and "error:" not in messages:
        raise CrashError(_crash(done.returncode, messages))
    raise CompilationError(messages)


def in_process(code: bytes, flags: Sequence[str]) -> bytes:
    """Return the compiled module of a program, as ``in_subprocess`` does. A crash of the compiler ends this process.

    Raises:
        CompilationError, FailedPreconditionError: as for ``in_subprocess``.
    """
    api = packages.load("iree.compiler.api", PURPOSE)
    library = _library()
    session = api.Session()
    try:
        try:
            session.set_flags(*flags)
        except ValueError as error:
            raise CompilationError(str(error)) from None
        invocation = session.invocation()
        messages: list[str] = []
        lock = threading.Lock()

        def collect(severity: int, text: int, size: int, _: object) -> None:
            with lock:  # The compiler's threads call it.
                if severity == _ERROR:
                    messages.append(ctypes.string_at(text, size).decode(errors="replace"))

        callback = _Diagnostic(collect)  # kept until the session is closed
        library.ireeCompilerInvocationEnableCallbackDiagnostics(invocation._inv_p, 0, callback, None)
        source = api.Source.wrap_buffer(session, code + b"\0")
        if not invocation.parse_source(source) or not invocation.execute():
            raise CompilationError("\n".join(messages))
        output = api.Output.open_membuffer()
        invocation.output_vm_bytecode(output)
        return bytes(output.map_memory())
    finally:
        session.close()


_Diagnostic: Any = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
"""IREE's function type for diagnostics: severity, text, its size, and a pointer of the user."""


@functools.cache
def _library() -> Any:
    """Return IREE's compiler as a library, with the function that its Python package does not declare."""
    library = packages.load("iree.compiler.api.ctypes_dl", PURPOSE)._dylib
    function = library.ireeCompilerInvocationEnableCallbackDiagnostics
    function.restype = None
    function.argtypes = [ctypes.c_void_p, ctypes.c_int, _Diagnostic, ctypes.c_void_p]
    return library


@functools.cache
def _program() -> str:
    """Return the path of the program ``iree-compile``, without importing the compiler, which takes longer than it."""
    try:
        spec = importlib.util.find_spec("iree.compiler")
    except ImportError:
        spec = None
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(folder) / "_mlir_libs" / "iree-compile"
        if path.exists():
            return str(path)
    raise FailedPreconditionError(
        f"the package {packages.COMPILER} is needed to {PURPOSE}, and it is not installed: "
        f"pip install '{packages.EXTRA}'"
    )


def _crash(status: int, messages: str) -> str:
    lines = [line for line in messages.splitlines() if line.strip()]
    return (
        f"IREE's compiler ended with {'signal' if status < 0 else 'exit code'} {abs(status)}; it printed "
        f"{(lines[0] if lines else 'nothing')[:300]!r}"
    )


_DIGEST_BYTES = 32
"""The bytes of the digest at the beginning of each file, by which a damaged one is noticed."""


class ModuleCache:
    """Compiled modules in a folder, by their program, the compiler's flags and version, and this machine's processor.

    Args:
        folder: the folder; it is made if it is missing. Loading a module runs its code, so only trusted users may write
            there.

    Raises:
        InvalidArgumentError: the folder cannot be made.
        FailedPreconditionError: every user of the machine may write to the folder, or replace it.
    """

    def __init__(self, folder: Path) -> None:
        try:
            make_protected_folder(folder)
            danger = writable_by_everyone(folder)
        except OSError as error:
            raise InvalidArgumentError(f"{folder} cannot be the folder of a cache: {error.strerror}") from error
        if danger:
            raise FailedPreconditionError(
                f"{folder} is not safe as a cache, whose modules are code: {danger}; remove that permission "
                "(chmod o-w), or give a folder of your own"
            )
        self._folder = folder

    def get(self, code: bytes, flags: Sequence[str]) -> bytes | None:
        """Return the module of a program; ``None`` if it is not there, damaged, or everyone may write to it."""
        path = self._path(code, flags)
        try:
            if writable_by_everyone(path):
                return None
            entry = path.read_bytes()
        except OSError:
            return None
        digest, module = entry[:_DIGEST_BYTES], entry[_DIGEST_BYTES:]
        return module if hashlib.sha256(module).digest() == digest else None

    def put(self, code: bytes, flags: Sequence[str], module: bytes) -> None:
        """Add the module of a program. Other processes see it complete or not at all."""
        with contextlib.suppress(OSError):  # a full disk: the module is compiled again
            write_whole(self._path(code, flags), hashlib.sha256(module).digest() + module)

    def _path(self, code: bytes, flags: Sequence[str]) -> Path:
        facts = (packages.version(), *flags, *processor_features())
        digest = hashlib.sha256("\0".join(facts).encode() + b"\0" + code)
        return self._folder / f"{digest.hexdigest()}.vmfb"


_PLACE = re.compile(r"^(?P<file>.+?):(?P<line>\d+):(?P<column>\d+): (?:error: )?(?P<text>.*)", re.DOTALL)
_NAME = re.compile(r"operation '(?P<name>[\w.]+)'|'(?P<op>[a-z_]+\.[\w.]+)' op ")
_DUMP = re.compile(r": (?:%[\w:]+ = )?\"[\w.]+\"\(.*", re.DOTALL)
_FLAG = re.compile(r"[Uu]nknown command line argument|for the --\S+ option|Unable to parse flags|Error parsing flags")
_TARGET = re.compile(r"[Uu]nknown \w+ target|target not set|missing GPU target|[Nn]o such target")
_LONGEST = 600


class Diagnostic(NamedTuple):
    """The first error of a compilation.

    Attributes:
        text: the error.
        file, line: the place; empty and 0 if the compiler states none.
        operation: the name of the operation in it; empty if it names none.
    """

    text: str
    file: str
    line: int
    operation: str

    @staticmethod
    def first_of(messages: str) -> Diagnostic:
        """Return the first error in what the compiler printed."""
        lines = [line.strip() for line in messages.splitlines() if line.strip() and not line.endswith("flags:")]
        text = next((line for line in lines if "error:" in line), lines[0] if lines else "no reason was reported")
        match = _PLACE.match(text)
        file, number = (match["file"], int(match["line"])) if match is not None else ("", 0)
        body = match["text"] if match is not None else text.removeprefix("<unknown>:0: ").removeprefix("error: ")
        name = _NAME.search(body)
        return Diagnostic(
            _DUMP.sub("", body)[:_LONGEST], file, number, "" if name is None else name["name"] or name["op"]
        )


def compile_error(messages: str, program: ParsedProgram) -> PjrtError:
    """Return the error for what the compiler printed about a program that it did not compile."""
    diagnostic = Diagnostic.first_of(messages)
    if _FLAG.search(messages):
        return InvalidArgumentError(f"IREE's compiler does not take its flags: {diagnostic.text}")
    if _TARGET.search(messages):
        return InvalidArgumentError(f"IREE's compiler does not compile for the target: {diagnostic.text}")
    operations = program.entry.body.operations if program.entry.body is not None else ()
    reasons = _reasons(diagnostic, operations)
    spelled = ", ".join(
        dict.fromkeys(f"{operations[number].name} at {operations[number].location}" for number in reasons)
    )
    where = spelled or (f"{diagnostic.file}:{diagnostic.line}" if diagnostic.file else program.entry.name)
    return DeclinedError(f"IREE does not compile {where}: {diagnostic.text}", reasons)


def _reasons(diagnostic: Diagnostic, operations: Sequence[Operation]) -> list[int]:
    """Return the positions of the operations that a diagnostic means: of its name, or else at its place."""
    here = [
        number
        for number, operation in enumerate(operations[:-1])
        if any(_is_at(each, diagnostic) for each in (operation, *operation.walk()))
    ]
    named = [
        number
        for number in here or range(len(operations) - 1)
        if any(each.name == diagnostic.operation for each in (operations[number], *operations[number].walk()))
    ]
    return named or here


def _is_at(operation: Operation, diagnostic: Diagnostic) -> bool:
    return bool(diagnostic.file) and any(
        (place.file, place.line) == (diagnostic.file, diagnostic.line) for place in operation.location.places
    )
