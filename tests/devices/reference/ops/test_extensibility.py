"""Custom calls and composites: each against the definition of what it stands for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt.devices.reference import Evaluator
from pjrt.devices.reference.core import mlir
from pjrt.devices.reference.core.registry import custom_call


def test_a_composite_runs_its_decomposition(run: Any) -> None:
    text = """func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
      %0 = stablehlo.composite "acme.twice" %x {decomposition = @twice, version = 1 : i32}
        : (tensor<3xf32>) -> tensor<3xf32>
      return %0 : tensor<3xf32> }
    func.func private @twice(%x: tensor<3xf32>) -> tensor<3xf32> {
      %0 = stablehlo.add %x, %x : tensor<3xf32>
      return %0 : tensor<3xf32> }"""
    assert run(text, np.array([1, 2, 3], np.float32))[0].tolist() == [2, 4, 6]


def call(target: str, given: list[str], made: list[str], attributes: str = "") -> str:
    params = ", ".join(f"%a{i}: {t}" for i, t in enumerate(given))
    names = ", ".join(f"%a{i}" for i in range(len(given)))
    count = len(made)
    bound = f"%0:{count}" if count > 1 else "%0"
    out = ", ".join(f"%0#{i}" for i in range(count)) if count > 1 else "%0"
    signature = f"({', '.join(given)}) -> {made[0] if count == 1 else '(' + ', '.join(made) + ')'}"
    return (
        f"func.func @main({params}) -> ({', '.join(made)}) {{"
        f" {bound} = stablehlo.custom_call @{target}({names}) {{{attributes}}} : {signature}"
        f" return {out} : {', '.join(made)} }}"
    )


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("acme", "no custom call 'acme' on the reference device: give the client a function"),
        (
            "lapack_cgeev_ff",
            "no custom call 'lapack_cgeev_ff' .*; perhaps 'lapack_cgeev_ffi' is meant: give the client a function",
        ),
    ],
)
def test_an_unknown_target_is_refused_with_those_of_a_similar_name(target: str, message: str) -> None:
    with pytest.raises(pjrt.UnimplementedError, match=message):
        Evaluator(mlir.parse(call(target, ["tensor<f32>"], ["tensor<f32>"])))


def test_a_target_is_registered_once() -> None:
    with pytest.raises(ValueError, match="Qr is registered twice"):
        custom_call("Qr")(lambda view: lambda environment, x: x)


@pytest.mark.parametrize("target", ["Sharding", "annotate_device_placement", "MoveToHost"])
def test_annotations_change_nothing(run: Any, target: str) -> None:
    x = np.array([1, 2], np.float32)
    assert run(call(target, ["tensor<2xf32>"], ["tensor<2xf32>"]), x)[0].tolist() == [1, 2]


@pytest.mark.parametrize("name", ["erf", "sinh", "tan", "acosh"])
def test_ops_that_travel_as_calls(run: Any, name: str) -> None:
    x = np.array([1.25, 2.5], np.float32)
    found = run(call(f"mhlo.{name}", ["tensor<2xf32>"], ["tensor<2xf32>"], "mhlo.attributes = {}"), x)[0]
    direct = (
        f"func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {{ %0 = chlo.{name} %a : tensor<2xf32> -> tensor<2xf32> "
    )
    assert np.array_equal(found, run(direct + "return %0 : tensor<2xf32> }", x)[0])


@pytest.mark.parametrize(
    ("target", "attributes"),
    [("mhlo.topk", "mhlo.attributes = {k = 2 : i64, largest = true}"), ("TopK", "")],
)
def test_top_k(run: Any, target: str, attributes: str) -> None:
    text = call(target, ["tensor<4xf32>"], ["tensor<2xf32>", "tensor<2xi32>"], attributes)
    values, where = run(text, np.array([1, 4, 3, 2], np.float32))
    assert (values.tolist(), where.tolist()) == ([4, 3], [1, 2])


def test_the_smallest(run: Any) -> None:
    attributes = "mhlo.attributes = {k = 2 : i64, largest = false}"
    text = call("mhlo.topk", ["tensor<4xf32>"], ["tensor<2xf32>", "tensor<2xi32>"], attributes)
    values, where = run(text, np.array([3, 4, 1, 2], np.float32))
    assert (values.tolist(), where.tolist()) == ([1, 2], [2, 3])


def test_approximate_top_k_is_exact(run: Any) -> None:
    types = ["tensor<3x2xf32>", "tensor<3x2xi32>", "tensor<f32>", "tensor<i32>"]
    attributes = """called_computations = [@greater], mhlo.backend_config = {reduction_dim = 0 : i64, top_k = 2 : i64,
      recall_target = 0.9 : f32, aggregate_to_topk = true, reduction_input_size_override = -1 : i64}"""
    text = call("ApproxTopK", types, ["tensor<2x2xf32>", "tensor<2x2xi32>"], attributes)
    text += """
    func.func private @greater(%a: tensor<f32>, %b: tensor<f32>, %i: tensor<i32>, %j: tensor<i32>) -> tensor<i1> {
      %0 = stablehlo.compare GT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
      return %0 : tensor<i1> }"""
    x = np.array([[1, 6], [3, 5], [2, 4]], np.float32)
    index = np.broadcast_to(np.arange(3, dtype=np.int32)[:, None], (3, 2)).copy()
    values, where = run(text, x, index, np.float32(-np.inf), np.int32(-1))
    assert values.tolist() == [[3, 6], [2, 5]]
    assert where.tolist() == [[1, 0], [2, 1]]


def test_shape_assertions(run: Any) -> None:
    text = """func.func @main(%p: tensor<i1>, %n: tensor<i32>) -> tensor<i32> {
      stablehlo.custom_call @shape_assertion(%p, %n)
        {error_message = "n is {0}, and should not be", has_side_effect = true} : (tensor<i1>, tensor<i32>) -> ()
      return %n : tensor<i32> }"""
    assert run(text, np.True_, np.int32(3))[0] == 3
    with pytest.raises(pjrt.InvalidArgumentError, match="n is 3, and should not be"):
        run(text, np.False_, np.int32(3))


def test_results_and_operands_in_tuples(run: Any) -> None:
    """XLA's calls have one result; several are a tuple."""
    x = np.arange(9, dtype=np.float32).reshape(3, 3)
    pair = "tensor<3x3xf32>", "tensor<3xf32>"
    text = call("Qr", [pair[0]], [f"tuple<{', '.join(pair)}>"])
    together, apart = run(text, x)[0], run(call("Qr", [pair[0]], pair), x)
    assert isinstance(together, tuple)
    assert [a.tobytes() for a in together] == [a.tobytes() for a in apart]
    text = call("Sharding", ["tuple<tensor<2xf32>>"], ["tuple<tensor<2xf32>>"])
    assert run(text, (np.ones(2, np.float32),))[0][0].tolist() == [1, 1]
    text = call("TopK", ["tensor<4xf32>"], ["tuple<tensor<2xf32>, tensor<2xi32>>"])
    assert [a.tolist() for a in run(text, np.array([1, 4, 3, 2], np.float32))[0]] == [[4, 3], [1, 2]]


