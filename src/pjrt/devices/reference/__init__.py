"""The reference device: an interpreter of StableHLO on numpy, for whole arrays.

Compare other devices with it, and read it: it has every op of the specification on every element type, each in one
place, and its programs can be traced, profiled and stepped through.

How a program runs
------------------
``Evaluator(module)`` compiles it once: each function and region becomes a ``Block``, a flat list of steps over numbered
slots. A loop runs these steps. Errors of the program and unsupported ops are found at compile time.

- ``core``: the interpreter itself: blocks, the compiler of modules, the registry of ops.
- ``ops``: the ops, a module for each chapter of the specification.
- ``numerics``: functions on arrays for the ops.
- ``spmd``: programs for several devices.
- ``fast``: optimizations. The rest is complete without them (``optimize=False``).

How to add an op
----------------
One function in the module of its chapter in ``ops/``::

    @op("stablehlo.reverse")
    def reverse(view: OpView) -> Kernel:
        \"\"\"Reverse some dimensions.\"\"\"
        dimensions = view.attr("dimensions")
        index = tuple(slice(None, None, -1 if d in dimensions else 1) for d in range(view.operand().rank))
        return lambda x: x[index]

It runs when a program is compiled, reads types and attributes, and returns the kernel that runs each time and should do
as little as possible. The docstring of ``op`` explains the decorator's other arguments.

- ``view.operand(i)``, ``view.result(i)``: ``TensorType`` with ``shape`` (None for an unknown size), ``sizes`` (static
  or an error), ``rank``, ``element`` (``pjrt.api.element_type.ElementType``), ``dtype``. ``view.operands`` and
  ``view.results`` may hold tokens and tuples too.
- ``view.attr("name")``, ``view.attr("name", default)``: Python values, see ``pjrt.stablehlo.ir.attributes``. Dimension
  numbers are frozen dataclasses.
- ``view.regions``: already compiled; ``view.function("name")`` compiles a function of the module.
- ``view.derive(name=..., attributes=..., ...).compile()``: the kernel of another op, for ops that reduce to it.
- ``raise view.unimplemented(reason)`` for unsupported ops, ``raise view.invalid(reason)`` for those that break a rule
  of the specification: both name op, types and source location. Both are for compile time; a kernel that must fail
  raises an error of ``pjrt.api.errors``, and the loop adds the rest.

Values
------
- A tensor is a numpy array of exactly ``type.dtype`` and the type's shape. **A scalar (rank 0) may be a 0-d array or a
  numpy scalar** (``np.float32``): use numpy functions, ``.dtype``, ``.shape``, ``.astype``, never ``isinstance(x,
  np.ndarray)``; never return a Python number. Use ufuncs (``np.add(x, y)``), not operators, on values that can be
  integer scalars: operators on numpy scalars warn on overflow.
- **Values are immutable.** A kernel never writes to an operand; it may return a view of one (or the operand itself).
- 2- and 4-bit integers, and floats below 16 bits, are ``ml_dtypes`` arrays of a byte an element. To compute with them,
  ``numerics.element_types`` has ``compute_dtype``, ``widen``, ``narrow``, ``lift``, and the
  groups of types.
- Uniform-quantized tensors are arrays of their storage type.
- A token is ``TOKEN``, a tuple is a Python tuple. An op with one result returns the value, with several a sequence of
  them, with none anything.
- Floating-point warnings are off while kernels run.

Regions and the environment
---------------------------
The kernel of an op that has regions, or is registered with ``environment=True``, gets the environment as its first
argument: ``kernel(environment, *operands)``. It passes the environment on to regions, and ``context_of(environment)``
is the run's ``Context`` (replica, partition, host).

- ``region(environment, *args)`` or ``region.run(environment, args)``: a list of results. ``one_or_all(results)`` is the
  form in which a kernel returns them.
- ``region.pattern``: ``"add"``, ``"multiply"``, ``"maximum"``, ``"minimum"``, ``"and"``, ``"or"``, ``"xor"``,
  ``"first"``, ``"second"`` or None.
- ``region.vectorized(environment, *arrays)``: the scalar body at each position of arrays that broadcast together, a
  list of arrays: always right, and one pass where ``region.elementwise``.
- ``region.arguments``, ``region.results``: types. They may be wider than the operands' (a reduction of bf16 in f32):
  convert.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pjrt.api.lazy_names import lazy_names
from pjrt.devices.reference.core.block import Context, Environment, Kernel, context_of, one_or_all
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.core.registry import op, rules
from pjrt.devices.reference.evaluator import Evaluator

if TYPE_CHECKING:
    from pjrt.devices.reference.operation_evaluator import OperationEvaluator

__all__ = [
    "Context",
    "Environment",
    "Evaluator",
    "Kernel",
    "OpView",
    "OperationEvaluator",
    "context_of",
    "one_or_all",
    "op",
    "rules",
]


if not TYPE_CHECKING:  # a type checker has the name from above; with these functions it would accept any other
    # Runs of programs do without it, and without what it imports.
    __getattr__, __dir__ = lazy_names(__name__, {".operation_evaluator": "OperationEvaluator"})
