"""LAPACK's routines as custom calls: each against the definition of what it gives, for all of its four types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg

import pjrt
from pjrt.api.element_type import ElementType

DTYPES = {"s": np.float32, "d": np.float64, "c": np.complex64, "z": np.complex128}
every_type = pytest.mark.parametrize("letter", DTYPES)


def matrices(letter: str, *shape: int, seed: int = 0) -> Any:
    random = np.random.default_rng(seed)
    real = random.standard_normal(shape)
    return (real + 1j * random.standard_normal(shape) if letter in "cz" else real).astype(DTYPES[letter])


def adjoint(x: Any) -> Any:
    return np.conjugate(x.swapaxes(-1, -2))


def close(found: Any, expected: Any, factor: float = 100) -> bool:
    eps = np.finfo(found.dtype).eps
    return bool(np.abs(found - expected).max(initial=0) <= factor * eps * max(1, np.abs(expected).max(initial=0)))


def tensor(shape: Any, dtype: Any) -> str:
    return f"tensor<{''.join(f'{size}x' for size in shape)}{ElementType.of(dtype).mlir}>"


def call(run: Any, target: str, args: list[Any], made: list[tuple[Any, Any]], config: str = "") -> list[Any]:
    given, results = [tensor(a.shape, a.dtype) for a in args], [tensor(*m) for m in made]
    params = ", ".join(f"%a{i}: {t}" for i, t in enumerate(given))
    names = ", ".join(f"%a{i}" for i in range(len(given)))
    bound, out = "%0", "%0"
    if len(made) > 1:
        bound, out = f"%0:{len(made)}", ", ".join(f"%0#{i}" for i in range(len(made)))
    kinds = ", ".join(results)
    text = f"""func.func @main({params}) -> ({kinds}) {{
      {bound} = stablehlo.custom_call @{target}({names}) {{mhlo.backend_config = {{{config}}}}}
        : ({", ".join(given)}) -> ({kinds})
      return {out} : {kinds} }}"""
    return list(run(text, *args))


def unreflected(letter: str, run: Any, vectors: Any, factors: Any) -> Any:
    name = "orgqr" if letter in "sd" else "ungqr"
    (found,) = call(run, f"lapack_{letter}{name}_ffi", [vectors, factors], [(vectors.shape, vectors.dtype)])
    return found


@every_type
@pytest.mark.parametrize("size", [0, 1, 5])
def test_schur(run: Any, letter: str, size: int) -> None:
    a = matrices(letter, 2, size, size)
    values = [((2, size), a.dtype)] * (2 if letter in "sd" else 1)
    made = [(a.shape, a.dtype), (a.shape, a.dtype), *values, ((2,), np.int32), ((2,), np.int32)]
    form, basis, *parts, chosen, status = call(
        run, f"lapack_{letter}gees_ffi", [a], made, "mode = 86 : ui8, sort = 78 : ui8"
    )
    assert close(basis @ form @ adjoint(basis), a)
    assert close(adjoint(basis) @ basis, np.broadcast_to(np.eye(size), a.shape))
    below = -2 if letter in "sd" else -1  # pairs of conjugate eigenvalues keep a block of two rows
    assert not np.tril(form, below).any()
    found = np.sort_complex(parts[0] + 1j * parts[1] if letter in "sd" else parts[0])
    assert np.allclose(found, np.sort_complex(np.linalg.eigvals(a)), rtol=1e-3, atol=1e-3)
    assert not chosen.any()
    assert not status.any()
    without, *_ = call(run, f"lapack_{letter}gees_ffi", [a], made, "mode = 78 : ui8, sort = 78 : ui8")
    assert np.array_equal(np.isfinite(without), np.isfinite(form))


def test_schur_in_an_order_is_refused(run: Any) -> None:
    a = matrices("d", 3, 3)
    made = [(a.shape, a.dtype)] * 2 + [((3,), a.dtype)] * 2 + [((), np.int32)] * 2
    with pytest.raises(pjrt.UnimplementedError, match="found eigenvalues that are sorted"):
        call(run, "lapack_dgees_ffi", [a], made, "mode = 86 : ui8, sort = 83 : ui8")


def tridiagonal(lower: Any, main: Any, upper: Any) -> Any:
    size = main.shape[-1]
    whole = np.zeros((*main.shape, size), main.dtype)
    at = np.arange(size)
    whole[..., at, at] = main
    whole[..., at[1:], at[:-1]], whole[..., at[:-1], at[1:]] = lower[..., 1:], upper[..., :-1]
    return whole


@every_type
@pytest.mark.parametrize("size", [0, 1, 2, 7])
def test_tridiagonal_systems(run: Any, letter: str, size: int) -> None:
    diagonals = [matrices(letter, 3, size, seed=seed) for seed in range(3)]
    right = matrices(letter, 3, size, 2, seed=3)
    kinds = [(x.shape, x.dtype) for x in (*diagonals, right)]
    *_, x, status = call(run, f"lapack_{letter}gtsv_ffi", [*diagonals, right], [*kinds, ((3,), np.int32)])
    assert close(tridiagonal(*diagonals) @ x, right, 2000)
    assert not status.any()
    (same,) = call(run, "tridiagonal_solve_perturbed_ffi", [*diagonals, right], kinds[-1:])
    assert np.array_equal(same, x)


def test_singular_tridiagonal_systems(run: Any) -> None:
    main = np.array([[1, 0, 2], [1, 1, 1]], np.float64)
    zero, right = np.zeros_like(main), np.ones((2, 3, 1))
    kinds = [((2, 3), np.float64)] * 3 + [((2, 3, 1), np.float64)]
    *_, status = call(run, "lapack_dgtsv_ffi", [zero, main, zero, right], [*kinds, ((2,), np.int32)])
    assert status.tolist() == [2, 0]
    (x,) = call(run, "tridiagonal_solve_perturbed_ffi", [zero, main, zero, right], kinds[-1:])
    assert np.isfinite(x).all()
    assert x[0, [0, 2], 0].tolist() == [1, 0.5]
    assert x[0, 1, 0] > 1e14
    (x,) = call(run, "tridiagonal_solve_perturbed_ffi", [zero, zero, zero, right], kinds[-1:])
    assert np.isfinite(x).all()


@every_type
@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (5, 5), (3, 0)])
def test_qr_with_column_exchanges(run: Any, letter: str, shape: tuple[int, int]) -> None:
    a, count = matrices(letter, 2, *shape), min(shape)
    first = np.zeros((2, shape[1]), np.int32)
    first[1, 2:4] = 1
    made = [(a.shape, a.dtype), (first.shape, np.int32), ((2, count), a.dtype)]
    found, order, factors = call(run, f"lapack_{letter}geqp3_ffi", [a, first], made)
    triangle = np.triu(found)[:, :count]
    basis = unreflected(letter, run, found[:, :, :count], factors)
    assert close(basis @ triangle, np.take_along_axis(a, order[:, None] - 1, 2))
    falling = np.abs(np.diagonal(triangle, 0, 1, 2))
    assert (falling[0, :-1] >= falling[0, 1:] * (1 - 1e-5)).all()
    if shape[1]:
        assert order[1, :2].tolist() == [3, 4]
        expected = scipy.linalg.qr(a[0], pivoting=True, mode="r")[1]
        assert order[0].tolist() == (expected + 1).tolist()


@every_type
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("adjointed", [True, False])
def test_products_with_reflectors(run: Any, letter: str, left: bool, adjointed: bool) -> None:
    a, values = matrices(letter, 2, 6, 6), matrices(letter, 2, 6, 3, seed=1)
    values = values if left else values.swapaxes(1, 2).copy()
    name = "geqrf"
    found, factors = call(run, f"lapack_{letter}{name}_ffi", [a], [(a.shape, a.dtype), ((2, 6), a.dtype)])
    basis = unreflected(letter, run, found, factors)
    basis = adjoint(basis) if adjointed else basis
    name = "ormqr" if letter in "sd" else "unmqr"
    config = f"left = {str(left).lower()}, transpose = {str(adjointed).lower()}"
    (x,) = call(run, f"lapack_{letter}{name}_ffi", [found, factors, values], [(values.shape, a.dtype)], config)
    assert close(x, basis @ values if left else values @ basis)


@every_type
def test_hessenberg_keeps_its_vectors(run: Any, letter: str) -> None:
    """The basis comes from the vectors below the form, which later steps must leave alone."""
    a = matrices(letter, 2, 6, 6)
    made = [(a.shape, a.dtype), ((2, 5), a.dtype), ((2,), np.int32)]
    found, factors, _ = call(run, f"lapack_{letter}gehrd_ffi", [a], made, "low = 1 : i32, high = 6 : i32")
    basis = np.zeros_like(a)
    basis[:, 0, 0] = 1
    basis[:, 1:, 1:] = unreflected(letter, run, found[:, 1:, :-1].copy(), factors)
    assert close(basis @ np.triu(found, -1) @ adjoint(basis), a)


@every_type
@pytest.mark.parametrize("triangle", ["L", "U"])
def test_the_tridiagonal_form_of_either_triangle(run: Any, letter: str, triangle: str) -> None:
    a = matrices(letter, 2, 6, 6)
    name, real = ("sytrd" if letter in "sd" else "hetrd"), np.zeros((), DTYPES[letter]).real.dtype
    made = [(a.shape, a.dtype), ((2, 6), real), ((2, 5), real), ((2, 5), a.dtype), ((2,), np.int32)]
    config = f"uplo = {ord(triangle)} : ui8"
    found, main, beside, factors, _ = call(run, f"lapack_{letter}{name}_ffi", [a], made, config)
    strict = np.tril(a, -1) if triangle == "L" else np.triu(a, 1)
    whole = strict + adjoint(strict)
    whole[:, np.arange(6), np.arange(6)] = np.real(np.diagonal(a, 0, 1, 2))
    routine = scipy.linalg.lapack.get_lapack_funcs(name, dtype=a.dtype)
    for index in range(2):
        c, d, e, tau, _ = routine(a[index], lower=triangle == "L")
        assert close(main[index], d)
        assert close(beside[index], e)
        assert close(factors[index], tau)
        assert close(found[index], c)
    form = tridiagonal(np.pad(beside, ((0, 0), (1, 0))), main, np.pad(beside, ((0, 0), (0, 1))))
    assert np.allclose(np.linalg.eigvalsh(form), np.linalg.eigvalsh(whole), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("letter", ["c", "z"])
def test_lu_chooses_pivots_as_lapack_does(run: Any, letter: str) -> None:
    """By the sum of both parts: of 3 and 2 + 2i it is the second."""
    a = np.array([[3, 1], [2 + 2j, 1]], DTYPES[letter])
    made = [(a.shape, a.dtype), ((2,), np.int32), ((), np.int32)]
    assert call(run, f"lapack_{letter}getrf_ffi", [a], made)[1].tolist() == [2, 2]


@every_type
def test_singular_values_by_the_other_routine(run: Any, letter: str) -> None:
    a, real = matrices(letter, 2, 4, 3), np.zeros((), DTYPES[letter]).real.dtype
    shapes = [(a.shape, a.dtype), ((2, 3), real), ((2, 4, 3), a.dtype), ((2, 3, 3), a.dtype), ((2,), np.int32)]
    _, values, left, right, _ = call(run, f"lapack_{letter}gesvd_ffi", [a], shapes, "mode = 83 : ui8")
    assert close(left * values[:, None] @ right, a)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.complex64])
@pytest.mark.parametrize("columns", [(), (2,)])
def test_sparse_matrices(run: Any, dtype: Any, columns: tuple[int, ...]) -> None:
    data, begins, at = np.array([1, 2, 3, 4], dtype), np.array([0, 2, 2, 4], np.int32), np.array([0, 3, 1, 1], np.int32)
    dense = np.arange(4 * (columns or (1,))[0]).reshape(4, *columns).astype(dtype)
    (found,) = call(run, "cpu_csr_sparse_dense_ffi", [data, begins, at, dense], [((3, *columns), dtype)])
    whole = np.array([[1, 0, 0, 2], [0, 0, 0, 0], [0, 7, 0, 0]], dtype)
    assert np.array_equal(found, whole @ dense)
    with pytest.raises(pjrt.InvalidArgumentError, match="columns below 4"):
        call(run, "cpu_csr_sparse_dense_ffi", [data, begins, at + 1, dense], [((3, *columns), dtype)])


def test_every_routine_of_jaxlib_is_here() -> None:
    from jaxlib.cpu import _lapack

    import pjrt.devices.reference.ops  # noqa: F401
    from pjrt.devices.reference.core.registry import targets

    assert {name for name in _lapack.registrations() if name.endswith("_ffi")} <= set(targets())


@pytest.mark.parametrize(
    "target", ["lapack_sgetrf_ffi", "lapack_dgtsv_ffi", "lapack_cgees_ffi", "Qr", "AllocateBuffer"]
)
def test_types_that_do_not_fit_are_refused(run: Any, target: str) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=r"expected \d+( or \d+)? (operands|results), found [13]"):
        call(run, target, [np.zeros((), np.float32)], [((), np.float32)] * 1)
    with pytest.raises(
        pjrt.InvalidArgumentError, match=r"expected 2 dimensions or more of operand 0, found tensor<f32>"
    ):
        call(run, "lapack_spotrf_ffi", [np.zeros((), np.float32)], [((), np.float32), ((), np.int32)])


@pytest.mark.parametrize("name", ["diag", "side", "trans_x", "uplo"])
def test_letters_that_lapack_does_not_know_are_refused(run: Any, name: str) -> None:
    letters = {"diag": 78, "side": 76, "trans_x": 78, "uplo": 76} | {name: 127}
    config = ", ".join(f"{key} = {value} : ui8" for key, value in letters.items())
    text = f"""func.func @main(%a: tensor<4x4xf32>, %b: tensor<4x2xf32>) -> tensor<4x2xf32> {{
      %0 = stablehlo.custom_call @lapack_strsm_ffi(%a, %b) {{mhlo.backend_config = {{{config}}}}}
        : (tensor<4x4xf32>, tensor<4x2xf32>) -> tensor<4x2xf32>
      return %0 : tensor<4x2xf32> }}"""
    with pytest.raises(pjrt.InvalidArgumentError, match=f"expected '{name}' to be one of the letters .*, found 127"):
        run(text, np.eye(4, dtype=np.float32), np.ones((4, 2), np.float32))