def test_functions_of_the_host_give_tuples() -> None:
    def split(x: Any, first: Any, second: Any) -> None:
        first[...], second[...] = x[:1], x[1:]

    inner = "tuple<tensor<2xf32>>"
    text = f"""func.func @main(%x: tensor<3xf32>) -> tensor<2xf32> {{
      %0 = stablehlo.custom_call @split(%x) {{api_version = 4 : i32, backend_config = {{}}}}
        : (tensor<3xf32>) -> tuple<tensor<1xf32>, {inner}>
      %1 = stablehlo.get_tuple_element %0[1] : (tuple<tensor<1xf32>, {inner}>) -> {inner}
      %2 = stablehlo.get_tuple_element %1[0] : ({inner}) -> tensor<2xf32>
      return %2 : tensor<2xf32> }}"""
    with pjrt.client("reference") as client:
        client.register_ffi_handler("split", split)
        (found,) = client.compile(text)(np.arange(3, dtype=np.float32))
        assert np.asarray(found).tolist() == [1, 2]


def test_memory_with_anything_in_it(run: Any) -> None:
    text = call("AllocateBuffer", [], ["tensor<2x3xf32>"])
    assert run(text)[0].shape == (2, 3)


LETTERS = [("s", np.float32), ("d", np.float64), ("c", np.complex64), ("z", np.complex128)]
NAMES = {np.float32: "f32", np.float64: "f64", np.complex64: "complex<f32>", np.complex128: "complex<f64>"}
REAL = {np.float32: "f32", np.float64: "f64", np.complex64: "f32", np.complex128: "f64"}


def matrix(dtype: Any, *shape: int) -> Any:
    random = np.random.default_rng(0)
    a = random.standard_normal(shape)
    return (a + 1j * random.standard_normal(shape) if np.dtype(dtype).kind == "c" else a).astype(dtype)


