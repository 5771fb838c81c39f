"""JAX with no other backend than the ``cpu`` device of ours: nothing is there that its own CPU backend would bring."""

from __future__ import annotations

import functools
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.full

pytest.importorskip("jax")

CHECKS: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def assert_close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-3, atol=1e-3)


@check
def there_is_one_backend() -> None:
    import jax
    from jax._src import xla_bridge

    assert jax.default_backend() == "cpu"
    assert jax.devices("cpu") == jax.devices("pjrt_cpu") == jax.devices()
    assert list(xla_bridge.backends()) == ["pjrt_cpu"]


@check
def linear_algebra() -> None:
    import jax
    import jax.numpy as jnp
    from jax.lax import linalg

    for dtype in (np.float32, np.complex128):
        generator = np.random.default_rng(0)
        a = generator.standard_normal((2, 4, 4))
        if np.issubdtype(dtype, np.complexfloating):
            a = a + 1j * generator.standard_normal((2, 4, 4))
        a = a.astype(dtype)
        s = a @ a.conj().swapaxes(1, 2) + 4 * np.eye(4, dtype=dtype)
        assert_close(jnp.linalg.cholesky(s), np.linalg.cholesky(s))
        assert_close(jnp.linalg.solve(s, a), np.linalg.solve(s, a))
        assert_close(jnp.linalg.det(s), np.linalg.det(s))
        assert_close(jnp.linalg.eigvalsh(s), np.linalg.eigvalsh(s))
        assert_close(jnp.linalg.svd(a, compute_uv=False), np.linalg.svd(a, compute_uv=False))
        for algorithm in (linalg.SvdAlgorithm.DEFAULT, linalg.SvdAlgorithm.QR):
            u, values, v = linalg.svd(a, algorithm=algorithm)
            assert_close((u * values[:, None, :].astype(dtype)) @ v, a)
        q, r = jnp.linalg.qr(a)
        assert_close(q @ r, a)
        q, r, pivots = linalg.qr(a, pivoting=True)
        assert_close(q @ r, np.take_along_axis(a, np.asarray(pivots)[:, None, :], axis=2))
        values, vectors = jnp.linalg.eig(a)
        assert_close(a @ vectors, vectors * values[:, None, :])
        form, vectors = linalg.schur(a)
        assert_close(vectors @ form @ vectors.conj().swapaxes(1, 2), a)
        form, reflectors = linalg.hessenberg(a)
        q = linalg.householder_product(form[:, 1:, :-1], reflectors)
        assert_close(q @ q.conj().swapaxes(1, 2), np.broadcast_to(np.eye(3), (2, 3, 3)))
        _, diagonal, _, _ = linalg.tridiagonal(s, lower=True)
        assert_close(diagonal.sum(1), np.trace(s, axis1=1, axis2=2))
        solution = linalg.triangular_solve(s, a, left_side=True, lower=True)
        assert_close(np.tril(s) @ solution, a)
        below, beside, above = a[0, :3]
        whole = np.diag(beside + 4) + np.diag(below[1:], -1) + np.diag(above[:-1], 1)
        assert_close(whole @ linalg.tridiagonal_solve(below, beside + 4, above, a[1]), a[1])
        lu, _, permutation = linalg.lu(a)
        lower = np.tril(lu, -1) + np.eye(4, dtype=dtype)
        assert_close(lower @ np.triu(lu), np.take_along_axis(a, np.asarray(permutation)[:, :, None], axis=1))
    assert_close(jax.scipy.linalg.expm(np.zeros((3, 3))), np.eye(3))


@check
def batches_of_linear_algebra_stay_split_over_devices() -> None:
    import jax
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    split = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), P("x"))
    a = np.broadcast_to(4 * np.eye(3, dtype=np.float32), (4, 3, 3))
    result = jax.jit(jax.numpy.linalg.cholesky)(jax.device_put(a, split))
    assert_close(result, a / 2)
    assert result.sharding.is_equivalent_to(split, 3)


@check
def sparse_matrices() -> None:
    import jax
    from jax.experimental import sparse

    dense = np.array([[0, 2, 0], [1, 0, 3]], np.float32)
    matrix = sparse.BCSR.fromdense(dense)
    assert_close(jax.jit(lambda m, v: m @ v)(matrix, np.arange(3, dtype=np.float32)), dense @ np.arange(3))


@check
def handlers_that_users_register_with_jax() -> None:
    import ctypes

    import jax

    from pjrt.devices.xla.ffi_handler import handler_of

    def double(x: Any, out: Any) -> None:
        out[...] = x * 2

    capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
        ("PyCapsule_New", ctypes.pythonapi)
    )(handler_of(double, 0), None, None)
    jax.ffi.register_ffi_target("test_jax_alone.double", capsule, platform="cpu")
    call = jax.ffi.ffi_call("test_jax_alone.double", jax.ShapeDtypeStruct((3,), np.float32))
    assert_close(jax.jit(call)(np.arange(3, dtype=np.float32)), [0, 2, 4])


@check
def callbacks() -> None:
    import jax
    from jax.experimental.buffer_callback import buffer_callback

    def fill(_: Any, out: Any, x: Any) -> None:
        np.asarray(out)[...] = np.asarray(x) + 1

    x = np.arange(3, dtype=np.float32)
    assert_close(jax.jit(buffer_callback(fill, jax.ShapeDtypeStruct((3,), np.float32)))(x), x + 1)
    assert_close(jax.jit(lambda v: jax.pure_callback(np.sin, jax.ShapeDtypeStruct((3,), np.float32), v))(x), np.sin(x))


@check
def memory_of_other_libraries() -> None:
    """The rules are those of JAX's own CPU: in place if aligned, copied if not, refused where a copy is forbidden."""
    import jax

    raw = np.zeros(4096, np.uint8)
    start = -raw.ctypes.data % 64
    for shift, copy, shared in (
        (0, None, True),
        (0, False, True),
        (0, True, False),
        (4, None, False),
        (4, True, False),
    ):
        a = raw[start + shift :][:64].view(np.float32).reshape(4, 4)
        a[...] = np.arange(16).reshape(4, 4)
        b = jax.dlpack.from_dlpack(a, copy=copy)
        assert_close(b, np.arange(16).reshape(4, 4))
        a[0, 0] = 7
        assert (float(b[0, 0]) == 7) == shared, (shift, copy)
        assert_close(jax.dlpack.from_dlpack(a.T), a.T)
    with pytest.raises(ValueError, match="is not aligned to 64 bytes"):
        jax.dlpack.from_dlpack(raw[start + 4 :][:64], copy=False)
    bf16 = jax.numpy.arange(4, dtype=jax.numpy.bfloat16)
    assert_close(jax.dlpack.from_dlpack(bf16, copy=True), np.arange(4))


def run_all() -> None:
    import jax

    import pjrt

    pjrt.frameworks.jax.register("cpu", num_devices=2)
    jax.config.update("jax_enable_x64", True)
    found: dict[str, str | None] = {}
    for name, function in CHECKS.items():
        try:
            function()
            found[name] = None
        except BaseException as error:
            found[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(found))


@functools.cache
def results() -> dict[str, str | None]:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", inspect.getsourcefile(run_all) or ""],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "JAX_PLATFORMS": "pjrt_cpu"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", CHECKS)
def test_jax_alone(name: str) -> None:
    assert results()[name] is None


if __name__ == "__main__":
    run_all()
