"""Programs of ``torch.export``: files that ``torch.export.save`` writes (``.pt2``), and programs in memory.

Their graphs have PyTorch's operations. torchax lowers each to JAX, which traces them and writes StableHLO:
``pip install torch torchax jax``.

As a program, this module converts a file: PyTorch and JAX stay out of the process that reads the result.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import io
import json
import os
import pickle
import sys
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pjrt.api.checks import unexpected
from pjrt.api.element_type import ElementType
from pjrt.api.errors import DataLossError, FailedPreconditionError, InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.api.program import Program
from pjrt.stablehlo.encodings.format import ZIP_MAGIC
from pjrt.stablehlo.encodings.safe_parse import run_module
from pjrt.stablehlo.files.contents import FileContents, reading
from pjrt.stablehlo.files.jax_export import ExportedArray, read_jax_export
from pjrt.stablehlo.files.torch_folder import NONE, TorchInput, call_tree, parse_torch_tree, without_none
from pjrt.stablehlo.ir.tree import Tree
from pjrt.system import TemporaryFolder

REQUIREMENTS = "torch torchax jax"
"""The packages that ``pip install`` needs to get."""


_PARTS = ("torchax.decompositions", "torchax.ops.jaten")
"""The modules that torchax imports at their first use, with the lowerings of operations."""


def load_torchax(purpose: str) -> Any:
    """Import torchax with all lowerings of operations.

    Args:
        purpose: the purpose that it is needed for, as the end of the sentence "torchax is needed to …".

    Raises:
        FailedPreconditionError: PyTorch, JAX or torchax is not installed, or they do not fit together.
    """
    for package, title in (("torch", "PyTorch"), ("jax", "JAX"), ("torchax", "torchax")):
        if importlib.util.find_spec(package) is None:
            raise FailedPreconditionError(
                f"{title} is needed to {purpose}, and it is not installed: pip install {REQUIREMENTS}"
            )
    try:
        with _removed_overloads():
            for part in _PARTS:
                importlib.import_module(part)
        return importlib.import_module("torchax")
    except Exception as error:  # torchax reads hundreds of PyTorch's names while it is imported
        raise FailedPreconditionError(
            f"torchax is needed to {purpose}, and the installed one cannot be imported with "
            f"{_versions()} ({type(error).__name__}: {error}); install versions that fit together, such as "
            "torch 2.9 to 2.13 with torchax 0.0.13"
        ) from error


@contextlib.contextmanager
def _removed_overloads() -> Iterator[None]:
    """Have names of overloads that PyTorch has removed stand for nothing while torchax is imported.

    torchax 0.0.13 names overloads for named tensors, such as ``aten.prod.dim_Dimname``, in its tables. PyTorch 2.13 has
    none of them. No program can use them, so an entry that nothing looks up is right.
    """
    from torch._ops import OpOverloadPacket

    original = OpOverloadPacket.__getattr__

    def get(packet: Any, key: str) -> Any:
        try:
            return original(packet, key)
        except AttributeError:
            if "name" not in key.lower():
                raise
            return object()

    OpOverloadPacket.__getattr__ = get
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about its own use of PyTorch and JAX
            yield
    finally:
        OpOverloadPacket.__getattr__ = original


def _versions() -> str:
    from importlib.metadata import version

    return ", ".join(f"{package} {version(package)}" for package in ("torch", "jax", "torchax"))


PURPOSE = "convert a program of torch.export"

_EFFECTS = "with_effects"
"""The operation around others that have effects: it takes a token and the operation, and returns another token."""

RANDOM = "torch.random"
"""The name of the weight from which random numbers follow: a key of JAX, whose second number is a seed."""

_DRAWING = ("rand", "randn", "randn_like", "randint", "randint_like", "randperm", "bernoulli", "uniform", "multinomial")
"""The operations with random numbers that torchax lowers to what they are."""

_LEAST = 2
"""The least size that PyTorch gives a dynamic size without a bound, because it knows sizes of 0 and 1 apart."""

_UNBOUNDED = 1 << 31
_MOST_LISTED = 10


class TorchGraph:
    """The graph of an exported program, as a function of arrays.

    Args:
        exported_program: the program, decomposed to the operations that torchax lowers.

    Attributes:
        inputs: the nodes of the weights and inputs, each with its specification in the signature of the program.
        outputs: the specifications of the results, and of the new values of weights and inputs.
        is_random: whether it draws random numbers.

    Raises:
        UnimplementedError: torchax cannot lower an operation, or the program is more than a function of its inputs.
    """

    def __init__(self, exported_program: Any) -> None:
        import torch

        self._torch = torch
        self._control = {torch.ops.higher_order.cond: self._cond, torch.ops.higher_order.while_loop: self._while_loop}
        self._exported = exported_program
        operations = load_torchax(PURPOSE).ops
        self._jax_dtype = operations.mappings.t2j_dtype
        self._lowerings = operations.ops_registry.all_aten_ops
        signature = exported_program.graph_signature
        nodes = (node for node in exported_program.graph.nodes if node.op == "placeholder")
        self.inputs = list(zip(nodes, signature.input_specs, strict=True))
        self.outputs = signature.output_specs
        self.is_random = any(self._draws(_operation(node)) for node in self._calls(exported_program.graph_module))
        self._check()

    def results(self, arrays: Mapping[Any, Any]) -> list[Any]:
        """Return the arrays among the results, and then the new values of ``changed``, computed by JAX.

        Args:
            arrays: the arrays of weights and inputs, by their nodes; and the key of random numbers, by ``RANDOM``.
        """
        import jax.numpy as jnp

        self._keys = _Keys(arrays[RANDOM]) if self.is_random else None
        values = {node: arrays.get(node, node.meta["val"]) for node, _ in self.inputs}
        flat = list(zip(self._run(self._exported.graph_module, values), self.outputs, strict=True))
        results = [value for value, spec in flat if self.is_array(spec)]
        changed = [value for value, spec in flat if _is_changed(spec)]
        return list(map(jnp.asarray, results + changed)) + ([] if self._keys is None else [self._keys.last()])

    def changed(self) -> list[Any]:
        """Return the nodes of the weights and inputs that the program changes; the last may be ``RANDOM``."""
        node_of = {(spec.target is None, spec.target or node.name): node for node, spec in self.inputs}
        changed = ((spec.kind.name.startswith("USER"), spec.target) for spec in self.outputs if _is_changed(spec))
        return [node_of[each] for each in changed] + [RANDOM] * self.is_random

    def is_tensor(self, value: Any) -> bool:
        """Whether a value is a tensor."""
        return isinstance(value, self._torch.Tensor)

    def is_array(self, spec: Any) -> bool:
        """Whether a result is an array; numbers become arrays, too."""
        value = getattr(spec.arg, "value", 0)
        if isinstance(value, str):
            raise UnimplementedError(f"expected arrays, numbers and None as results, found {value!r}")
        return spec.kind.name == "USER_OUTPUT" and value is not None

    def dtype(self, tensor: Any) -> np.dtype[Any]:
        """Return the dtype of a tensor in NumPy and JAX."""
        try:
            dtype: np.dtype[Any] = self._jax_dtype(tensor.dtype)
        except RuntimeError as error:
            raise UnimplementedError(f"expected an element type that JAX has, found {tensor.dtype}") from error
        return dtype

    def shape(self, tensor: Any, symbolic: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the shape of an input in JAX, with its dynamic sizes from ``symbolic_sizes``."""
        return tuple(size if isinstance(size, int) else symbolic[str(size)] for size in tensor.shape)

    def symbolic_sizes(self) -> dict[str, Any]:
        """Return the dynamic sizes of the inputs as JAX has them, by their spelling in PyTorch."""
        import jax

        shapes = (node.meta["val"].shape for node, _ in self.inputs if self.is_tensor(node.meta["val"]))
        spellings = dict.fromkeys(str(size) for shape in shapes for size in shape if not isinstance(size, int))
        if not spellings:
            return {}
        with refusing("JAX cannot express the dynamic sizes"):
            scope = jax.export.SymbolicScope(list(self._constraints()))
            sizes = jax.export.symbolic_shape(",".join(spellings), scope=scope)
        return dict(zip(spellings, sizes, strict=True))

    def _constraints(self) -> Iterator[str]:
        for size, bounds in self._exported.range_constraints.items():
            lower, upper = str(bounds.lower), str(bounds.upper)  # unbounded ones are no numbers
            if lower.isdigit() and int(lower) > _LEAST:
                yield f"{size} >= {lower}"
            if upper.isdigit() and int(upper) < _UNBOUNDED:
                yield f"{size} <= {upper}"

    def _check(self) -> None:
        objects = [spec.target for _, spec in self.inputs if spec.kind.name == "CUSTOM_OBJ"]
        if objects:
            raise UnimplementedError(f"expected tensors as the state of the model, found objects: {_listed(objects)}")
        kinds = (self._torch.SymInt, self._torch.SymFloat, self._torch.SymBool)
        numbers = [node.name for node, _ in self.inputs if isinstance(node.meta["val"], kinds)]
        if numbers:
            raise UnimplementedError(
                f"expected tensors as inputs, found the dynamic numbers {_listed(numbers)}: export the model for fixed "
                "numbers, or pass tensors"
            )
        kinds_of_results = {spec.kind.name for spec in self.outputs if not _is_changed(spec)}
        other = sorted(kinds_of_results - {"USER_OUTPUT", "TOKEN"})
        if other:
            raise UnimplementedError(f"expected the results of the model alone, found {_listed(other)}")
        calls = list(self._calls(self._exported.graph_module))
        missing = {_operation(node): None for node in calls if not self._can_lower(_operation(node))}
        if missing:
            raise UnimplementedError(f"torchax cannot lower the operations {_listed(missing)}")
        loops = [node for node in calls if node.target is self._torch.ops.higher_order.while_loop]
        modules = (getattr(node.graph.owning_module, each.target) for node in loops for each in node.args[:2])
        if any(self._draws(_operation(node)) for module in modules for node in self._calls(module)):
            raise UnimplementedError("expected no random numbers in a while_loop: draw them before it")

    def _calls(self, graph_module: Any) -> Iterator[Any]:
        """Return the nodes that call something, also in the branches and loops of a graph."""
        graphs = (each.graph for each in graph_module.modules() if hasattr(each, "graph"))
        return (node for graph in graphs for node in graph.nodes if node.op == "call_function")

    def _can_lower(self, operation: Any) -> bool:
        """Whether torchax lowers an operation to a JAX function without state, but for that of random numbers."""
        if not isinstance(operation, self._torch._ops.OperatorBase) or operation in self._control:
            return True  # a function of Python, which computes with sizes
        lowering = self._lowering(operation)
        if lowering is None or not lowering.is_jax_function:
            return False
        return not lowering.needs_env or operation.overloadpacket.__name__ in _DRAWING

    def _draws(self, operation: Any) -> bool:
        lowering = self._lowering(operation)
        return lowering is not None and lowering.needs_env

    def _lowering(self, operation: Any) -> Any:
        return self._lowerings.get(operation) or self._lowerings.get(getattr(operation, "overloadpacket", None))

    def _run(self, graph_module: Any, values: dict[Any, Any]) -> Any:
        """Return the results of a graph whose arguments have values."""
        for node in graph_module.graph.nodes:
            if node.op == "get_attr":
                values[node] = getattr(graph_module, node.target)  # a branch, or the body of a loop
            elif node.op == "call_function":
                values[node] = self._value(node, values)
            elif node.op == "output":
                return self._resolved(node.args[0], values)
        raise DataLossError("expected a graph with results, found none")

    def _part(self, graph_module: Any, arguments: Iterable[Any]) -> tuple[Any, ...]:
        """Return the arrays that a branch or the body of a loop returns."""
        import jax.numpy as jnp

        nodes = (node for node in graph_module.graph.nodes if node.op == "placeholder")
        results = self._run(graph_module, dict(zip(nodes, arguments, strict=True)))
        return tuple(map(jnp.asarray, results if isinstance(results, list | tuple) else (results,)))

    def _cond(self, predicate: Any, true: Any, false: Any, operands: Sequence[Any] = ()) -> Any:
        import jax

        # Not as arguments of JAX's: among them may be sizes, which are shapes there.
        return jax.lax.cond(predicate, lambda: self._part(true, operands), lambda: self._part(false, operands))

    def _while_loop(self, condition: Any, body: Any, carried: Sequence[Any], others: Sequence[Any] = ()) -> Any:
        import jax
        import jax.numpy as jnp

        return jax.lax.while_loop(
            lambda values: self._part(condition, [*values, *others])[0].reshape(()),
            lambda values: self._part(body, [*values, *others]),
            tuple(map(jnp.asarray, carried)),
        )

    def _value(self, node: Any, values: Mapping[Any, Any]) -> Any:
        import jax

        operation = _operation(node)
        lowering = self._lowering(operation)
        function = self._control.get(operation, operation) if lowering is None else lowering.func
        args, kwargs = self._resolved((node.args, node.kwargs), values)
        if lowering is not None and lowering.needs_env:
            kwargs = {**kwargs, "env": self._keys}
        has_effects = operation is not node.target
        place = [path for path, _ in node.meta.get("nn_module_stack", {}).values()]  # of PyTorch's module
        try:
            with jax.named_scope("/".join([*place[-1:], node.name]).lstrip("/")):
                value = function(*(args[2:] if has_effects else args), **kwargs)
        except PjrtError:  # from an operation in a branch
            raise
        except Exception as error:
            raise UnimplementedError(f"torchax cannot lower {operation} here: {first_line(error)}") from error
        return (args[0], value) if has_effects else self._typed(value, node.meta.get("val"))

    def _resolved(self, arguments: Any, values: Mapping[Any, Any]) -> Any:
        return self._torch.fx.node.map_arg(arguments, values.__getitem__)

    def _typed(self, value: Any, stated: Any) -> Any:
        """Return a value with the element type that PyTorch states: with 64 bits, JAX has wider results at times."""
        if self.is_tensor(stated) and hasattr(value, "astype"):
            dtype = self.dtype(stated)
            return value if value.dtype == dtype else value.astype(dtype)
        if isinstance(stated, list | tuple) and isinstance(value, list | tuple):
            return tuple(map(self._typed, value, stated))
        return value