def adjoint(a: Any) -> Any:
    return np.conj(np.swapaxes(a, -1, -2))


def near(found: Any, expected: Any) -> None:
    """Within a hundred times the rounding of the type, relative to the size of the whole."""
    eps = np.finfo(found.dtype).eps
    assert np.abs(found - expected).max() <= 100 * eps * max(1.0, float(np.abs(expected).max()))


def square(letter: str, dtype: Any, name: str, made: list[str], attributes: str = "") -> str:
    types = {
        "m": f"tensor<2x4x4x{NAMES[dtype]}>",
        "v": f"tensor<2x4x{NAMES[dtype]}>",
        "r": f"tensor<2x4x{REAL[dtype]}>",
    }
    types |= {
        "i": "tensor<2xi32>",
        "p": "tensor<2x4xi32>",
        "w": f"tensor<2x3x{NAMES[dtype]}>",
        "u": f"tensor<2x3x{REAL[dtype]}>",
    }
    whole = {np.float32: "complex<f32>", np.float64: "complex<f64>"}.get(dtype, NAMES[dtype])
    types["c"] = f"tensor<2x4x4x{whole}>"
    config = f"mhlo.backend_config = {{{attributes}}}"
    return call(f"lapack_{letter}{name}_ffi", [types["m"]], [types[m] for m in made], config)


@pytest.mark.parametrize(("letter", "dtype"), LETTERS)
def test_cholesky(run: Any, letter: str, dtype: Any) -> None:
    a = matrix(dtype, 2, 4, 4)
    a = a @ adjoint(a) + np.eye(4, dtype=dtype)
    factor, status = run(square(letter, dtype, "potrf", ["m", "i"], "uplo = 76 : ui8"), a)
    near(factor @ adjoint(factor), a)
    upper, _ = run(square(letter, dtype, "potrf", ["m", "i"], "uplo = 85 : ui8"), a)
    near(adjoint(upper) @ upper, a)
    assert status.tolist() == [0, 0]
    assert run(square(letter, dtype, "potrf", ["m", "i"], "uplo = 76 : ui8"), -a)[1].all()


@pytest.mark.parametrize(("letter", "dtype"), LETTERS)
def test_lu(run: Any, letter: str, dtype: Any) -> None:
    a = matrix(dtype, 2, 4, 4)
    found, pivots, status = run(square(letter, dtype, "getrf", ["m", "p", "i"]), a)
    rows = np.arange(4) + np.zeros((2, 1), int)
    for k in range(4):
        for stack in range(2):
            other = pivots[stack, k] - 1
            rows[stack, [k, other]] = rows[stack, [other, k]]
    lower, upper = np.tril(found, -1) + np.eye(4, dtype=dtype), np.triu(found)
    near(lower @ upper, np.take_along_axis(a, rows[..., None], 1))
    assert np.abs(np.tril(found, -1)).max() <= 1.5  # partial pivoting: by |re| + |im|, or by magnitude
    assert status.tolist() == [0, 0]


@pytest.mark.parametrize("name", ["potrf", "getrf", "geqrf", "syevd", "gesdd", "geev", "trsm", "gehrd", "sytrd"])
@pytest.mark.parametrize("kind", ["f8E5M2FNUZ", "f16", "i32"])
def test_matrices_of_other_types_are_refused(run: Any, name: str, kind: str) -> None:
    code = square("s", np.float32, name, ["m", "i"]).replace(f"x{NAMES[np.float32]}>", f"x{kind}>")
    with pytest.raises(pjrt.InvalidArgumentError):
        run(code, np.zeros((2, 4, 4), pjrt.ElementType.from_mlir(kind).dtype))


def test_lu_of_a_singular_matrix(run: Any) -> None:
    found, _, status = run(square("s", np.float32, "getrf", ["m", "p", "i"]), np.zeros((2, 4, 4), np.float32))
    assert status.tolist() == [1, 1]
    assert (found == 0).all()


