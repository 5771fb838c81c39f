"""Updating in place: when a kernel may write to an operand after all.

Values are immutable, which makes an update of one row of a large array a copy of all of it, and a loop that fills an
array quadratic. Where the operand is not read again, and nothing but the step itself refers to its memory, nobody can
tell whether it was copied. The first is known when a program is compiled: then the loop is given the kernel's
``consuming`` form. The second is a matter of counting references when it runs; views, exports and traces hold
references too. How many the step itself holds is measured once, by the same loop.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from pjrt.devices.reference.core.block import Block, Environment, Kernel, encode, run_fast

Array = Any


def with_consuming(kernel: Kernel, consuming: Kernel) -> Kernel:
    """The kernel, with the form that takes over where its first operand is not read after it.

    That form asks ``is_free(x)`` (or ``is_free(x, True)`` where it takes the environment) in its own frame, with ``x``
    a parameter of its own.
    """
    kernel.consuming = consuming  # type: ignore[attr-defined]
    return kernel


def is_free(x: Array, environment: bool = False) -> bool:
    """Whether the first operand of the running step may be written to: it owns its memory and nobody else knows it."""
    return (
        sys.getrefcount(x) <= _HELD[environment]
        and x.__class__ is np.ndarray
        and x.base is None
        and x.flags.writeable
        and x.flags.c_contiguous
    )


def _held_by_a_step(environment: bool) -> int:
    """The number of references to a step's first operand that ``is_free`` counts, where nothing else holds one."""
    counted = []

    def count(x: Array, environment: bool = False) -> None:
        counted.append(sys.getrefcount(x))

    def plain(x: Array, update: Array, *starts: Array) -> None:
        count(x)

    def with_environment(_: Environment, x: Array, indices: Array, update: Array) -> None:
        count(x, True)

    kernel = with_environment if environment else plain
    code = encode(kernel, (1, 2, 3), (4,), (1,), environment)
    block = Block("counting", (), (), [], (code,), (), (), ())
    run_fast(block, [None, np.zeros(1), None, None, None])
    return counted[0]


_HELD = (_held_by_a_step(False), _held_by_a_step(True))
