"""Count the calls of this package's Python functions that a command or an execution makes, after some that warm up.

    python tools/count_calls.py run examples/digits/digits.stablehlo --input examples/digits/weights.npz ...
    python tools/count_calls.py --call reference    # exe(x) of one tanh on a device, with a numpy array
    python tools/count_calls.py --jax               # a jitted addition of JAX on a kernel in Python

It prints how many there are, and the functions that are called most; of a command also how often a program is
recognized and parsed. Functions in Cython are not counted. Counting calls and executions needs Python 3.12.
"""

from __future__ import annotations

import collections
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np

import pjrt

READING = ("stablehlo.encodings.format._recognized", "stablehlo.reading.conversion.parse_here")
TANH = """
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.tanh %x : tensor<8xf32>
  return %0 : tensor<8xf32>
}
"""


def count(function: Callable[[], object], warm_ups: int = 1) -> collections.Counter[str]:
    """Return how often a call of a function calls each of ours, in all threads, by its module and name."""
    counts: collections.Counter[str] = collections.Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.startswith("pjrt."):
            counts[f"{module.removeprefix('pjrt.')}.{frame.f_code.co_qualname}"] += 1

    for _ in range(warm_ups):
        function()
    set_profile = getattr(threading, "setprofile_all_threads", sys.setprofile)
    threading.setprofile(note)
    set_profile(note)
    try:
        function()
    finally:
        set_profile(None)
        threading.setprofile(None)
    return counts


def of_a_command(arguments: list[str]) -> collections.Counter[str]:
    """Return the calls of the ``pjrt`` command."""
    from pjrt.cli import main

    return count(lambda: main(arguments, standalone_mode=False))


def of_a_call(device: str) -> collections.Counter[str]:
    """Return the calls of a tiny execution with a numpy array, its result waited for."""
    executable, x = pjrt.client(device).compile(TANH), np.ones(8, np.float32)
    return count(lambda: executable(x)[0].ready().result(), 20)


def of_jax() -> collections.Counter[str]:
    """Return the calls of a tiny program of JAX on a kernel in Python, its result waited for."""
    spec = pjrt.ShapeSpec((8,), pjrt.ElementType.F32)

    def compile(program: pjrt.Program, options: pjrt.CompileOptions) -> pjrt.host.Compiled:
        return pjrt.host.Compiled(run=lambda x: x + 1, parameters=[spec], outputs=[spec])

    client = pjrt.host.HostClient("counted", compile=compile)
    platform = pjrt.frameworks.jax.register(client, experimental=False)
    import jax

    x = jax.device_put(np.ones(8, np.float32), jax.devices(platform)[0])
    function = jax.jit(lambda x: x + 1)
    return count(lambda: function(x).block_until_ready(), 20)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--call", device]:
            counts = of_a_call(device)
        case ["--jax"]:
            counts = of_jax()
        case arguments:
            counts = of_a_command(arguments)
    print(f"{counts.total()} calls of {len(counts)} functions")
    for name in READING:
        if counts[name]:
            print(f"{counts[name]:>6} {name}")
    for name, number in counts.most_common(20):
        print(f"{number:>6} {name}")
