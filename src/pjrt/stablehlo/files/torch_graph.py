"""Graphs of ``torch.export``: their operations of PyTorch, computed by JAX with the lowerings of torchax."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from pjrt.api.errors import PjrtError, UnimplementedError
from pjrt.stablehlo import torchax

PURPOSE = "convert a program of torch.export"

_EFFECTS = "with_effects"
"""The operation around others that have effects: it takes a token and the operation, and returns another token."""

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
        outputs: the specifications of the results.

    Raises:
        UnimplementedError: torchax cannot lower an operation, or the program is more than a function of its inputs.
    """

    def __init__(self, exported_program: Any) -> None:
        import torch

        self._torch = torch
        self._exported = exported_program
        operations = torchax.load(PURPOSE).ops
        self._jax_dtype = operations.mappings.t2j_dtype
        self._lowerings = operations.ops_registry.all_aten_ops
        signature = exported_program.graph_signature
        nodes = (node for node in exported_program.graph.nodes if node.op == "placeholder")
        self.inputs = list(zip(nodes, signature.input_specs, strict=True))
        self.outputs = signature.output_specs
        self._check()

    def results(self, arrays: Mapping[Any, Any]) -> list[Any]:
        """Return the arrays among the results, computed by JAX.

        Args:
            arrays: the arrays of weights and inputs, by their nodes.
        """
        import jax.numpy as jnp

        values = {node: arrays.get(node, node.meta["val"]) for node, _ in self.inputs}
        for node in self._calls():
            values[node] = self._value(node, values)
        (output,) = (node for node in self._exported.graph.nodes if node.op == "output")
        flat = zip(self._resolved(output.args[0], values), self.outputs, strict=True)
        return [jnp.asarray(value) for value, spec in flat if self.is_array(spec)]

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
        changed = [spec.target for spec in self.outputs if spec.kind.name.endswith("_MUTATION")]
        if changed:
            raise UnimplementedError(
                f"expected a function, found a program that changes its state or inputs ({_listed(changed)}), which a "
                "call cannot keep: export the model after model.eval(), or return the new values"
            )
        other = [spec.kind.name for spec in self.outputs if spec.kind.name not in ("USER_OUTPUT", "TOKEN")]
        if other:
            raise UnimplementedError(f"expected the results of the model alone, found {_listed(other)}")
        missing = {_operation(node): None for node in self._calls() if not self._can_lower(_operation(node))}
        if missing:
            raise UnimplementedError(f"torchax cannot lower the operations {_listed(missing)}")

    def _calls(self) -> Iterator[Any]:
        return (node for node in self._exported.graph.nodes if node.op == "call_function")

    def _can_lower(self, operation: Any) -> bool:
        """Whether torchax lowers an operation to a JAX function without state, such as that of random numbers."""
        if not isinstance(operation, self._torch._ops.OperatorBase):
            return True  # a function of Python, which computes with sizes
        lowering = self._lowering(operation)
        return lowering is not None and lowering.is_jax_function and not lowering.needs_env

    def _lowering(self, operation: Any) -> Any:
        return self._lowerings.get(operation) or self._lowerings.get(getattr(operation, "overloadpacket", None))

    def _value(self, node: Any, values: Mapping[Any, Any]) -> Any:
        import jax

        operation = _operation(node)
        lowering = self._lowering(operation)
        function = operation if lowering is None else lowering.func
        args, kwargs = self._resolved((node.args, node.kwargs), values)
        has_effects = operation is not node.target
        place = [path for path, _ in node.meta.get("nn_module_stack", {}).values()]  # of PyTorch's module
        try:
            with jax.named_scope("/".join([*place[-1:], node.name]).lstrip("/")):
                value = function(*(args[2:] if has_effects else args), **kwargs)
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