class _Keys:
    """The keys of a program's random numbers, as torchax asks for them: another one each time, also in a branch."""

    def __init__(self, data: Any) -> None:
        import jax

        self._key, self._count = jax.random.wrap_key_data(data, impl="threefry2x32"), 0

    def get_and_rotate_prng_key(self, generator: Any = None) -> Any:
        import jax

        self._count += 1
        return jax.random.fold_in(self._key, self._count)

    def last(self) -> Any:
        """Return a key that none has asked for, as an array."""
        import jax

        return jax.random.key_data(self.get_and_rotate_prng_key())


def _is_changed(spec: Any) -> bool:
    return bool(spec.kind.name.endswith("_MUTATION"))


def _operation(node: Any) -> Any:
    """Return the operation that a node calls, which may have effects."""
    return node.args[1] if str(node.target) == _EFFECTS else node.target


@contextlib.contextmanager
def refusing(reason: str) -> Iterator[None]:
    """Make errors of other libraries ours, with a reason in front."""
    try:
        yield
    except PjrtError:
        raise
    except Exception as error:
        raise UnimplementedError(f"{reason}: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """Return the type of an error and the first line of its message."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def _listed(names: Iterable[Any]) -> str:
    names = list(map(str, names))
    more = len(names) - _MOST_LISTED
    return ", ".join(names[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


ERROR = "error.json"
"""The file that the subprocess writes in place of a result: a status code and a message."""

_PROGRAM, _FACTS = "program", "facts.json"


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about a converted program beside its arrays, in values that JSON has.

    Attributes:
        weights: the name, element type and shape of each weight, with the name as in the model's ``state_dict``.
        inputs: for each leaf of the inputs the type of a Python value; empty for a tensor.
        results: for each leaf of the results whether it is an array; the others are None.
        input_tree: the structure of the inputs, as PyTorch writes it.
        output_tree: the structure of the results.
        names: the names of the positional arguments, and then of the others; empty if unknown.
        updates: for each of the last results the number of the weight, or of the input behind them, whose new value it
            is.
    """

    weights: Sequence[tuple[str, str, Sequence[int]]]
    inputs: Sequence[str]
    results: Sequence[bool]
    input_tree: str
    output_tree: str
    names: Sequence[str]
    updates: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Converted:
    """A converted program.

    Attributes:
        program: a file of ``jax.export``: a function of the weights and then of the inputs that are tensors.
        facts: the facts that the file of the program does not state.
        weights: the parameters, buffers and constants of the model.
    """

    program: bytes
    facts: Facts
    weights: Sequence[np.ndarray[Any, Any]] = field(repr=False)

    def write(self, folder: Path) -> None:
        """Write the program into a folder."""
        for number, weight in enumerate(self.weights):
            weight.tofile(folder / str(number))
        (folder / _FACTS).write_text(json.dumps(asdict(self.facts)) + "\n", encoding="utf-8")
        (folder / _PROGRAM).write_bytes(self.program)

    @staticmethod
    def read(folder: Path) -> Converted:
        """Return the program that ``write`` wrote into a folder."""
        facts = Facts(**json.loads((folder / _FACTS).read_text(encoding="utf-8")))
        weights = [
            np.fromfile(folder / str(number), ElementType[element_type].dtype).reshape(shape)
            for number, (_, element_type, shape) in enumerate(facts.weights)
        ]
        return Converted((folder / _PROGRAM).read_bytes(), facts, weights)


def convert(exported_program: Any) -> Converted:
    """Return a ``torch.export.ExportedProgram`` as a program in StableHLO. JAX traces it in this process.

    Raises:
        FailedPreconditionError: PyTorch, JAX or torchax is not installed.
        UnimplementedError: torchax cannot lower an operation, or the program is more than a function of its inputs.
    """
    table = load_torchax(PURPOSE).decompositions.DECOMPOSITIONS
    import jax

    root = exported_program.module_call_graph[0].signature
    names = tuple(getattr(root, "forward_arg_names", None) or ())  # decomposition drops them
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch and torchax warn about their own code
        _check_recurrent(exported_program)
        with refusing("PyTorch cannot decompose the program"):
            exported_program = exported_program.run_decompositions().run_decompositions(table)
        # Integers of PyTorch have 64 bits. And lines in the sources of torchax would be no help in the program.
        with jax.enable_x64(True), _setting("jax_traceback_in_locations_limit", 0):
            return _traced(exported_program, names)


def _check_recurrent(exported_program: Any) -> None:
    """Refuse layers whose dropout PyTorch 2.13 leaves out where it takes them apart, such as LSTM's."""
    for node in exported_program.graph.nodes:
        names = [each.name for each in getattr(getattr(node.target, "_schema", None), "arguments", ())]
        if "dropout" in names and "train" in names:
            given = dict(zip(names, node.args, strict=False)) | node.kwargs
            if given.get("train") and given.get("dropout"):
                raise UnimplementedError(
                    f"expected {node.target} without dropout, which PyTorch leaves out of such a program: export the "
                    "model after model.eval(), or with dropout=0 and layers of torch.nn.Dropout"
                )


def _traced(exported_program: Any, names: Sequence[str]) -> Converted:
    import jax

    graph = TorchGraph(exported_program)
    symbolic = graph.symbolic_sizes()
    weights: dict[str, np.ndarray[Any, Any]] = {}
    python_types = []
    types: dict[Any, Any] = {}  # of the nodes whose values are arguments of the program
    if graph.is_random:
        weights[RANDOM] = np.zeros(2, np.uint32)
        types[RANDOM] = jax.ShapeDtypeStruct((2,), np.uint32)
    for node, spec in graph.inputs:
        value = node.meta["val"]
        if spec.kind.name in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
            weights[spec.target] = array = _array(exported_program, spec.target, graph)
            types[node] = jax.ShapeDtypeStruct(array.shape, array.dtype)
        elif spec.kind.name == "USER_INPUT":
            python_types.append("" if graph.is_tensor(value) else type(value).__name__)
            if graph.is_tensor(value):
                types[node] = jax.ShapeDtypeStruct(graph.shape(value, symbolic), graph.dtype(value))

    def forward(*arrays: Any) -> Any:
        return graph.results(dict(zip(types, arrays, strict=True)))

    # JAX takes the names of the arguments from here.
    named = [inspect.Parameter(getattr(node, "name", "random"), inspect.Parameter.POSITIONAL_ONLY) for node in types]
    forward.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    order = list(types)
    updates = [order.index(node) for node in graph.changed()]
    # What is overwritten without being read is an argument all the same.
    function = jax.jit(forward, keep_unused=bool(updates))
    with refusing("JAX cannot export the program"):
        program = bytes(jax.export.export(function, platforms=["cpu"])(*types.values()).serialize())
    facts = Facts(
        weights=[(name, ElementType.of(array.dtype).name, array.shape) for name, array in weights.items()],
        inputs=python_types,
        results=[graph.is_array(spec) for spec in graph.outputs if spec.kind.name == "USER_OUTPUT"],
        input_tree=_spelled(exported_program.call_spec.in_spec),
        output_tree=_spelled(exported_program.call_spec.out_spec),
        names=names,
        updates=updates,
    )
    return Converted(program, facts, tuple(weights.values()))


def _array(exported_program: Any, name: str, graph: TorchGraph) -> np.ndarray[Any, Any]:
    """Return a parameter, a buffer or a constant; in the memory of the tensor where that is possible."""
    import torch

    state = exported_program.state_dict
    tensor = state[name] if name in state else exported_program.constants[name]
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise UnimplementedError(f"expected dense tensors as weights, found {name!r} of type {tensor.type()}")
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    octets: np.ndarray[Any, Any] = flat.view(torch.uint8).numpy()  # NumPy lacks types such as bfloat16
    return octets.view(graph.dtype(tensor)).reshape(tuple(tensor.shape))


def _spelled(structure: Any) -> str:
    from torch.utils import _pytree

    with refusing("PyTorch cannot write the structure of the arguments or results"):
        return str(_pytree.treespec_dumps(structure))


@contextlib.contextmanager
def _setting(name: str, value: Any) -> Iterator[None]:
    """Change a setting of JAX for a while."""
    import jax

    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        yield
    finally:
        jax.config.update(name, before)


def _load(path: str) -> Any:
    """Return the ``ExportedProgram`` in a file. PyTorch may unpickle tensors, and nothing else."""
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    load_torchax(PURPOSE)
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.load(path)
    except pickle.UnpicklingError as error:
        raise InvalidArgumentError(
            "expected a program of torch.export whose pickled objects are tensors, found others, which are not loaded"
        ) from error
    except Exception as error:
        raise InvalidArgumentError(
            f"expected a program of torch.export, which PyTorch {torch.__version__} cannot read: {first_line(error)}"
        ) from error


def main() -> None:
    """Convert the file that the first argument names, and write the result into the folder of the second."""
    source, folder = sys.argv[1], Path(sys.argv[2])
    os.environ["JAX_PLATFORMS"] = "cpu"  # an accelerator belongs to the process that calls the model
    try:
        convert(_load(source)).write(folder)
    except PjrtError as error:
        (folder / ERROR).write_text(json.dumps([int(error.code), error.message]), encoding="utf-8")


class ExportedProgram(Protocol):
    """A ``torch.export.ExportedProgram``; PyTorch's own class cannot be named without PyTorch."""

    @property
    def graph_module(self) -> Any:
        """The graph, as a module of PyTorch."""

    def run_decompositions(self) -> Any:
        """Return the program with simpler operations."""


@dataclass(frozen=True, slots=True)
class TorchExport(FileContents):
    """A program of ``torch.export``, converted to StableHLO.

    Attributes:
        program: the program.
        inputs: the leaves of the arguments that the caller gives, in their order; None is no leaf. A dynamic size is a
            symbol, named as in PyTorch.
        names: the names of the positional arguments, and then of the others; empty if the file does not state them.
        results: the results of the program.
        input_tree: the structure of ``inputs``: a tuple of the positional arguments and a dictionary of the others.
        output_tree: the structure of ``results``, but for those in ``updates``.
        weights: the parameters, buffers and constants of the model, by their positions among the arguments.
        weight_names: their names in the model's ``state_dict``, by position; ``RANDOM`` is the state of random numbers.
        updates: the last results are new values of weights and inputs: the positions of these, by number of the result.
    """

    kind = "torch.export program"

    program: Program
    inputs: tuple[TorchInput, ...]
    names: tuple[str, ...]
    results: tuple[ExportedArray, ...]
    input_tree: Tree
    output_tree: Tree
    weights: Mapping[int, np.ndarray[Any, Any]] = field(repr=False)
    weight_names: Mapping[int, str] = field(repr=False)
    updates: Mapping[int, int] = field(default_factory=dict)

    def stated_platforms(self) -> Sequence[str]:
        return ()

    def stored_weights(self) -> Mapping[int, np.ndarray[Any, Any]]:
        return self.weights

    def names_of_weights(self) -> Mapping[int, str]:
        return self.weight_names


def is_torch_export(source: Any) -> bool:
    """Whether a source is a file of ``torch.export``, its bytes, or an ``ExportedProgram``."""
    if _is_program(source):
        return True
    if isinstance(source, bytes):
        return source.startswith(ZIP_MAGIC) and _is_archive(io.BytesIO(source))
    if not isinstance(source, str | os.PathLike):
        return False
    try:
        with open(source, "rb") as file:
            return file.seekable() and file.read(len(ZIP_MAGIC)) == ZIP_MAGIC and _is_archive(file)
    except (OSError, ValueError):
        return False


def read_torch_export(source: str | bytes | os.PathLike[str] | ExportedProgram) -> TorchExport:
    """Return a program of ``torch.export`` as StableHLO, with its weights.

    A subprocess converts it, because torchax changes PyTorch's global state, and JAX would take the devices of this
    process. A program in memory is converted in this process if torchax is imported already: the lowerings that were
    registered with it are known here alone.

    PyTorch reads the file. It may unpickle tensors alone, but evaluates expressions in the file: read only files that
    you trust.

    Args:
        source: a path, the bytes of a file, or a ``torch.export.ExportedProgram``.

    Raises:
        NotFoundError: there is no such file.
        InvalidArgumentError: it is no such file, or PyTorch cannot read it.
        UnimplementedError: torchax cannot lower an operation, which the message names.
        FailedPreconditionError: PyTorch, JAX or torchax is not installed.
    """
    if _is_program(source) and "torchax" in sys.modules:
        return contents(convert(source))
    if _is_program(source) or isinstance(source, bytes):
        with TemporaryFolder("torch") as folder:
            path = folder / "program.pt2"
            _save(source, path)
            return contents(_converted(path))
    if not isinstance(source, str | os.PathLike):
        raise unexpected(source, "the path of a file, its bytes or an ExportedProgram")
    with reading(source):
        if not is_torch_export(source):
            Path(source).open("rb").close()  # the error of a file that is missing or closed to the reader
            raise InvalidArgumentError("expected a file of torch.export.save, found another")
        return contents(_converted(Path(source)))


def _is_program(source: Any) -> bool:
    kind = type(source)
    return kind.__name__ == "ExportedProgram" and kind.__module__.startswith("torch.export")


def _save(source: Any, path: Path) -> None:
    if isinstance(source, bytes):
        path.write_bytes(source)
        return
    import torch

    with refusing("torch.export.save cannot write the program for the subprocess that converts it"):
        torch.export.save(source, path)


def _is_archive(file: Any) -> bool:
    """Whether a zip archive has a program of ``torch.export``; PyTorch before 2.8 had another layout."""
    try:
        names = zipfile.ZipFile(file).namelist()
    except zipfile.BadZipFile:
        return False
    inner = {name.partition("/")[2] for name in names} | set(names)
    return "serialized_exported_program.json" in inner or any(
        name.startswith("models/") and name.endswith(".json") for name in inner
    )


def _converted(path: Path) -> Converted:
    with TemporaryFolder("torch") as folder:
        ended = run_module(convert.__module__, str(path), str(folder), given=b"", time_limit=None)
        if ended is None:
            raise FailedPreconditionError(
                "expected a Python to start, which converts the file; found none: give the program as an "
                "ExportedProgram, from torch.export.load"
            )
        if (folder / ERROR).exists():
            code, message = json.loads((folder / ERROR).read_text(encoding="utf-8"))
            raise PjrtError.of(code, message)
        if ended.status:
            raise DataLossError(f"the conversion of the program ended with {ended}")
        return Converted.read(folder)


def contents(converted: Converted) -> TorchExport:
    """Return a converted program with its arguments and results as its caller sees them."""
    export, facts = read_jax_export(converted.program), converted.facts
    position_of = {index: position for position, index in enumerate(export.kept_arguments)}
    kept = {position_of[index]: index for index in range(len(facts.weights)) if index in position_of}
    tensors = enumerate(export.arguments[len(facts.weights) :], len(facts.weights))
    inputs = []
    for python_type in facts.inputs:
        if python_type:
            inputs.append(TorchInput(None, (), python_type=python_type))
        else:
            index, array = next(tensors)
            inputs.append(TorchInput(array.element_type, array.shape, position_of.get(index)))
    results = iter(TorchInput(None, (), python_type="" if is_array else NONE) for is_array in facts.results)
    updates = enumerate(facts.updates, len(export.results) - len(facts.updates))
    return TorchExport(
        program=export.program,
        inputs=tuple(each for each in inputs if each.python_type != NONE),
        names=tuple(facts.names),
        results=export.results,
        input_tree=call_tree(parse_torch_tree(facts.input_tree), inputs),
        output_tree=without_none(parse_torch_tree(facts.output_tree), results),
        weights={position: converted.weights[index] for position, index in kept.items()},
        weight_names={position: facts.weights[index][0] for position, index in kept.items()},
        updates={number: position_of[index] for number, index in updates},
    )


if __name__ == "__main__":
    main()
