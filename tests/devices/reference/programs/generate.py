"""Write the programs of this folder: some functions as JAX lowers them to StableHLO text. Needs jax; tests do not.

``python tests/devices/reference/programs/generate.py``
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

HERE = Path(__file__).parent
KEY = np.zeros(2, np.uint32)


def f32(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


def mlp(parameters: Any, x: Any) -> Any:
    for weights, bias in parameters:
        x = jnp.tanh(x @ weights + bias)
    return x


def loss(parameters: Any, x: Any, y: Any) -> Any:
    return jnp.mean((mlp(parameters, x) - y) ** 2)


def training(parameters: Any, x: Any, y: Any) -> Any:
    """Do ten steps of gradient descent, in a loop."""

    def step(current: Any, _: Any) -> Any:
        value, slope = jax.value_and_grad(loss)(current, x, y)
        return jax.tree.map(lambda p, s: p - 0.1 * s, current, slope), value

    return lax.scan(step, parameters, None, length=10)


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bqd,bkd->bqk", q, k) / np.sqrt(q.shape[-1])
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    return jax.nn.softmax(jnp.where(mask, scores, -1e30), -1) @ v


def convolve(x: Any, kernel: Any) -> Any:
    found = lax.conv_general_dilated(
        x, kernel, (2, 1), "SAME", rhs_dilation=(1, 2), dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return lax.reduce_window(jax.nn.relu(found), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")


def definite(a: Any) -> Any:
    return a @ a.T + 4 * jnp.eye(a.shape[0])


def indexing(x: Any, i: Any) -> Any:
    picked = x[jnp.array([3, 1, 2, 0, 7, 5])]
    return picked, x[::-1, 2:5], x.at[i % 8, 0].add(1.0), x.at[2].set(0.0), jnp.take_along_axis(x, jnp.argsort(x, 1), 1)


def special(x: Any) -> Any:
    x = jnp.abs(x) + 0.1
    sp = jax.scipy.special
    return sp.gammaln(x), sp.digamma(x), sp.erf(x), sp.i1e(x), sp.zeta(2 + x, 1.0), sp.logsumexp(x)


def random(key: Any) -> Any:
    return (
        jax.random.bits(key, (7,)),
        jax.random.permutation(key, 20),
        jax.random.randint(key, (5,), 0, 100),
        jax.random.uniform(key, (100,)),
    )


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "attention": (attention, (f32(4, 8, 16),) * 3),
    "cholesky": (lambda a: jnp.linalg.cholesky(definite(a)), (f32(8, 8),)),
    "convolution": (convolve, (f32(2, 12, 12, 3), f32(3, 3, 3, 5))),
    "convolution_gradient": (
        jax.grad(lambda x, k: (convolve(x, k) ** 2).sum(), argnums=(0, 1)),
        (f32(2, 6, 6, 3), f32(3, 3, 3, 5)),
    ),
    "cumulative": (lambda x: (jnp.cumsum(x, 1), jnp.cumprod(x, 0), lax.cummax(x, 2)), (f32(4, 8, 16),)),
    "fourier": (lambda x: (jnp.fft.rfft(x), jnp.fft.irfft(jnp.fft.rfft(x))), (f32(4, 16),)),
    "hessian": (jax.hessian(lambda x: jnp.sum(jnp.sin(x) ** 3)), (f32(8),)),
    "histogram": (lambda x: (jnp.histogram(x, 10)[0], jnp.searchsorted(jnp.sort(x), x)), (f32(64),)),
    "indexing": (indexing, (f32(8, 8), np.arange(5, dtype=np.int32))),
    "integers": (
        lambda a, b: (a // (b | 1), a % (b | 1), a << (b & 31), a >> 2, lax.population_count(a), lax.clz(a)),
        (np.zeros(16, np.int32), np.zeros(16, np.int32)),
    ),
    "layer_norm": (lambda x: jax.nn.standardize(x) * 2 + 1, (f32(4, 8, 16),)),
    "logits": (lambda x: (jax.nn.log_softmax(x), jax.nn.gelu(x, approximate=False)), (f32(8, 32),)),
    "mixed_precision": (
        lambda x: (x.astype(jnp.bfloat16) @ x.T.astype(jnp.bfloat16)).astype(jnp.float32),
        (f32(16, 16),),
    ),
    "mlp_gradient": (jax.grad(loss), ([(f32(16, 32), f32(32)), (f32(32, 4), f32(4))], f32(10, 16), f32(10, 4))),
    "qr": (lambda a: jnp.linalg.qr(a, mode="r"), (f32(6, 4),)),
    "random": (random, (KEY,)),
    "recurrence": (
        lambda x, w: lax.scan(lambda h, v: (jnp.tanh(h @ w + v),) * 2, jnp.zeros(16), x),
        (f32(12, 16), f32(16, 16)),
    ),
    "solve": (lambda a, b: jnp.linalg.solve(definite(a), b), (f32(8, 8), f32(8, 3))),
    "sorting": (lambda x: (jnp.sort(x, -1), jnp.argsort(x, 0), lax.top_k(x, 3)), (f32(8, 32),)),
    "special_functions": (special, (f32(32),)),
    "statistics": (lambda x: (x.sum(), x.mean(0), x.max(1), x.prod(-1), jnp.argmax(x, 1), x.std()), (f32(4, 8, 16),)),
    "switch": (lambda i, x: lax.switch(i, [jnp.sin, jnp.cos, jnp.exp], x), (np.int32(0), f32(16))),
    "training": (training, ([(f32(16, 8), f32(8)), (f32(8, 4), f32(4))], f32(10, 16), f32(10, 4))),
    "while": (lambda x: lax.while_loop(lambda c: c[0] < 100, lambda c: (c[0] + 1, c[1] * 1.01), (0, x)), (f32(16),)),
}


def main() -> None:
    """Write each program to a file of its name."""
    for name, (function, arguments) in PROGRAMS.items():
        lowered = jax.jit(function, keep_unused=True).trace(*arguments).lower(lowering_platforms=("reference",))
        (HERE / f"{name}.mlir").write_text(lowered.as_text())


if __name__ == "__main__":
    main()
