"""Custom calls of numerical linear algebra, by ``numpy.linalg`` and by scipy's LAPACK.

On a platform that it does not know JAX calls ``Qr`` and ``ProductOfElementaryHouseholderReflectors``; programs that it
makes for a CPU call LAPACK's routines, by LAPACK's conventions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np

from pjrt.api.errors import InvalidArgumentError
from pjrt.devices.reference.core.block import Environment, Kernel, one_or_all
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.core.registry import config, custom_call
from pjrt.devices.reference.numerics.element_types import COMPLEX, FLOAT, compute_dtype
from pjrt.devices.reference.numerics.linear_algebra import (
    COMPLEX_NAMES,
    adjoint,
    lapack,
    lapack_letter,
    matmul_of,
    order_after,
    solve_triangular,
    solve_tridiagonal,
)
from pjrt.devices.reference.numerics.linear_algebra import cholesky as cholesky_factor
from pjrt.devices.reference.numerics.linear_algebra import eigh as eigen
from pjrt.stablehlo.ir.types import TensorType

Array = Any


def routine(
    *names: str, takes: Sequence[int] = (2,), gives: Collection[int] = (1,)
) -> Callable[[Callable[[OpView], Kernel]], Callable[[OpView], Kernel]]:
    """Register the custom calls of LAPACK routines, named as for real matrices and without the letter of the type."""
    real = (f"lapack_{letter}{name}_ffi" for name in names for letter in "sd")
    complex_ = (f"lapack_{letter}{COMPLEX_NAMES.get(name, name)}_ffi" for name in names for letter in "cz")
    register = custom_call(*real, *complex_, takes=takes, gives=gives)

    def add(compile_call: Callable[[OpView], Kernel]) -> Callable[[OpView], Kernel]:
        def checked(view: OpView) -> Kernel:
            lapack_letter(view.operand().dtype)
            return compile_call(view)

        register(checked)
        return compile_call

    return add


def _letter(view: OpView, name: str, default: str) -> str:
    """Return a parameter that is one letter in LAPACK: programs have the letter, or its number."""
    value = config(view).get(name, default)
    letters = _LETTERS.get(name)
    if letters is not None and value not in (*letters, *map(ord, letters)):
        raise InvalidArgumentError(f"expected {name!r} to be one of the letters {letters}, found {value!r}")
    return value if isinstance(value, str) else chr(int(value))


_LETTERS = {"diag": "NU", "side": "LR", "trans_x": "NTC", "uplo": "LU"}
"""The letters of parameters of which LAPACK refuses others."""


def _status(shape: Any) -> Array:
    """Return the status of success, for each matrix."""
    return np.zeros(shape[:-2], np.int32)


def _for_each_matrix(
    view: OpView, call: Callable[..., Iterable[Array]], empty: Callable[..., Iterable[Array]] | None = None
) -> Kernel:
    """Return the kernel that calls a function for each matrix of a stack.

    Args:
        view: the op, whose results are what the function returns.
        call: takes one matrix of each operand.
        empty: takes the operands where the first one has no elements, which LAPACK refuses; zeros by default.
    """
    tensors = [t for t in view.results if isinstance(t, TensorType)]

    def run(environment: Environment, *operands: Array) -> Any:
        stack = operands[0].shape[:-2]
        if operands[0].size:
            rows = [call(*(x[index] for x in operands)) for index in np.ndindex(stack)]
            results = [
                np.array(column, t.dtype).reshape((*stack, *np.shape(column[0])))
                for t, column in zip(tensors, zip(*rows, strict=True), strict=True)
            ]
        else:
            results = list(empty(*operands)) if empty else [np.zeros(t.sizes, t.dtype) for t in tensors]
        return one_or_all(results)

    return run


@routine("potrf", gives=(2,))
def potrf(view: OpView) -> Kernel:
    """Return the Cholesky factor, and 0, or 1 where the matrix is not positive definite."""
    lower = _letter(view, "uplo", "L") == "L"

    def run(environment: Environment, a: Array) -> Any:
        triangle = cholesky_factor(a if lower else adjoint(a))
        failed = np.isnan(triangle).any((-1, -2))
        return triangle if lower else adjoint(triangle), failed.astype(np.int32)

    return run


@routine("getrf", gives=(3,))
def getrf(view: OpView) -> Kernel:
    """Return both LU factors in one matrix, the row exchanges (from 1 up), and the first zero pivot."""
    lu = lapack("getrf", view.operand().dtype)

    def call(a: Array) -> Any:
        factors, exchanges, status = lu(a)
        return factors, exchanges + 1, status

    return _for_each_matrix(view, call)


@routine("geqrf", gives=(2,))
@custom_call("Qr", takes=(2,), gives=(2,))
def geqrf(view: OpView) -> Kernel:
    """Return R with Householder's vectors below it, and their factors."""
    qr = lapack("geqrf", view.operand().dtype)
    return _for_each_matrix(view, lambda a: qr(a)[:2])


