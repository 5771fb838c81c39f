"""The backend ``pjrt`` of ``torch.compile``: models of stock PyTorch on any device, forward and backward.

Dynamo and AOTAutograd give graphs of PyTorch's operations, on tensors of the CPU. The parts of a graph that torchax can
lower run on the device, one program each; the rest runs on the CPU. A process of its own lowers
(``_torch_lowering``): torchax changes PyTorch's global state, and JAX would take the devices of this process.
"""

from __future__ import annotations

import atexit
import logging
import operator
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - NumPy gets its types
import numpy as np
import torch
from torch._dynamo.backends.common import aot_autograd
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.weak import WeakIdKeyDictionary

from pjrt import system
from pjrt.api.buffer import Buffer, HostBufferSemantics
from pjrt.api.client import Client
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.api.loaded_executable import LoadedExecutable
from pjrt.api.program import Program
from pjrt.artifacts.compilation_cache import CompilationCache
from pjrt.frameworks._torch_lowering import Constant, Graph, Lowering, Node, Value
from pjrt.plugins import registry

VARIABLE = "PJRT_TORCH_COMPILE"
"""The environment variable that names the device, where no option does."""

MAX_PROGRAMS = 64
"""Limit of the programs that a part of a graph keeps: one for each combination of its arguments' shapes."""

_LOG = logging.getLogger(__name__)


def compile_graph(module: Any, inputs: Sequence[Any], options: Mapping[str, Any] | None) -> Any:
    """Compile a graph of Dynamo's for the device that options name, as ``torch_plugin.backend`` describes it."""
    target = Target.of(dict(options or {}))

    def compiled(graph: Any, _: Sequence[Any]) -> Any:
        part = _divided(graph, target)
        run: Any = lambda arguments: part(*arguments)  # noqa: E731
        run._boxed_call = True
        return run

    compiler = aot_autograd(fw_compiler=compiled, bw_compiler=compiled, decompositions=_decompositions(target))
    with sdpa_kernel(SDPBackend.MATH):  # as plain operations: the CPU's own attention has a backward of its own
        return compiler(module, inputs)


class Target:
    """A device that graphs are compiled for, with what lies in its memory.

    Args:
        client: the client; its first device runs the programs.
        is_own: whether the client was made here, and is closed at the end.
        cpu_fallback: whether operations that cannot be lowered run on the CPU.
        cache: keeps compiled programs on disk; ``None`` for none.
    """

    _known: dict[Any, Target] = {}  # noqa: RUF012 - one for each device that was named
    _lock = threading.Lock()

    def __init__(self, client: Client, is_own: bool, cpu_fallback: bool, cache: CompilationCache | None) -> None:
        self.client = client
        self._is_own = is_own
        self.cpu_fallback = cpu_fallback
        self.cache = cache
        self.lowering = Lowering.shared(None if cache is None else Path(cache.folder) / "lowered")
        self._warned: set[str] = set()
        self._parameters = WeakIdKeyDictionary()  # each with its address, its version and its buffer

    @classmethod
    def of(cls, options: dict[str, Any]) -> Target:
        """Return the device that options name, always the same one for the same options."""
        device = options.pop("device", None) or os.environ.get(VARIABLE) or registry.default()
        fallback = options.pop("cpu_fallback", True)
        folder = options.pop("cache", True)
        if not isinstance(fallback, bool):
            raise InvalidArgumentError(f"the option cpu_fallback: expected True or False, found {fallback!r}")
        cache = CompilationCache(system.cache_folder() / "torch" if folder is True else folder) if folder else None
        if isinstance(device, Client):
            if options:
                raise InvalidArgumentError(f"expected no more options with a client, found {', '.join(options)}")
            key: Any = (id(device), fallback, str(folder))
        else:
            key = (device, fallback, str(folder), repr(sorted(options.items())))
        with cls._lock:
            if key not in cls._known:
                is_own = not isinstance(device, Client)
                client = device if isinstance(device, Client) else registry.client(device, **options)
                cls._known[key] = cls(client, is_own, fallback, cache)
            return cls._known[key]

    @classmethod
    def forget(cls) -> None:
        """Close the clients of devices that were named, and let go of what lies on all."""
        with cls._lock:
            for target in cls._known.values():
                target._parameters.clear()
                if target._is_own:
                    target.client.close()
            cls._known.clear()

    def put(self, tensor: Any) -> Buffer:
        """Return a tensor on the device. A parameter stays there as long as it is not changed."""
        if not isinstance(tensor, torch.nn.Parameter):
            return self._put(tensor)
        address, version = tensor.data_ptr(), tensor._version
        kept = self._parameters.get(tensor)
        if kept is None or kept[:2] != (address, version):
            kept = self._parameters[tensor] = (address, version, self._put(tensor))
        buffer: Buffer = kept[2]
        return buffer

    def _put(self, tensor: Any) -> Buffer:
        # Nothing changes the memory while a program reads it: each call waits for its results.
        return self.client.buffer_from_host(_array(tensor), semantics=HostBufferSemantics.IMMUTABLE_ZERO_COPY)

    def warn_of(self, operations: Iterable[str]) -> None:
        """Say once of each operation that it runs on the CPU."""
        for name in operations:
            if name not in self._warned:
                self._warned.add(name)
                _LOG.warning("%s runs on the CPU: torchax cannot lower it for %s", name, self.client.platform_name)

    def compile(self, program: bytes) -> LoadedExecutable:
        """Return a program that was compiled now or before."""
        if self.cache is None:
            return self.client.compile(Program.of(program))
        return self.cache.compile(self.client, Program.of(program))


