"""``jax.experimental.sparse``: products, gradients, transformed functions and solvers of sparse matrices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from framework_jobs import Results, part
from jax.experimental import sparse
from jax.experimental.sparse import linalg


def matrices() -> tuple[np.ndarray, np.ndarray]:
    """Return a matrix of which most elements are zero, and a dense one."""
    random = np.random.default_rng(0)
    dense = random.standard_normal((20, 30)) * (random.random((20, 30)) < 0.2)
    return dense.astype(np.float32), random.standard_normal((30, 4)).astype(np.float32)


@part()
def products() -> Results:
    dense, other = matrices()
    coo = sparse.BCOO.fromdense(dense)
    return {
        "coo": coo @ other,
        "jit": jax.jit(lambda a, b: a @ b)(coo, other),
        "transposed": coo.T @ jnp.ones(20),
        "rows": sparse.BCSR.fromdense(dense) @ other,
        "csr": sparse.CSR.fromdense(dense) @ other,
        "two": (coo @ sparse.BCOO.fromdense(dense.T.copy())).todense(),
        "sums": coo.sum(1).todense(),
        "dense": coo.todense(),
    }


@part()
def batches() -> Results:
    """Each matrix of a batch has another number of elements, so that the rest of its indices are out of bounds."""
    dense, other = matrices()
    batch = sparse.BCOO.fromdense(np.stack([dense, np.triu(dense)]), n_batch=1)
    numbers = (([2], [1]), ([0], [0]))
    return {
        "product": sparse.bcoo_dot_general(batch, jnp.stack([other, other]), dimension_numbers=numbers),
        "dense": batch.todense(),
        "indices": jax.vmap(lambda row: jnp.nonzero(row, size=12)[0])(dense),
    }


@part()
def transformations() -> Results:
    dense, other = matrices()
    coo = sparse.BCOO.fromdense(dense)

    def norm(values: jax.Array) -> jax.Array:
        return ((sparse.BCOO((values, coo.indices), shape=coo.shape) @ other) ** 2).sum()

    sums = sparse.sparsify(lambda a, b: jnp.sum(a * 2 + a, axis=0) @ b)
    return {"gradient": jax.grad(norm)(coo.data), "sparsified": sums(coo, other)}


@part()
def solvers() -> Results:
    dense, _ = matrices()
    symmetric = dense @ dense.T + 20 * np.eye(20, dtype=np.float32)
    a, b = sparse.BCSR.fromdense(symmetric), jnp.arange(20.0)
    return {
        "direct": linalg.spsolve(a.data, a.indices, a.indptr, b),
        "gmres": jax.scipy.sparse.linalg.gmres(lambda x: a @ x, b)[0],
        "bicgstab": jax.scipy.sparse.linalg.bicgstab(lambda x: a @ x, b)[0],
        "eigenvalues": linalg.lobpcg_standard(jnp.array(symmetric), jnp.eye(20, 2))[0],
    }