@routine("orgqr", takes=(2, 1))
@custom_call("ProductOfElementaryHouseholderReflectors", takes=(2, 1), gives=(1,))
def orgqr(view: OpView) -> Kernel:
    """Return the orthogonal matrix that Householder's vectors stand for."""
    rows, columns = view.operand().shape[-2:]
    if rows is not None and columns is not None and rows < columns:
        raise view.invalid(f"expected as many rows as columns or more, found {rows} and {columns}")
    product = lapack("orgqr", view.operand().dtype)
    return _for_each_matrix(view, lambda a, factors: product(a, factors)[:1])


@routine("geqp3", takes=(2, 1), gives=(3,))
def geqp3(view: OpView) -> Kernel:
    """Return R with Householder's vectors below it, the order of the columns (from 1 up), and the vectors' factors.

    The columns whose numbers are not zero go first; then the longest remaining one is next.
    """
    dtype = view.operand().dtype
    qr, pivoted_qr, multiply = (lapack(name, dtype) for name in ("geqrf", "geqp3", "ormqr"))
    form = "C" if dtype.kind == "c" else "T"

    def call(a: Array, first: Array) -> Any:
        fixed, free = np.flatnonzero(first), np.flatnonzero(first == 0)
        if not len(fixed):
            return pivoted_qr(a)[:3]
        # scipy's geqp3 does not take columns that go first: they are factored here, and it factors the rest.
        a = a[:, [*fixed, *free]]
        steps = min(len(fixed), len(a))
        head, factors = qr(a[:, : len(fixed)])[:2]
        rest = multiply("L", form, head[:, :steps], factors, a[:, len(fixed) :], _workspace(a))[0]
        order = [*fixed, *free]
        if steps < len(a) and len(free):
            rest[steps:], exchanges, more = pivoted_qr(rest[steps:])[:3]
            rest[:steps] = rest[:steps, exchanges - 1]
            order, factors = [*fixed, *free[exchanges - 1]], np.concatenate([factors, more])
        return np.concatenate([head, rest], 1), np.add(order, 1), factors

    return _for_each_matrix(view, call)


def _workspace(a: Array) -> int:
    """Return a size of ``ormqr``'s workspace that is enough for LAPACK's blocks."""
    return int(128 * max(a.shape))


@routine("ormqr", takes=(2, 1, 2))
def ormqr(view: OpView) -> Kernel:
    """Multiply by the orthogonal matrix that Householder's vectors stand for, or by its adjoint."""
    parameters, dtype = config(view), view.operand().dtype
    multiply = lapack("ormqr", dtype)
    side = "L" if parameters.get("left", True) else "R"
    form = ("C" if dtype.kind == "c" else "T") if parameters.get("transpose", False) else "N"

    def call(a: Array, factors: Array, c: Array) -> Any:
        return multiply(side, form, a, factors, c, _workspace(c))[:1]

    return _for_each_matrix(view, call, empty=lambda a, factors, c: [c])