@pytest.mark.parametrize(("letter", "dtype"), LETTERS)
@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5)])
def test_qr(run: Any, letter: str, dtype: Any, shape: tuple[int, int]) -> None:
    rows, columns = shape
    small = min(shape)
    a = matrix(dtype, 2, rows, columns)
    whole, vector = f"tensor<2x{rows}x{columns}x{NAMES[dtype]}>", f"tensor<2x{small}x{NAMES[dtype]}>"
    for target, builder in ((f"lapack_{letter}geqrf_ffi", f"lapack_{letter}{'or' if letter in 'sd' else 'un'}gqr_ffi"),
                            ("Qr", "ProductOfElementaryHouseholderReflectors")):  # fmt: skip
        packed, factors = run(call(target, [whole], [whole, vector]), a)
        part = f"tensor<2x{rows}x{small}x{NAMES[dtype]}>"
        (q,) = run(call(builder, [part, vector], [part]), np.ascontiguousarray(packed[..., :small]), factors)
        near(q @ np.triu(packed)[..., :small, :], a)
        near(adjoint(q) @ q, np.broadcast_to(np.eye(small), (2, small, small)))


@pytest.mark.parametrize(("letter", "dtype"), LETTERS)
@pytest.mark.parametrize(("mode", "name"), [(65, "A"), (83, "S"), (78, "N")])
def test_singular_values(run: Any, letter: str, dtype: Any, mode: int, name: str) -> None:
    a = matrix(dtype, 2, 4, 4)
    text = square(letter, dtype, "gesdd", ["m", "r", "m", "m", "i"], f"mode = {mode} : ui8")
    _, values, left, right, status = run(text, a)
    assert status.tolist() == [0, 0]
    near(values**2, np.linalg.eigvalsh(adjoint(a) @ a)[:, ::-1])
    if name != "N":
        near(left * values[:, None, :] @ right, a)


@pytest.mark.parametrize(("letter", "dtype"), LETTERS)
@pytest.mark.parametrize("triangle", [76, 85])
def test_self_adjoint_eigenvalues(run: Any, letter: str, dtype: Any, triangle: int) -> None:
    a = matrix(dtype, 2, 4, 4)
    a = a + adjoint(a)
    half = np.tril(a) if triangle == 76 else np.triu(a)
    name = "syevd" if letter in "sd" else "heevd"
    vectors, values, _ = run(
        square(letter, dtype, name, ["m", "r", "i"], f"mode = 86 : ui8, uplo = {triangle} : ui8"), half
    )
    near(a @ vectors, vectors * values[:, None, :])
    near(adjoint(vectors) @ vectors, np.broadcast_to(np.eye(4), (2, 4, 4)))


@pytest.mark.parametrize(("letter", "dtype"), LETTERS)
def test_eigenvalues(run: Any, letter: str, dtype: Any) -> None:
    a = matrix(dtype, 2, 4, 4)
    parts = ["r", "r"] if letter in "sd" else ["v"]
    text = square(letter, dtype, "geev", [*parts, "c", "c", "i"], "compute_left = 86 : ui8, compute_right = 86 : ui8")
    *values, left, right, _ = run(text, a)
    value = values[0] + 1j * values[1] if len(values) == 2 else values[0]
    near(a @ right, right * value[:, None, :])
    near(adjoint(left) @ a, value[:, :, None] * adjoint(left))


@pytest.mark.parametrize(("letter", "dtype"), LETTERS)
def test_hessenberg_and_tridiagonal(run: Any, letter: str, dtype: Any) -> None:
    """Similar matrices have the same characteristic polynomial, and the form has the zeros that it should have."""
    a = matrix(dtype, 2, 4, 4)
    found, _, _ = run(square(letter, dtype, "gehrd", ["m", "w", "i"], "low = 1 : i32, high = 4 : i32"), a)
    form = np.triu(found, -1)
    for power in (1, 2, 3):
        near(*(np.trace(np.linalg.matrix_power(m, power), axis1=-2, axis2=-1) for m in (form, a)))
    whole = a + adjoint(a)
    name = "sytrd" if letter in "sd" else "hetrd"
    _, diagonal, beside, _, _ = run(square(letter, dtype, name, ["m", "r", "u", "w", "i"], "uplo = 76 : ui8"), whole)
    tri = [np.diag(d) + np.diag(e, 1) + np.diag(e, -1) for d, e in zip(diagonal, beside, strict=True)]
    near(np.linalg.eigvalsh(np.array(tri)), np.linalg.eigvalsh(whole))


