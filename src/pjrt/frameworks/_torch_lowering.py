"""Graphs of PyTorch's operations to StableHLO: a process with torchax and JAX, and a folder of what it did before.

As a program, this module is that process: it reads graphs from its input, and writes programs to its output.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import pickle
import sys
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pjrt.api.errors import FailedPreconditionError, InternalError
from pjrt.stablehlo.files import torch_export
from pjrt.system.python_process import PythonChild

_MAX_FILES = 4096
_SECONDS = 1800.0
_PACKAGES = ("torch", "torchax", "jax", "jaxlib", "pjrt")
_PURPOSE = "compile models of PyTorch"

_WRONG = ("aten._linalg_eigh", "aten.linalg_pinv", "aten.polygamma")
"""Operations that torchax lowers to others: PyTorch reads one half of a matrix, and takes numbers below zero."""


class Value(NamedTuple):
    """The value of an earlier node, in the arguments of another."""

    number: int


class Constant(NamedTuple):
    """A value by its name in PyTorch, such as ``contiguous_format``.

    A pickle of it would name any module that has imported PyTorch, which this process need not have.
    """

    name: str


class Node(NamedTuple):
    """A node of a graph.

    Attributes:
        operation: the name of an operation, such as ``aten.add.Tensor``; or ``getitem``, ``argument``, ``result``.
        given: its positional and its named arguments; of an argument its shape and type, or a number; of the results
            their values.
        dtypes: the types of its results, where PyTorch states them.
    """

    operation: str
    given: Any
    dtypes: Any = None


class Graph(NamedTuple):
    """A graph whose arguments have known shapes. Its ``repr`` says all of it."""

    nodes: tuple[Node, ...]


class NotLowered(NamedTuple):
    """A node that cannot be lowered, and why."""

    number: int
    message: str


class Lowering:
    """The process that lowers; it starts when something is asked for that no file has.

    Args:
        folder: keeps answers; ``None`` for none.

    Raises:
        FailedPreconditionError: a package is not installed.
    """

    _shared: dict[Path | None, Lowering] = {}  # noqa: RUF012 - one process for each folder
    _lock = threading.Lock()

    def __init__(self, folder: Path | None) -> None:
        for package in ("torchax", "jax"):
            if importlib.util.find_spec(package) is None:
                raise FailedPreconditionError(
                    f"{package} is needed to {_PURPOSE}, and it is not installed: pip install "
                    f"{torch_export.REQUIREMENTS}"
                )
        self._folder = folder
        self._versions = [*_WRONG, *(importlib.metadata.version(package) for package in _PACKAGES)]
        self._child: PythonChild[Any] | None = None
        self._operations: Collection[str] | None = None
        self._asking = threading.Lock()

    @classmethod
    def shared(cls, folder: Path | None) -> Lowering:
        """Return the one for a folder."""
        with cls._lock:
            if folder not in cls._shared:
                cls._shared[folder] = cls(folder)
            return cls._shared[folder]

    @property
    def operations(self) -> Collection[str]:
        """The names of the operations that can be lowered."""
        if self._operations is None:
            self._operations = frozenset(self._answer("operations"))
        return self._operations

    def lower(self, graph: Graph) -> bytes | NotLowered:
        """Return a graph as a program in StableHLO: a function of its tensors. Or what stands against it."""
        answer: bytes | NotLowered = self._answer(graph)
        return answer

    def _answer(self, question: Any) -> Any:
        with self._asking:
            path = self._path(question)
            if path is not None and path.exists():
                with contextlib.suppress(Exception):  # a damaged file is written anew
                    return _read(path)
            answer = self._ask(question)
            if path is not None:
                _write(path, answer)
            return answer

    def _path(self, question: Any) -> Path | None:
        if self._folder is None:
            return None
        return self._folder / hashlib.sha256(repr((self._versions, question)).encode()).hexdigest()

    def _ask(self, question: Any) -> Any:
        if self._child is None:
            self._child = PythonChild("pjrt.frameworks._torch_lowering", pickle.load, own_session=True)
        self._child.send(question)
        try:
            answer = self._child.next(_SECONDS)
        except TimeoutError:
            self._end()
            raise InternalError(f"the process that lowers models of PyTorch took more than {_SECONDS:.0f} s") from None
        if answer is None:
            end = self._child.ended()
            self._end()
            raise FailedPreconditionError(f"the process that lowers models of PyTorch ended: {end}")
        return answer

    def _end(self) -> None:
        if self._child is not None:
            self._child.close()
        self._child = None


def _read(path: Path) -> Any:
    data = path.read_bytes()
    os.utime(path)  # those that nobody reads go first
    kind, _, rest = data.partition(b"\n")
    if kind == b"program":
        return rest
    if kind == b"operations":
        return rest.decode().split()
    number, _, message = rest.decode().partition(" ")
    return NotLowered(int(number), message)


def _write(path: Path, answer: Any) -> None:
    if isinstance(answer, bytes):
        data = b"program\n" + answer
    elif isinstance(answer, NotLowered):
        data = f"failed\n{answer.number} {answer.message}".encode()
    else:
        data = b"operations\n" + " ".join(answer).encode()
    with contextlib.suppress(OSError):  # without room for files, each process lowers
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(data)
        os.replace(file.name, path)
        files = list(path.parent.iterdir())
        if len(files) > _MAX_FILES:
            min(files, key=lambda each: each.stat().st_mtime).unlink()


# The process that lowers.


def main() -> None:
    """Answer questions until the input ends."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what packages print is no answer
    os.environ["JAX_PLATFORMS"] = "cpu"  # an accelerator belongs to the process that calls the model
    os.environ["PJRT_TORCH"] = ""
    lowerings = torch_export.load_torchax(_PURPOSE).ops.ops_registry.all_aten_ops
    while True:
        try:
            question = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        answer = _names(lowerings) if question == "operations" else _lowered(question, lowerings)
        pickle.dump(answer, output)
        output.flush()


