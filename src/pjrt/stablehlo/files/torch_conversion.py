"""Conversion of ``torch.export`` programs to StableHLO: torchax lowers each operation, and JAX traces it.

As a program, this module converts a file: PyTorch and JAX stay out of the process that reads the result.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import pickle
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.stablehlo import torchax
from pjrt.stablehlo.files.torch_graph import PURPOSE, TorchGraph, first_line, refusing

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
    """

    weights: Sequence[tuple[str, str, Sequence[int]]]
    inputs: Sequence[str]
    results: Sequence[bool]
    input_tree: str
    output_tree: str
    names: Sequence[str]


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
    table = torchax.load(PURPOSE).decompositions.DECOMPOSITIONS
    import jax

    root = exported_program.module_call_graph[0].signature
    names = tuple(getattr(root, "forward_arg_names", None) or ())  # decomposition drops them
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch and torchax warn about their own code
        with refusing("PyTorch cannot decompose the program"):
            exported_program = exported_program.run_decompositions().run_decompositions(table)
        # Integers of PyTorch have 64 bits. And lines in the sources of torchax would be no help in the program.
        with jax.enable_x64(True), _setting("jax_traceback_in_locations_limit", 0):
            return _traced(exported_program, names)


def _traced(exported_program: Any, names: Sequence[str]) -> Converted:
    import jax

    graph = TorchGraph(exported_program)
    symbolic = graph.symbolic_sizes()
    weights: dict[str, np.ndarray[Any, Any]] = {}
    python_types = []
    types: dict[Any, Any] = {}  # of the nodes whose values are arguments of the program
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
    named = [inspect.Parameter(node.name, inspect.Parameter.POSITIONAL_ONLY) for node in types]
    forward.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    with refusing("JAX cannot export the program"):
        program = bytes(jax.export.export(jax.jit(forward), platforms=["cpu"])(*types.values()).serialize())
    facts = Facts(
        weights=[(name, ElementType.of(array.dtype).name, array.shape) for name, array in weights.items()],
        inputs=python_types,
        results=[graph.is_array(spec) for spec in graph.outputs if spec.kind.name == "USER_OUTPUT"],
        input_tree=_spelled(exported_program.call_spec.in_spec),
        output_tree=_spelled(exported_program.call_spec.out_spec),
        names=names,
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
    torchax.load(PURPOSE)
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


if __name__ == "__main__":
    main()