@routine("gesdd", "gesvd", gives=(5,))
def gesdd(view: OpView) -> Kernel:
    """Return the matrix, its singular values, both bases as far as the mode asks for them, and the status."""
    mode = _letter(view, "mode", "A")

    def run(environment: Environment, a: Array) -> Any:
        if mode == "N":
            empty = [np.zeros(t.sizes, t.dtype) for t in (view.result(2), view.result(3))]
            return [a, np.linalg.svd(a, compute_uv=False), *empty, _status(a.shape)]
        left, values, right = np.linalg.svd(a, full_matrices=mode == "A")
        return a, values, left, right, _status(a.shape)

    return run


@routine("syevd", gives=(3,))
def syevd(view: OpView) -> Kernel:
    """Return eigenvectors and values of self-adjoint matrices, from one of their triangles, and the status."""
    triangle: Any = _letter(view, "uplo", "L")

    def run(environment: Environment, a: Array) -> Any:
        values, vectors = np.linalg.eigh(a, UPLO=triangle)
        return vectors, values, _status(a.shape)

    return run


@custom_call("Eigh")
def eigh(view: OpView) -> Kernel:
    """Return eigenvectors and values of self-adjoint matrices, the values ascending; NaN where LAPACK finds none.

    XLA's builders call it, as PyTorch/XLA's do. Of the parameters ``lower,sort,iterations,tolerance`` only the first
    one counts here; without them it is the lower triangle.
    """
    triangle: Any = "U" if str(view.attr("backend_config", "")).startswith("0") else "L"
    element = view.operand().element
    if element not in FLOAT | COMPLEX:
        raise view.unimplemented(f"there are no eigenvalues of matrices of {element.mlir}")
    wide, dtype = compute_dtype(element), element.dtype
    real = np.empty(0, dtype).real.dtype

    def run(environment: Any, a: Array) -> Any:
        values, vectors = eigen(a.astype(wide, copy=False), triangle)
        return vectors.astype(dtype, copy=False), values.astype(real, copy=False)

    return run


@custom_call("LuDecomposition")
def lu_decomposition(view: OpView) -> Kernel:
    """Return both LU factors in one matrix, the row exchanges (from 0 up), and the order of the rows after all of them.

    XLA's builders call it.
    """
    element = view.operand().element
    if element not in FLOAT | COMPLEX:
        raise view.unimplemented(f"there is no factorization of matrices of {element.mlir}")
    wide = compute_dtype(element)
    lu = lapack("getrf", wide)

    def call(a: Array) -> Any:
        factors, exchanges, _ = lu(a.astype(wide, copy=False))
        return factors, exchanges, order_after(exchanges, len(a))

    def empty(a: Array) -> Any:
        exchanges = np.zeros((*a.shape[:-2], 0), np.int32)
        return a, exchanges, order_after(exchanges, a.shape[-2]).astype(np.int32)

    return _for_each_matrix(view, call, empty)


@custom_call("Cholesky")
def cholesky(view: OpView) -> Kernel:
    """Compute as ``stablehlo.cholesky`` does; without ``lower`` the result is the lower triangular factorizations."""
    parameters = {"lower": bool(config(view).get("lower", True))}
    kernel = view.derive(name="stablehlo.cholesky", operands=view.operands[:1], attributes=parameters).compile()
    return lambda environment, a: kernel(a)


@routine("geev", gives=(4, 5))
def geev(view: OpView) -> Kernel:
    """Return eigenvalues (of real matrices in two parts), left and right eigenvectors, and the status."""
    whole = [view.result(i) for i in range(len(view.results) - 3, len(view.results) - 1)]

    def run(environment: Environment, a: Array) -> Any:
        values, right = np.linalg.eig(a)
        left = np.zeros(whole[0].sizes, whole[0].dtype)
        if _letter(view, "compute_left", "N") == "V":
            left = adjoint(np.linalg.inv(right))
            left = left / np.linalg.norm(left, axis=-2, keepdims=True)
        vectors = [v.astype(t.dtype) for v, t in zip((left, right), whole, strict=True)]
        if a.dtype.kind == "c":
            return [values.astype(a.dtype), *vectors, _status(a.shape)]
        return [np.real(values).astype(a.dtype), np.imag(values).astype(a.dtype), *vectors, _status(a.shape)]

    return run