def _names(lowerings: Mapping[Any, Any]) -> list[str]:
    """Return the names of operations with a lowering to a function of JAX; random numbers need more than that."""
    names = (str(each) for each, rule in lowerings.items() if rule.is_jax_function and not rule.needs_env)
    return sorted(name for name in names if not name.startswith(_WRONG))


class _Failed(Exception):  # noqa: N818 - it carries an answer
    def __init__(self, number: int, operation: str, error: Exception) -> None:
        self.answer = NotLowered(number, f"torchax cannot lower {operation} here: {torch_export.first_line(error)}")


def _lowered(graph: Graph, lowerings: Mapping[Any, Any]) -> bytes | NotLowered:
    import jax

    types = [jax.ShapeDtypeStruct(node.given[0], _dtype(node.given[1])) for node in _tensors(graph)]

    def forward(*arrays: Any) -> Any:
        return _results(graph, lowerings, iter(arrays))

    with jax.enable_x64(True), _without_lines():  # integers of PyTorch have 64 bits
        try:
            exported = jax.export.export(jax.jit(forward, keep_unused=True), platforms=["cpu"])(*types)
        except _Failed as error:
            return error.answer
        return bytes(exported.mlir_module_serialized)


def _tensors(graph: Graph) -> Iterator[Node]:
    return (node for node in graph.nodes if node.operation == "argument" and isinstance(node.given, tuple))


def _results(graph: Graph, lowerings: Mapping[Any, Any], arrays: Iterator[Any]) -> list[Any]:
    import jax.numpy as jnp

    values: list[Any] = []
    for number, node in enumerate(graph.nodes):
        if node.operation == "argument":
            values.append(next(arrays) if isinstance(node.given, tuple) else node.given)
            continue
        given = _resolved(node.given, values)
        if node.operation == "result":
            return [jnp.asarray(value) for value in given]
        args, kwargs = given
        try:
            if node.operation == "getitem":
                values.append(args[0][args[1]])
            else:
                values.append(_typed(_rule(node.operation, lowerings)(*args, **kwargs), node.dtypes))
        except Exception as error:
            raise _Failed(number, node.operation, error) from error
    raise InternalError("expected the results of a graph, found none")


def _rule(name: str, lowerings: Mapping[Any, Any]) -> Any:
    import torch

    namespace, packet_name, overload = name.split(".")
    packet = getattr(getattr(torch.ops, namespace), packet_name)
    found = lowerings.get(getattr(packet, overload)) or lowerings[packet]
    return found.func


def _resolved(given: Any, values: list[Any]) -> Any:
    if isinstance(given, Value):
        return values[given.number]
    if isinstance(given, Constant):
        import torch

        return getattr(torch, given.name)
    if isinstance(given, list | tuple):
        return type(given)(_resolved(each, values) for each in given)
    if isinstance(given, dict):
        return {name: _resolved(each, values) for name, each in given.items()}
    return given


def _typed(value: Any, dtypes: Any) -> Any:
    """Return a value with the type that PyTorch states: with 64 bits, JAX has wider results at times."""
    if isinstance(value, list | tuple):
        stated = dtypes if isinstance(dtypes, tuple) else (dtypes,) * len(value)
        return tuple(_typed(*each) for each in zip(value, stated, strict=True))
    if dtypes is None or not hasattr(value, "astype"):
        return value
    dtype = _dtype(dtypes)
    return value if value.dtype == dtype else value.astype(dtype)


def _dtype(dtype: Any) -> Any:
    return torch_export.load_torchax(_PURPOSE).ops.mappings.t2j_dtype(dtype)


@contextlib.contextmanager
def _without_lines() -> Iterator[None]:
    """Leave lines of torchax's sources out of the program: no help there, and another program after each change."""
    import jax

    before = jax.config.jax_traceback_in_locations_limit
    jax.config.update("jax_traceback_in_locations_limit", 0)
    try:
        yield
    finally:
        jax.config.update("jax_traceback_in_locations_limit", before)


if __name__ == "__main__":
    # Not as __main__: pickles name the module.
    from pjrt.frameworks import _torch_lowering

    _torch_lowering.main()