@pytest.mark.parametrize("side", [76, 82])
@pytest.mark.parametrize("turn", [78, 84, 67])
@pytest.mark.parametrize("triangle", [76, 85])
def test_triangular_systems(run: Any, side: int, turn: int, triangle: int) -> None:
    a = matrix(np.complex128, 2, 4, 4) + 3 * np.eye(4)
    b = matrix(np.complex128, 2, 4, 4)
    attributes = f"diag = 78 : ui8, side = {side} : ui8, trans_x = {turn} : ui8, uplo = {triangle} : ui8"
    type_ = "tensor<2x4x4xcomplex<f64>>"
    (x,) = run(call("lapack_ztrsm_ffi", [type_, type_], [type_], f"mhlo.backend_config = {{{attributes}}}"), a, b)
    half = np.tril(a) if triangle == 76 else np.triu(a)
    turned = {78: half, 84: np.swapaxes(half, 1, 2), 67: adjoint(half)}[turn]
    near(turned @ x if side == 76 else x @ turned, b)


def test_functions_of_the_host() -> None:
    """A Python function by a custom call: operands are read-only, results are filled, attributes come by name."""
    seen: list[Any] = []

    def scale(x: Any, out: Any, *, factor: int, name: str) -> None:
        seen.append((x.flags.writeable, name))
        out[...] = x * factor

    text = call(
        "acme.scale",
        ["tensor<3xf32>"],
        ["tensor<3xf32>"],
        'api_version = 4 : i32, backend_config = {factor = 3 : i64, name = "three"}',
    )
    with pjrt.client("reference") as client:
        with pytest.raises(pjrt.UnimplementedError, match="no custom call"):
            client.compile(text)
        client.register_ffi_handler("acme.scale", scale)
        (out,) = client.compile(text)(np.array([1, 2, 3], np.float32))
        assert np.asarray(out).tolist() == [3, 6, 9]
    assert seen == [(False, "three")]


def test_functions_of_the_host_with_tokens_and_errors() -> None:
    text = """func.func @main(%x: tensor<f32>) -> tensor<f32> {
      %t = stablehlo.create_token : !stablehlo.token
      %0:2 = stablehlo.custom_call @acme.check(%t, %x)
        {api_version = 4 : i32, backend_config = {}, has_side_effect = true}
        : (!stablehlo.token, tensor<f32>) -> (!stablehlo.token, tensor<f32>)
      return %0#1 : tensor<f32> }"""

    def check(token_in: Any, x: Any, token_out: Any, out: Any) -> None:
        assert token_in.size == token_out.size == 0
        if x < 0:
            raise ValueError("negative")
        out[...] = x

    with pjrt.client("reference") as client:
        client.register_ffi_handler("acme.check", check)
        exe = client.compile(text)
        assert np.asarray(exe(np.float32(2))[0]) == 2
        with pytest.raises(pjrt.InvalidArgumentError, match=r"negative.*stablehlo.custom_call"):
            exe(np.float32(-1))[0].to_host().result()


@pytest.mark.parametrize(
    ("aliases", "expected"),
    [
        ("", [0, 0, 0]),
        (
            "output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [], operand_index = 0, "
            "operand_tuple_indices = []>], ",
            [1, 2, 3],
        ),
    ],
)
def test_a_function_that_fills_nothing_gives_no_old_memory_away(aliases: str, expected: list[int]) -> None:
    text = call("acme.idle", ["tensor<3xf32>"], ["tensor<3xf32>"], aliases + "api_version = 4 : i32")
    x = np.array([1, 2, 3], np.float32)
    with pjrt.client("reference") as client:
        client.register_ffi_handler("acme.idle", lambda x, out: None)
        executable = client.compile(text)
        results = [np.asarray(executable(x)[0]).tolist() for _ in range(20)]
    assert results == [expected] * 20


def test_reduce_window_with_sizes_as_operands(run: Any) -> None:
    """Sums of two neighbours, in a window that the caller chooses."""
    text = """func.func @main(%x: tensor<?xf32>, %w: tensor<1xi32>) -> tensor<?xf32> {
      %z = stablehlo.constant dense<0.0> : tensor<f32>
      %o = stablehlo.constant dense<1> : tensor<1xi32>
      %p = stablehlo.constant dense<0> : tensor<1x2xi32>
      %0 = stablehlo.custom_call @stablehlo.dynamic_reduce_window(%x, %z, %w, %o, %o, %o, %p)
        {called_computations = [@body]} : (tensor<?xf32>, tensor<f32>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>,
          tensor<1xi32>, tensor<1x2xi32>) -> tensor<?xf32>
      return %0 : tensor<?xf32> }
    func.func private @body(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {
      %0 = stablehlo.add %a, %b : tensor<f32>
      return %0 : tensor<f32> }"""
    evaluator = Evaluator(mlir.parse(text))
    x = np.array([1, 2, 4, 8], np.float32)
    for window in (1, 2, 3, 2):
        (found,) = evaluator(x, np.array([window], np.int32))
        assert found.tolist() == np.convolve(x, np.ones(window), "valid").tolist()


