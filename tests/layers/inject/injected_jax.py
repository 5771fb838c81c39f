"""A program: JAX on a device whose calls fail as rules ask for. It prints what JAX made of each fault as JSON."""

from __future__ import annotations

import ctypes
import gc
import json
import signal
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import xla_bridge

from pjrt.layers import findings, inject, wrap

X = np.arange(4, dtype=np.float32)
TO_DEVICE = "Client_BufferFromHostBuffer"
report: dict[str, object] = {}
plugin = wrap(sys.argv[1], ["validate", "inject"])


def register() -> None:
    """Have JAX use the wrapped plugin by default."""
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    xla_bridge.register_plugin("injected", c_api=make(plugin.address, b"pjrt_c_api", None), priority=1000)
    jax.config.update("jax_platforms", "injected")


def result_of(step: Callable[[], object]) -> object:
    """Return a step's result as a list, or its exception as text."""
    try:
        return np.asarray(step()).tolist()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def under(name: str, rules: str, step: Callable[[], object]) -> None:
    """Take a step under these rules, and then once more without."""
    inject(plugin, rules)
    result = result_of(step)
    inject(plugin, "")
    report[name] = [result, result_of(step)]


def double(x: jax.Array) -> jax.Array:
    """Return twice the argument."""
    return x * 2


def read_short() -> object:
    """Read numbers of 4 bits: JAX copies these to the host, and takes all others where they lie on this device."""
    return np.asarray(jax.jit(double)(x).astype(jnp.int4)).astype(np.float32)


def wait_in_vain() -> None:
    """Wait with a time limit for a result that is never ready, and leave it there when the program ends."""
    inject(plugin, "call=LoadedExecutable_Execute,ready=never")
    result = jax.jit(double)(x)
    inject(plugin, "")

    def give_up(*_: object) -> None:
        raise TimeoutError("long enough")

    signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    report["never"] = [result_of(result.block_until_ready), result.is_ready()]
    globals()["still there"] = result


def fill_memory() -> None:
    """Put arrays on the device until its memory is full, then free one."""
    arrays = []
    inject(plugin, "memory=1k")
    try:
        while len(arrays) < 100:
            arrays.append(jax.device_put(np.zeros(64, np.float32)).block_until_ready())
    except Exception as error:
        report["full"] = [len(arrays), f"{type(error).__name__}: {error}"]
    arrays.pop().delete()
    gc.collect()
    arrays.append(jax.device_put(np.zeros(64, np.float32)))
    inject(plugin, "")


def donate() -> None:
    """Donate an array to a call that fails: it is still there."""
    array = jax.device_put(X)
    inject(plugin, "call=LoadedExecutable_Execute,error=RESOURCE_EXHAUSTED,message=no room")
    failure = result_of(lambda: jax.jit(double, donate_argnums=0)(array))
    inject(plugin, "")
    report["donation"] = [failure, result_of(lambda: array)]


register()
x = jax.device_put(X)
under("compile", "call=Client_Compile,error=INTERNAL,message=no compiler", lambda: jax.jit(lambda x: double(x) + 1)(x))
under("execute", "call=LoadedExecutable_Execute,error=ABORTED,message=no engine", lambda: jax.jit(double)(x))
under("to device", f"call={TO_DEVICE},error=DATA_LOSS,message=no way in", lambda: jax.device_put(X) + 0)
under("from device", "call=Buffer_ToHostBuffer,error=DATA_LOSS,message=no way out", read_short)
under("event", "call=LoadedExecutable_Execute,ready=INTERNAL,message=broken later", lambda: jax.jit(double)(x))
under(
    "argument", "call=Client_BufferFromHostBuffer,ready=INTERNAL,message=came broken", lambda: double(jax.device_put(X))
)
under("flip", "call=Buffer_ToHostBuffer,flip=0", read_short)
fill_memory()
donate()
wait_in_vain()
report["findings"] = [str(finding) for finding in findings(plugin)]
print(json.dumps(report))