class Part:
    """A part of a graph that runs on the device: a program for each combination of its arguments' shapes."""

    def __init__(self, module: Any, target: Target) -> None:
        self.module = module
        self._target = target
        self._programs: OrderedDict[Any, LoadedExecutable] = OrderedDict()
        self._lock = threading.Lock()
        self._divided: Any = None  # where an operation could not be lowered after all
        (output,) = (node for node in module.graph.nodes if node.op == "output")
        self._is_single = isinstance(output.args[0], torch.fx.Node)

    def __call__(self, *arguments: Any) -> Any:
        executable = self._program(arguments)
        if executable is None:
            return self._divided(*arguments)
        buffers = [self._target.put(each) for each in arguments if isinstance(each, torch.Tensor)]
        (results,) = executable.execute([buffers])
        tensors = tuple(map(_tensor, results))
        return tensors[0] if self._is_single else tensors

    def _program(self, arguments: Sequence[Any]) -> LoadedExecutable | None:
        """Return the program for such arguments; ``None`` if the part was divided."""
        key = tuple((tuple(each.shape), each.dtype) if isinstance(each, torch.Tensor) else each for each in arguments)
        with self._lock:
            if self._divided is not None:
                return None
            executable = self._programs.get(key) or self._compile(arguments)
            if executable is not None:
                self._programs[key] = executable
                self._programs.move_to_end(key)
                if len(self._programs) > MAX_PROGRAMS:
                    self._programs.popitem(last=False)
            return executable

    def _compile(self, arguments: Sequence[Any]) -> LoadedExecutable | None:
        """Return a program for arguments of such shapes; ``None`` if an operation cannot be lowered."""
        nodes = list(self.module.graph.nodes)
        lowered = self._target.lowering.lower(_graph(nodes, arguments))
        if isinstance(lowered, bytes):
            return self._target.compile(lowered)
        failed = nodes[lowered.number]
        if not self._target.cpu_fallback:
            raise UnimplementedError(lowered.message)
        _LOG.info("%s", lowered.message)
        self._divided = _divided(self.module, self._target, without=[failed.name])
        return None


@dataclass(frozen=True)
class _Support(OperatorSupportBase):  # type: ignore[misc]
    """Whether the device runs a node of a graph."""

    operations: Collection[str]
    without: Collection[str]

    def is_node_supported(self, submodules: Any, node: Any) -> bool:
        if node.op != "call_function" or node.name in self.without or _has_symbols(node):
            return False
        return node.target is operator.getitem or is_lowered(node.target, self.operations)


def is_lowered(operation: Any, operations: Collection[str]) -> bool:
    """Whether an operation, or all of its name, can be lowered."""
    return str(operation) in operations or str(getattr(operation, "overloadpacket", "")) in operations


def _has_symbols(node: Any) -> bool:
    """Whether a node computes with sizes, which Python does."""
    value = node.meta.get("val")
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool)


def _divided(module: Any, target: Target, without: Collection[str] = ()) -> Callable[..., Any]:
    """Return a graph of which the device runs all parts that it can, and the CPU the rest.

    Raises:
        UnimplementedError: there is such a rest, and it must not run on the CPU.
    """
    support = _Support(target.lowering.operations, without)
    partitioner = CapabilityBasedPartitioner(module, support, allows_single_node_partition=True)
    whole = partitioner.partition_and_fuse()
    rest = dict.fromkeys(str(node.target) for node in whole.graph.nodes if _needs_fallback(node))
    if rest and not target.cpu_fallback:
        raise UnimplementedError(
            f"expected operations that torchax lowers, found {', '.join(rest)}; allow cpu_fallback"
        )
    target.warn_of(rest)
    for node in list(whole.graph.nodes):
        if node.op == "call_module" and node.target.startswith("fused_"):
            setattr(whole, node.target, _Called(Part(getattr(whole, node.target), target)))
    result: Callable[..., Any] = whole
    return result