@routine("gees", gives=(5, 6))
def gees(view: OpView) -> Kernel:
    """Return Schur form, basis, eigenvalues (of real matrices in two parts), how many are sorted, and the status."""
    with_basis = _letter(view, "mode", "N") == "V"
    if _letter(view, "sort", "N") != "N":
        raise view.unimplemented("expected sort = N, found eigenvalues that are sorted")
    schur = lapack("gees", view.operand().dtype)

    def call(a: Array) -> Any:
        form, chosen, *values, basis, _, status = schur(lambda *value: None, a, compute_v=with_basis)
        return form, basis if with_basis else np.zeros_like(form), *values, chosen, status

    return _for_each_matrix(view, call)


@routine("gtsv", takes=(1, 1, 1, 2), gives=(5,))
def gtsv(view: OpView) -> Kernel:
    """Solve systems with tridiagonal matrices: the diagonals of the upper triangle, the solution, and the status."""

    def run(environment: Environment, lower: Array, main: Array, upper: Array, right: Array) -> Any:
        solution, (pivots, first, second), singular = solve_tridiagonal(lower, main, upper, right)
        return second, pivots, first, solution, singular.astype(np.int32)

    return run


@custom_call("tridiagonal_solve_perturbed_ffi", takes=(1, 1, 1, 2), gives=(1,))
def tridiagonal_solve_perturbed(view: OpView) -> Kernel:
    """Solve systems with tridiagonal matrices that may be singular: the solutions are finite."""
    return lambda environment, lower, main, upper, right: solve_tridiagonal(lower, main, upper, right, True)[0]


@custom_call("cpu_csr_sparse_dense_ffi", takes=(1, 1, 1, 1), gives=(1,))
def sparse_product(view: OpView) -> Kernel:
    """Multiply a sparse matrix (elements, starts of rows, columns) by a dense one or a vector."""
    rows = view.result().sizes[0]
    product = matmul_of(view.operand(0).element, view.operand(3).element, view.result().element)

    def run(environment: Environment, data: Array, begins: Array, columns: Array, dense: Array) -> Array:
        counts, used = np.diff(begins), slice(begins[0], begins[-1])
        if (counts < 0).any() or ((columns[used] < 0) | (columns[used] >= dense.shape[0])).any():
            raise InvalidArgumentError(
                f"expected rows that begin in rising order, and columns below {dense.shape[0]}, found rows that begin "
                f"at {begins.tolist()} and columns {columns[used].tolist()}"
            )
        whole = np.zeros((rows, dense.shape[0]), data.dtype)
        np.add.at(whole, (np.repeat(np.arange(rows), counts), columns[used]), data[used])
        return product(whole, dense if dense.ndim == 2 else dense[:, None]).reshape(rows, *dense.shape[1:])

    return run


@routine("gehrd", gives=(3,))
def gehrd(view: OpView) -> Kernel:
    """Return the Hessenberg form with Householder's vectors below it, their factors, and the status."""
    reduce = lapack("gehrd", view.operand().dtype)
    return _for_each_matrix(view, reduce)


@routine("sytrd", gives=(5,))
def sytrd(view: OpView) -> Kernel:
    """Return the tridiagonal form of self-adjoint matrices: vectors, both diagonals, factors, and the status."""
    lower = _letter(view, "uplo", "L") == "L"
    reduce = lapack("sytrd", view.operand().dtype)
    return _for_each_matrix(view, lambda a: reduce(a, lower=lower))


@routine("trsm", takes=(2, 2))
def trsm(view: OpView) -> Kernel:
    """Solve systems with triangular matrices."""
    left, lower = _letter(view, "side", "L") == "L", _letter(view, "uplo", "L") == "L"
    turn, unit = _letter(view, "trans_x", "N"), _letter(view, "diag", "N") == "U"

    def run(environment: Environment, a: Array, b: Array) -> Array:
        matrix, is_lower = {"N": a, "T": a.swapaxes(-1, -2), "C": adjoint(a)}[turn], lower == (turn == "N")
        if left:
            return solve_triangular(matrix, b, is_lower, unit)
        return solve_triangular(matrix.swapaxes(-1, -2), b.swapaxes(-1, -2), not is_lower, unit).swapaxes(-1, -2)

    return run