def test_random_bits_with_a_shape_as_operand(run: Any) -> None:
    dynamic = """func.func @main(%k: tensor<2xui64>, %s: tensor<2xi64>) -> (tensor<2xui64>, tensor<?x?xui32>) {
      %0:2 = stablehlo.custom_call @stablehlo.dynamic_rng_bit_generator(%k, %s)
        {rng_algorithm = #stablehlo<rng_algorithm THREE_FRY>} : (tensor<2xui64>, tensor<2xi64>)
          -> (tensor<2xui64>, tensor<?x?xui32>)
      return %0#0, %0#1 : tensor<2xui64>, tensor<?x?xui32> }"""
    static = """func.func @main(%k: tensor<2xui64>) -> (tensor<2xui64>, tensor<3x5xui32>) {
      %0:2 = stablehlo.rng_bit_generator %k, algorithm = THREE_FRY : (tensor<2xui64>)
        -> (tensor<2xui64>, tensor<3x5xui32>)
      return %0#0, %0#1 : tensor<2xui64>, tensor<3x5xui32> }"""
    key = np.array([1, 2], np.uint64)
    for found, expected in zip(run(dynamic, key, np.array([3, 5])), run(static, key), strict=True):
        assert np.array_equal(found, expected)


def test_top_k_with_its_number_as_operand(run: Any) -> None:
    text = """func.func @main(%x: tensor<4xf32>, %k: tensor<i32>) -> (tensor<?xf32>, tensor<?xi32>) {
      %0:2 = stablehlo.custom_call @stablehlo.dynamic_top_k(%x, %k) : (tensor<4xf32>, tensor<i32>)
        -> (tensor<?xf32>, tensor<?xi32>)
      return %0#0, %0#1 : tensor<?xf32>, tensor<?xi32> }"""
    values, where = run(text, np.array([1, 4, 3, 2], np.float32), np.int32(3))
    assert (values.tolist(), where.tolist()) == ([4, 3, 2], [1, 2, 3])


@pytest.mark.parametrize(
    "signature",
    [
        "(tensor<4xf32>) -> tensor<2xf32>",
        "(tensor<4xf32>) -> (tensor<f32>, tensor<i32>)",
        "(tensor<f32>) -> (tensor<2xf32>, tensor<2xi32>)",
        "(tensor<4xf32>) -> tuple<tensor<2xf32>>",
        "(tensor<4xf32>) -> ()",
    ],
)
@pytest.mark.parametrize("target", ["TopK", "mhlo.topk"])
def test_a_malformed_top_k_is_refused(target: str, signature: str) -> None:
    operand = signature[1:].partition(")")[0]
    count = 2 if "-> (tensor" in signature else 0 if signature.endswith("()") else 1
    made = {0: "", 1: "%0 = ", 2: "%0:2 = "}[count]
    text = f"""func.func @main(%x: {operand}) {{
      {made}stablehlo.custom_call @{target}(%x) : {signature}
      return }}"""
    with pytest.raises(pjrt.InvalidArgumentError, match="expected an operand"):
        Evaluator(mlir.parse(text))


@pytest.mark.parametrize(
    ("types", "message"),
    [
        (["tensor<4xi1>"], r"expected a condition, a tensor<i1>, as operand 0, found tensor<4xi1>"),
        (["tensor<f32>"], r"expected a condition, a tensor<i1>, as operand 0, found tensor<f32>"),
        (["tensor<i1>", "tensor<2xi32>"], r"expected a size for its message.* as operand 1, found tensor<2xi32>"),
        ([], r"expected its condition, a tensor<i1>, as the first operand, found no operand"),
    ],
)
def test_shape_assertions_of_other_types_are_the_faults_of_the_program(
    run: Any, types: list[str], message: str
) -> None:
    arguments = ", ".join(f"%{number}: {type_}" for number, type_ in enumerate(types))
    names = ", ".join(f"%{number}" for number in range(len(types)))
    text = f"""func.func @main({arguments}) {{
      stablehlo.custom_call @shape_assertion({names}) {{error_message = "no"}} : ({", ".join(types)}) -> ()
      return }}"""
    with pytest.raises(pjrt.InvalidArgumentError, match=message):
        run(text)