class _Called(torch.nn.Module):  # type: ignore[misc]
    """A part of a graph, as a module that the graph calls."""

    def __init__(self, part: Part) -> None:
        super().__init__()
        self.forward = part


def _needs_fallback(node: Any) -> bool:
    """Whether a node runs on the CPU for want of a lowering; random numbers and sizes belong there."""
    if node.op != "call_function" or _has_symbols(node) or node.target is operator.getitem:
        return False
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded not in tags


def _graph(nodes: Sequence[Any], arguments: Sequence[Any]) -> Graph:
    """Return a graph and its arguments as the process that lowers gets them."""
    number_of = {node: number for number, node in enumerate(nodes)}

    def told(value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return Value(number_of[value])
        if isinstance(value, list | tuple):
            return tuple(map(told, value)) if isinstance(value, tuple) else list(map(told, value))
        if isinstance(value, dict):
            return {name: told(each) for name, each in value.items()}
        if isinstance(value, torch.memory_format):
            return Constant(str(value).removeprefix("torch."))
        return value

    given = iter(arguments)
    entries = []
    for node in nodes:
        if node.op == "placeholder":
            argument = next(given)
            is_tensor = isinstance(argument, torch.Tensor)
            entries.append(Node("argument", (tuple(argument.shape), argument.dtype) if is_tensor else argument))
        elif node.op == "output":
            is_single = isinstance(node.args[0], torch.fx.Node)
            entries.append(Node("result", told(node.args if is_single else node.args[0])))
        else:
            is_item = node.target is operator.getitem
            entries.append(
                Node(
                    "getitem" if is_item else str(node.target),
                    told((tuple(node.args), dict(node.kwargs))),
                    None if is_item else _dtypes(node.meta.get("val")),
                )
            )
    return Graph(tuple(entries))


def _dtypes(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_dtypes, value))
    return getattr(value, "dtype", None)


def _decompositions(target: Target) -> dict[Any, Any]:
    """Return how PyTorch takes operations apart that cannot be lowered."""
    table = torch._decomp.decomposition_table
    operations = target.lowering.operations
    found = {
        each: rule
        for each, rule in table.items()
        if not is_lowered(each, operations) or "_backward" in str(each)  # torchax has few of these, and wrong ones
    }
    aten = torch.ops.aten
    # Random numbers come from PyTorch's generator on the CPU, whose numbers need no value of the device.
    found[aten.rand_like.default] = _drawn_like(torch.rand)
    found[aten.randn_like.default] = _drawn_like(torch.randn)
    found[aten.bernoulli.default] = _bernoulli
    found[aten.bernoulli.p] = lambda x, p, generator=None: (torch.rand(x.shape) < p).to(x.dtype)
    return found


def _drawn_like(draw: Callable[..., Any]) -> Callable[..., Any]:
    def drawn(x: Any, *, dtype: Any = None, **_: Any) -> Any:
        return draw(x.shape, dtype=dtype or x.dtype)

    return drawn


def _bernoulli(x: Any, *, generator: Any = None) -> Any:
    return (torch.rand(x.shape) < x).to(x.dtype)


def _array(tensor: Any) -> np.ndarray[Any, Any]:
    """Return a tensor as an array, in its memory where it is dense."""
    flat = tensor.detach().contiguous().reshape(-1)
    octets: np.ndarray[Any, Any] = flat.view(torch.uint8).numpy()  # NumPy lacks types such as bfloat16
    return octets.view(_ELEMENT_TYPES[tensor.dtype].dtype).reshape(tuple(tensor.shape))


def _tensor(buffer: Buffer) -> Any:
    """Return a result as a tensor of its own."""
    array = np.array(buffer)
    dtype = _TORCH_TYPES[buffer.element_type]
    return torch.from_numpy(array.reshape(-1).view(np.uint8)).view(dtype).reshape(array.shape)


_ELEMENT_TYPES = {
    torch.float64: ElementType.F64,
    torch.float32: ElementType.F32,
    torch.float16: ElementType.F16,
    torch.bfloat16: ElementType.BF16,
    torch.int64: ElementType.S64,
    torch.int32: ElementType.S32,
    torch.int16: ElementType.S16,
    torch.int8: ElementType.S8,
    torch.uint8: ElementType.U8,
    torch.uint16: ElementType.U16,
    torch.uint32: ElementType.U32,
    torch.uint64: ElementType.U64,
    torch.bool: ElementType.PRED,
    torch.complex64: ElementType.C64,
    torch.complex128: ElementType.C128,
}
_TORCH_TYPES = {element_type: dtype for dtype, element_type in _ELEMENT_TYPES.items()}


@atexit.register
def _end() -> None:
    """Let go of all devices while Python is still whole."""
    Target.forget()
