"""The reference device: StableHLO, interpreted by numpy on whole arrays.

It is here to be compared with and to be understood: every op of the specification on every element type, each in one
place, and a program that can be traced, profiled and stepped through.

How a program runs
------------------
``Evaluator(module)`` compiles it once: each function and region becomes a ``Block``, a flat list of steps over numbered
slots. Running is a loop over these steps. What is wrong or unsupported is found at compile time; what depends on
constants only is computed there.

How to add an op
----------------
One function in the module of its chapter in ``ops/``::

    @op("stablehlo.reverse")
    def reverse(view: OpView) -> Kernel:
        \"\"\"Turns the order of some dimensions around.\"\"\"
        turned = [slice(None)] * view.operand().rank
        for dimension in view.attr("dimensions"):
            turned[dimension] = slice(None, None, -1)
        index = tuple(turned)
        return lambda x: x[index]

It runs when a program is compiled, looks at everything that is known then, and returns the kernel that runs each time,
which should do as little as possible. The decorator's other arguments are explained at ``op``.

- ``view.operand(i)``, ``view.result(i)``: ``TensorType`` with ``shape`` (None for an unknown size), ``sizes`` (static
  or an error), ``rank``, ``element`` (``pjrt.api.element_type.ElementType``), ``dtype``. ``view.operands`` and
  ``view.results`` may hold tokens and tuples too.
- ``view.attr("name")``, ``view.attr("name", default)``: Python values, see ``pjrt.stablehlo.attributes``. Dimension
  numbers are frozen dataclasses.
- ``view.regions``: compiled already; ``view.function("name")`` compiles a function of the module.
- ``raise view.unimplemented(reason)`` for what is not done, ``raise view.invalid(reason)`` for what the specification
  forbids: both name op, types and source location. Both are for compile time; a kernel that must fail raises an error
  of ``pjrt.api.errors``, and the loop adds the rest.

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
argument: ``kernel(environment, *operands)``. It is passed on to regions, and ``context_of(environment)`` is the run's
``Context`` (replica, partition, host).

- ``region(environment, *args)`` or ``region.run(environment, args)``: a list of results.
- ``region.pattern``: ``"add"``, ``"multiply"``, ``"maximum"``, ``"minimum"``, ``"and"``, ``"or"``, ``"xor"``,
  ``"first"``, ``"second"`` or None.
- ``region.vectorized(environment, *arrays)``: the scalar body at each position of arrays that broadcast together, a
  list of arrays: always right, and one pass where ``region.elementwise``.
- ``region.arguments``, ``region.results``: types. They may be wider than the operands' (a reduction of bf16 in f32):
  convert.
"""

from __future__ import annotations

from pjrt.devices.reference.core.block import Environment, Kernel, context_of
from pjrt.devices.reference.core.context import Context
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.core.registry import op, rules
from pjrt.devices.reference.evaluator import Evaluator

__all__ = ["Context", "Environment", "Evaluator", "Kernel", "OpView", "context_of", "op", "rules"]
