"""Checks of JAX on the exported device, beside JAX on its own CPU device."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pjrt.api.errors import PjrtError
from pjrt.conformance.device.checks import Check, Outcome, Session, Skipped
from pjrt.conformance.device.finding import Finding, Kind
from pjrt.host_memory.difference import Difference

_PLATFORM = "pjrt_test_device"

_PROGRAMS = {
    "x + 1": "result = jax.jit(lambda x: x + 1)(matrix)",
    "x @ x.T": "result = jax.jit(lambda x: x @ x.T)(matrix)",
    "sum": "result = jax.jit(lambda x: x.sum(axis=1))(matrix)",
    "x[0]": "result = matrix[0]",
    "linalg.solve": "a = matrix @ matrix.T + 9 * jnp.eye(2)\nresult = jnp.linalg.solve(a, matrix[:, 0])",
    "random": "result = jax.random.normal(jax.random.key(0), (3, 4))",
    "grad": "result = jax.jit(jax.grad(lambda x: jnp.tanh(x @ x.T / 9).sum()))(matrix)",
    "scan": (
        "step = lambda c, y: (jnp.tanh(c @ y) + 1, c.sum())\n"
        "result = jax.jit(lambda x: jax.lax.scan(step, x, jnp.stack([x.T @ x] * 3)))(matrix)"
    ),
    "cond": "result = jax.jit(lambda x: jax.lax.cond(x[0, 1] > 0, jnp.sin, jnp.cos, x))(matrix)",
    "sort": "result = jnp.sort(jnp.array([3.0, -1.0, jnp.nan, 2.0, -jnp.inf]))",
    "integers": "x = jnp.arange(-6, 6)\nresult = (x // 5, x % 5, x << 2, x.astype(jnp.uint8))",
    "bfloat16": "x = matrix.astype(jnp.bfloat16)\nresult = x @ x.T + 1",
    "donation": (
        "x = jax.device_put(matrix + 1, device)\n"
        "result = jax.jit(lambda x: x + x, donate_argnums=0)(x)\n"
        "assert x.is_deleted(), 'the donated array was not deleted'"
    ),
    "training step": (
        "start, y = {'w': matrix.T / 9, 'b': matrix[0, :2]}, jnp.ones((2, 2))\n"
        "loss = lambda p: ((jnp.tanh(matrix @ p['w'] + p['b']) - y) ** 2).mean()\n"
        "step = jax.jit(lambda p: jax.tree.map(lambda v, g: v - 0.1 * g, p, jax.grad(loss)(p)))\n"
        "result = step(step(start))"
    ),
    "pmap": "result = jax.pmap(lambda x: x + jax.lax.psum(x, 'i'), 'i', devices=devices)(np.arange(2.0))",
    "sharded jit": (
        "sharding = jax.NamedSharding(jax.sharding.Mesh(np.array(devices), ('i',)), jax.P('i'))\n"
        "x = jax.device_put(np.arange(8.0, dtype=np.float32).reshape(4, 2), sharding)\n"
        "result = jax.jit(lambda x: (x @ x.T).sum(axis=0))(x)"
    ),
    "sharded training step": (
        "sharding = jax.NamedSharding(jax.sharding.Mesh(np.array(devices), ('i',)), jax.P('i'))\n"
        "x = jax.device_put(np.arange(8.0, dtype=np.float32).reshape(4, 2) / 8, sharding)\n"
        "w = jax.device_put(np.ones((2, 2), np.float32), jax.NamedSharding(sharding.mesh, jax.P()))\n"
        "result = jax.jit(lambda w: w - 0.1 * jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).mean())(w))(w)"
    ),
}
"""Lines of JAX. ``matrix`` is an array of two by three elements on the device; the lines leave arrays in ``result``."""

_TWO_DEVICES = frozenset({"pmap", "sharded jit", "sharded training step"})


@dataclass(frozen=True, slots=True)
class JaxCheck:
    """A check of a few lines of JAX.

    Attributes:
        title: the name of the check, without ``jax: ``.
    """

    title: str

    @property
    def name(self) -> str:
        """The name of the check."""
        return f"jax: {self.title}"

    @property
    def group(self) -> str:
        """The group ``jax``."""
        return "jax"

    def run(self, session: Session) -> Outcome:
        """Run the lines on the device, and on JAX's CPU device."""
        if importlib.util.find_spec("jax") is None:
            return Skipped("JAX is not installed: pip install jax")
        import jax

        devices = _devices(session)
        cpus = jax.devices("cpu")
        if self.title in _TWO_DEVICES and min(len(devices), len(cpus)) < 2:
            return Skipped("the device, or JAX's CPU, has fewer than two devices")
        program = _PROGRAMS[self.title]
        expected = _results(program, cpus)
        try:
            results = _results(program, devices)
        except Exception as error:
            message = str(error) or type(error).__name__
            if message.startswith("UNIMPLEMENTED"):
                return Skipped(message)
            return Finding(self.name, Kind.ERROR, f"{type(error).__name__}: {message}"[:2000], program)
        for number, (result, right) in enumerate(zip(results, expected, strict=True)):
            difference = Difference.of(result, right)
            if not difference.agrees:
                where = f"result {number}: " if len(results) > 1 else ""
                return Finding(self.name, Kind.WRONG, where + str(difference), program)
        return None


def checks() -> Iterator[Check]:
    """Return the checks of JAX."""
    for title in _PROGRAMS:
        yield JaxCheck(title)


def _devices(session: Session) -> list[Any]:
    """Return the devices in JAX. The first call registers the device, before JAX makes its backends."""
    import jax

    from pjrt.capi.export import export
    from pjrt.frameworks import jax as registration

    if not _registered:
        _registered.append(registration.register(export(_maker(session), name=_PLATFORM), make_default=False))
        jax.config.update("jax_platforms", f"{_registered[0]},cpu")
        with contextlib.suppress(AttributeError, RuntimeError):  # so that sharded programs have an expected result
            jax.config.update("jax_num_cpu_devices", 2)
    devices: list[Any] = jax.devices(_registered[0])
    return devices


_registered: list[str] = []


def _maker(session: Session) -> Any:
    def make(**options: Any) -> Any:
        try:
            return session.new_client(num_devices=2, **options)
        except (PjrtError, TypeError):
            return session.new_client(**options)

    return make


def _results(program: str, devices: list[Any]) -> list[Any]:
    """Return the arrays in ``result`` after the lines have run on a device."""
    import jax
    import jax.numpy as jnp

    names: dict[str, Any] = {"jax": jax, "jnp": jnp, "np": np, "device": devices[0], "devices": devices[:2]}
    names["matrix"] = jax.device_put(np.arange(6, dtype=np.float32).reshape(2, 3), devices[0])
    with jax.default_device(devices[0]):
        exec(program, names)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(names["result"])]
