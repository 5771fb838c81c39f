"""Functions of complex numbers where they are hard: near overflow, near cancellation, at infinities and zeros.

The finite results were computed by mpmath with 2,500 bits; those at infinities are those of C99's Annex G.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pjrt.devices.reference import Evaluator
from pjrt.devices.reference.core import mlir
from pjrt.devices.reference.numerics import complex64, complex_numbers

HUGE, TINY, INF, NAN = 1.7976931348623157e308, 5e-324, math.inf, math.nan
ULP = float(np.finfo(np.float64).eps)


def apply(op: str, *args: complex, dtype: Any = np.complex128) -> complex:
    element = "complex<f64>" if dtype is np.complex128 else "complex<f32>"
    types = [f"tensor<{element}>"] * len(args)
    params = ", ".join(f"%a{i}: {t}" for i, t in enumerate(types))
    body = (
        f'%0 = "stablehlo.{op}"({", ".join(f"%a{i}" for i in range(len(args)))}) : ({", ".join(types)}) -> {types[0]}'
    )
    program = f"func.func @main({params}) -> {types[0]} {{ {body} return %0 : {types[0]} }}"
    return complex(Evaluator(mlir.parse(program)).run([np.array(a, dtype) for a in args])[0])


FINITE = [
    ("exponential_minus_one", [0.5658178468280931 - 0.9678198646920557j], -0.0014068723245045853 - 1.4503571817475154j),
    ("exponential_minus_one", [1e-20 + 1e-10j], 4.999999999999999e-21 + 1e-10j),
    ("exponential_minus_one", [710 + 1.5707963267948966j], complex(1.3679272698459396e292, INF)),
    ("exponential_minus_one", [-40 + 3j], -1 + 5.995277867479203e-19j),
    ("exponential_minus_one", [complex(HUGE, 0)], complex(INF, 0)),
    ("log_plus_one", [complex(HUGE, HUGE)], 710.1292864836639 + 0.7853981633974483j),
    ("log_plus_one", [complex(-HUGE, HUGE / 2)], 709.8942846690411 + 2.677945044588987j),
    ("log_plus_one", [1e-20 + 1e-10j], 1.4999999999999998e-20 + 1e-10j),
    ("log_plus_one", [-0.02 + 0.198997487421324j], 2.2177984675627474e-18 + 0.2003348423231196j),
    ("log_plus_one", [-1 + 1e-8j], -18.420680743952367 + 1.5707963267948966j),
    ("log_plus_one", [1e-320], 1e-320),
    ("log_plus_one", [-2.5 + 1j], 0.5893274981708231 + 2.5535900500422257j),
    ("log_plus_one", [0.3 - 2e5j], 12.206072645551298 - 1.5707898267948968j),
    ("logistic", [800 + 1j], 1),
    ("logistic", [-800 + 1j], 0),
    ("logistic", [1e-16 + 3.141592653589793j], 4000384384675373.5 + 4899057932051750j),
    ("rsqrt", [complex(HUGE, HUGE)], 5.79428785879352e-155 - 2.4000726154060372e-155j),
    ("rsqrt", [complex(TINY, TINY)], 3.4951475826829686e161 - 1.447737531242824e161j),
    ("rsqrt", [-4 + 1e-300j], 6.25e-302 - 0.5j),
    ("cbrt", [complex(HUGE, HUGE)], 6.119096431615017e102 + 1.6396069472594085e102j),
    ("cbrt", [TINY], 1.7031839360032603e-108),
    ("cbrt", [-8], 1 + 1.7320508075688772j),
    ("cbrt", [-8 - 1e-300j], 1 - 1.7320508075688772j),
    ("cbrt", [1e-310 + 1e-310j], 5.03248061548482e-104 + 1.3484491168444368e-104j),
    ("sign", [complex(HUGE, HUGE)], 0.7071067811865476 + 0.7071067811865476j),
    ("sign", [TINY], 1),
    ("sign", [complex(TINY, -TINY)], 0.7071067811865476 - 0.7071067811865476j),
    ("divide", [complex(0, HUGE), complex(HUGE, HUGE)], 0.5 + 0.5j),
    ("divide", [complex(0, TINY), complex(TINY, TINY)], 0.5 + 0.5j),
    ("divide", [1e-310 + 1e-310j, 1e-300], 9.999999999999969e-11 + 9.999999999999969e-11j),
    ("divide", [complex(HUGE, HUGE), complex(HUGE, -HUGE)], 1j),
    ("multiply", [complex(HUGE, HUGE), -2 - 2j], complex(0, -INF)),
    ("multiply", [HUGE, 0.5 + 0.5j], complex(HUGE / 2, HUGE / 2)),
    ("power", [complex(0, HUGE), -2], 0),
    ("power", [HUGE, -50], 0),
    ("power", [2 + 1j, 3], 2 + 11j),
    ("power", [2 + 1j, 0.5 - 3j], -3.450076999932145 - 4.9201854069929745j),
    ("power", [1e-200 + 1e-200j, 1.5], 6.435942529055826e-301 + 1.5537739740300372e-300j),
    ("power", [0, 2 + 1j], 0),
]


@pytest.mark.parametrize(("op", "args", "expected"), FINITE, ids=lambda value: str(value))
def test_no_digit_is_lost_on_the_way(op: str, args: list[complex], expected: complex) -> None:
    found, exact = apply(op, *args), complex(expected)
    for part, right in ((found.real, exact.real), (found.imag, exact.imag)):
        assert part == right or abs(part - right) <= 4 * ULP * max(abs(right), 4 * ULP * abs(exact))


@pytest.mark.parametrize(
    ("op", "args", "expected"),
    [
        ("exponential", [complex(INF, 0)], complex(INF, 0)),
        ("exponential", [complex(-INF, NAN)], 0),
        ("exponential_minus_one", [complex(INF, 0)], complex(INF, 0)),
        ("exponential_minus_one", [complex(-INF, INF)], -1),
        ("exponential_minus_one", [complex(INF, NAN)], complex(INF, NAN)),
        ("log_plus_one", [complex(-INF, 1)], complex(INF, math.pi)),
        ("log_plus_one", [complex(INF, NAN)], complex(INF, NAN)),
        ("log_plus_one", [-1], complex(-INF, 0)),
        ("logistic", [complex(INF, 1)], 1),
        ("logistic", [complex(-INF, 1)], 0),
        ("rsqrt", [complex(INF, 1)], 0),
        ("cbrt", [complex(INF, 1)], complex(INF, 0)),
        ("multiply", [complex(INF, NAN), complex(0, 1)], complex(NAN, INF)),
        ("multiply", [complex(INF, INF), complex(1, 0)], complex(INF, INF)),
        ("multiply", [complex(INF, INF), complex(INF, NAN)], complex(INF, INF)),
        ("multiply", [complex(NAN, NAN), complex(INF, 0)], complex(NAN, NAN)),
        ("divide", [1 + 2j, 0], complex(INF, INF)),
        ("divide", [complex(INF, NAN), 1 + 1j], complex(INF, -INF)),
        ("divide", [1 + 1j, complex(INF, NAN)], 0),
        ("divide", [complex(INF, 0), complex(INF, 0)], complex(NAN, NAN)),
        ("divide", [0, 0], complex(NAN, NAN)),
        ("sign", [complex(1, NAN)], complex(NAN, NAN)),
    ],
    ids=lambda value: str(value),
)
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_infinities_zeros_and_nan(dtype: Any, op: str, args: list[complex], expected: complex) -> None:
    found, right = apply(op, *args, dtype=dtype), complex(expected)
    assert np.allclose([found.real, found.imag], [right.real, right.imag], rtol=1e-6, atol=0, equal_nan=True)


def test_large_and_small_values_in_one_array() -> None:
    """Only what a plain product cannot do is done with care."""
    program = """func.func @main(%x: tensor<3xcomplex<f32>>) -> tensor<3xcomplex<f32>> {
      %0 = stablehlo.multiply %x, %x : tensor<3xcomplex<f32>> return %0 : tensor<3xcomplex<f32>> }"""
    x = np.array([1 + 1j, 3e38 + 3e38j, complex(INF, NAN)], np.complex64)
    (found,) = Evaluator(mlir.parse(program)).run([x])
    assert found[0] == 2j
    assert found[1] == complex(0, INF)
    assert np.isinf(found[2].real) or np.isinf(found[2].imag)


CAREFUL: dict[str, Callable[..., Any]] = {
    "atan2": complex_numbers.atan2,
    "cosine": np.cos,
    "divide": complex_numbers.divide,
    "exponential": np.exp,
    "expm1": complex_numbers.expm1,
    "log": np.log,
    "log1p": complex_numbers.log1p,
    "logistic": complex_numbers.logistic,
    "power": complex_numbers.power,
    "rsqrt": complex_numbers.rsqrt,
    "sign": complex_numbers.sign,
    "sine": np.sin,
    "sqrt": np.sqrt,
    "tan": complex_numbers.tan,
    "tanh": np.tanh,
}
PARTS = [0.0, -0.0, 1.0, -1.0, 0.5, -math.pi / 2, math.pi, 100.0, -100.0, 1e30, -3.4e38, 1e-45, INF, -INF, NAN]


def assert_close(name: str, *operands: Any) -> None:
    """Assert that the formula in f64 has the values of the careful function, and its infinities and NaN.

    The careful ones have errors of up to 6 ULP. A part may be the noise of the other: below 1e-12 of the whole.
    """
    with np.errstate(all="ignore"):
        found, right = getattr(complex64, name)(*operands), CAREFUL[name](*operands)
        for part, exact in ((found.real, right.real), (found.imag, right.imag)):
            error = np.abs(np.subtract(part, exact, dtype=np.float64))
            whole = np.abs(right.astype(np.complex128)) + (name == "atan2")  # by a logarithm near 1
            bound = 6 * 2.0**-23 * np.abs(exact) + 1e-12 * whole + 3e-45
            same = (part == exact) | (np.isnan(part) & np.isnan(exact)) | (error <= bound)
            assert same.all(), [(name, [x[~same][0] for x in operands], found[~same][0], right[~same][0])]


@pytest.mark.parametrize("name", CAREFUL)
def test_formulas_of_complex64_at_special_values(name: str) -> None:
    x = np.array([complex(real, imaginary) for real in PARTS for imaginary in PARTS], np.complex64)
    operands = [x.repeat(x.size), np.tile(x, x.size)] if name in ("atan2", "divide", "power") else [np.tile(x, 64)]
    if name == "atan2":  # on the branch cut, at half a turn, a rounding error decides on the sign
        with np.errstate(all="ignore"):
            apart = np.abs(np.abs(complex_numbers.atan2(*operands).real) - math.pi) > 1e-3
        operands = [part[apart] for part in operands]
    assert_close(name, *operands)


numbers = st.complex_numbers(max_magnitude=1e4, width=64)


@pytest.mark.full
@given(st.lists(st.tuples(numbers, numbers), min_size=1))
@pytest.mark.parametrize("name", sorted(set(CAREFUL) - {"atan2", "power"}))  # which cancel: both have errors
def test_formulas_of_complex64(name: str, pairs: list[tuple[complex, complex]]) -> None:
    operands = np.array(pairs, np.complex64).T
    assert_close(name, *operands[: 2 if name == "divide" else 1])


def test_every_element_has_one_value_in_arrays_of_any_size() -> None:
    """The bits do not depend on the block that an element is in."""
    x = np.random.default_rng(0).standard_normal((20_000, 2)).astype(np.float32).view(np.complex64).reshape(100, 200)
    for name in set(CAREFUL) - {"atan2", "divide", "power"}:
        function = getattr(complex64, name)
        assert (function(x)[::7, ::-3] == function(x[::7, ::-3])).all(), name
        assert function(x[1, 2]) == function(x)[1, 2]
