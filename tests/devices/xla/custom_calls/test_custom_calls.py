"""Custom calls that jaxlib answers: LAPACK and sparse matrices for everybody, Python callbacks for JAX alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt.devices.xla import _jaxlib, compilation
from pjrt.stablehlo.encodings.jaxlib import load

Array = np.ndarray[Any, Any]
Call = Callable[..., list[Array]]

PREFIXES = {"s": np.float32, "d": np.float64, "c": np.complex64, "z": np.complex128}
SIZE = 4


def program(
    target: str, operands: Sequence[Array], results: Sequence[tuple[tuple[int, ...], Any]], config: dict[str, str]
) -> str:
    """Calls a handler with matrices in the order of columns, as LAPACK has them."""

    def kind(shape: Sequence[int], dtype: Any) -> str:
        return f"tensor<{''.join(f'{size}x' for size in shape)}{pjrt.ElementType.of(dtype).mlir}>"

    def layouts(shapes: Sequence[Sequence[int]]) -> str:
        orders = ("", "0", "[0, 1]", "[1, 2, 0]")
        ranks = map(len, shapes)
        return "[" + ", ".join(f"dense<{orders[rank]}> : tensor<{rank}xindex>" for rank in ranks) + "]"

    takes = [kind(each.shape, each.dtype) for each in operands]
    gives = [kind(*each) for each in results]
    names = [f"%x{number}" for number in range(len(takes))]
    parameters = ", ".join(f"{name}: {type_}" for name, type_ in zip(names, takes, strict=True))
    given = ", ".join(f"%r#{number}" for number in range(len(gives))) if len(gives) > 1 else "%r"
    return f"""
    func.func public @main({parameters}) -> ({", ".join(gives)}) {{
      %r{f":{len(gives)}" if len(gives) > 1 else ""} = stablehlo.custom_call @{target}({", ".join(names)}) {{
        api_version = 4 : i32, backend_config = {{{", ".join(f"{k} = {v}" for k, v in config.items())}}},
        operand_layouts = {layouts([each.shape for each in operands])},
        result_layouts = {layouts([shape for shape, _ in results])}
      }} : ({", ".join(takes)}) -> ({", ".join(gives)})
      return {given} : {", ".join(gives)}
    }}"""


@pytest.fixture(params=PREFIXES)
def prefix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def dtype(prefix: str) -> Any:
    return PREFIXES[prefix]


@pytest.fixture
def call(client: pjrt.Client, prefix: str) -> Call:
    """Calls one of LAPACK's functions by its name without the type, or by that for real and that for complex ones."""

    def call(
        name: str, operands: Sequence[Array], results: Sequence[tuple[tuple[int, ...], Any]], **config: str
    ) -> Any:
        real, _, other = name.partition("/")
        target = f"lapack_{prefix}{other if other and prefix in 'cz' else real}_ffi"
        made = client.compile(program(target, operands, results, config))(*operands)
        return [np.asarray(each) for each in made]

    return call


def letter(name: str) -> str:
    return f"{ord(name)} : ui8"


def matrix(dtype: Any, *shape: int, seed: int = 0) -> Array:
    generator = np.random.default_rng(seed)
    made = generator.standard_normal(shape or (SIZE, SIZE))
    if np.issubdtype(dtype, np.complexfloating):
        made = made + 1j * generator.standard_normal(made.shape)
    return made.astype(dtype)


def hermitian(dtype: Any) -> Array:
    a = matrix(dtype)
    return (a @ a.conj().T + SIZE * np.eye(SIZE)).astype(dtype)


def real(dtype: Any) -> Any:
    return np.finfo(dtype).dtype


def close(found: Array, expected: Array) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def square(dtype: Any) -> tuple[tuple[int, ...], Any]:
    return (SIZE, SIZE), dtype


def vector(dtype: Any, size: int = SIZE) -> tuple[tuple[int, ...], Any]:
    return (size,), dtype


INFO = ((), np.int32)


def test_cholesky(call: Call, dtype: Any) -> None:
    a = hermitian(dtype)
    factor, info = call("potrf", [a], [square(dtype), INFO], uplo=letter("L"))
    assert info == 0
    close(np.tril(factor), np.linalg.cholesky(a))


def test_lu(call: Call, dtype: Any) -> None:
    a = matrix(dtype)
    both, pivots, info = call("getrf", [a], [square(dtype), vector(np.int32), INFO])
    assert info == 0
    rows = a.copy()
    for place, other in enumerate(pivots - 1):
        rows[[place, other]] = rows[[other, place]]
    close((np.tril(both, -1) + np.eye(SIZE)) @ np.triu(both), rows)


def test_qr(call: Call, dtype: Any) -> None:
    a = matrix(dtype)
    reflectors, scales = call("geqrf", [a], [square(dtype), vector(dtype)])
    (q,) = call("orgqr/ungqr", [reflectors, scales], [square(dtype)])
    close(q @ np.triu(reflectors), a)


@pytest.mark.skipif("lapack_sormqr_ffi" not in _jaxlib.lapack_targets(), reason="jaxlib 0.9 has no such handler")
def test_product_with_q(call: Call, dtype: Any) -> None:
    a, c = matrix(dtype), matrix(dtype, seed=1)
    reflectors, scales = call("geqrf", [a], [square(dtype), vector(dtype)])
    (q,) = call("orgqr/ungqr", [reflectors, scales], [square(dtype)])
    (product,) = call("ormqr/unmqr", [reflectors, scales, c], [square(dtype)], left="true", transpose="false")
    close(product, q @ c)


def test_qr_with_pivots(call: Call, dtype: Any) -> None:
    a = matrix(dtype)
    results = [square(dtype), vector(np.int32), vector(dtype)]
    reflectors, pivots, scales = call("geqp3", [a, np.zeros(SIZE, np.int32)], results)
    (q,) = call("orgqr/ungqr", [reflectors, scales], [square(dtype)])
    close(q @ np.triu(reflectors), a[:, pivots - 1])


@pytest.mark.parametrize("method", ["gesdd", "gesvd"])
def test_svd(call: Call, dtype: Any, method: str) -> None:
    a = matrix(dtype)
    results = [square(dtype), vector(real(dtype)), square(dtype), square(dtype), INFO]
    _, values, left, right, info = call(method, [a], results, mode=letter("A"))
    assert info == 0
    close((left * values) @ right, a)


def test_eigh(call: Call, dtype: Any) -> None:
    a = hermitian(dtype)
    results = [square(dtype), vector(real(dtype)), INFO]
    vectors, values, info = call("syevd/heevd", [a], results, mode=letter("V"), uplo=letter("L"))
    assert info == 0
    close((vectors * values) @ vectors.conj().T, a)


def test_eig(call: Call, dtype: Any) -> None:
    a = matrix(dtype)
    wide = np.result_type(dtype, np.complex64)
    parts = [vector(dtype)] if wide == dtype else [vector(dtype), vector(dtype)]
    results = [*parts, square(wide), square(wide), INFO]
    *values, _, vectors, info = call("geev", [a], results, compute_left=letter("V"), compute_right=letter("V"))
    assert info == 0
    eigenvalues = values[0] if len(values) == 1 else values[0] + 1j * values[1]
    close(a @ vectors, vectors * eigenvalues)


def test_schur(call: Call, dtype: Any) -> None:
    a = matrix(dtype)
    values = [vector(dtype)] if np.issubdtype(dtype, np.complexfloating) else [vector(dtype), vector(dtype)]
    results = [square(dtype), square(dtype), *values, INFO, INFO]
    form, vectors, *_, info = call("gees", [a], results, mode=letter("V"), sort=letter("N"))
    assert info == 0
    close(vectors @ form @ vectors.conj().T, a)


def test_hessenberg(call: Call, dtype: Any) -> None:
    a = matrix(dtype)
    results = [square(dtype), vector(dtype, SIZE - 1), INFO]
    form, _, info = call("gehrd", [a], results, low="1 : i32", high=f"{SIZE} : i32")
    assert info == 0
    close(np.trace(np.triu(form, -1)), np.trace(a))


def test_tridiagonal(call: Call, dtype: Any) -> None:
    a = hermitian(dtype)
    results = [
        square(dtype), vector(real(dtype)), vector(real(dtype), SIZE - 1), vector(dtype, SIZE - 1), INFO
    ]  # fmt: skip
    _, diagonal, beside, _, info = call("sytrd/hetrd", [a], results, uplo=letter("L"))
    assert info == 0
    form = np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
    close(np.linalg.eigvalsh(form), np.linalg.eigvalsh(a))


def test_tridiagonal_solve(call: Call, dtype: Any) -> None:
    below, diagonal, above = matrix(dtype, 3, SIZE)
    diagonal = diagonal + 4
    right = matrix(dtype, seed=1)
    results = [vector(dtype), vector(dtype), vector(dtype), square(dtype), INFO]
    *_, solution, info = call("gtsv", [below, diagonal, above, right], results)
    assert info == 0
    close((np.diag(diagonal) + np.diag(above[:-1], 1) + np.diag(below[1:], -1)) @ solution, right)


def test_triangular_solve(call: Call, dtype: Any) -> None:
    a, right = matrix(dtype) + 4 * np.eye(SIZE, dtype=dtype), matrix(dtype, seed=1)
    config = {"diag": "N", "side": "L", "trans_x": "N", "uplo": "L"}
    (solution,) = call("trsm", [a, right], [square(dtype)], **{name: letter(v) for name, v in config.items()})
    close(np.tril(a) @ solution, right)


def test_every_handler_that_jaxlib_carries_is_registered(client: pjrt.Client) -> None:
    client.compile(CHOLESKY)
    folder = Path(load("version", "find its modules").__file__).parent / "cpu"
    modules = {path.name.partition(".")[0] for path in folder.iterdir() if path.suffix in (".so", ".pyd")}
    assert {"_lapack", "_sparse"} <= modules
    for name in modules:
        carried = load(f"cpu.{name}", "see what it carries").registrations()
        assert set(carried) <= set(_jaxlib.jax.custom_call_targets(_jaxlib.FFI_PLATFORM))


def in_a_process(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False)


CHOLESKY = program(
    "lapack_spotrf_ffi", [np.eye(2, dtype=np.float32)], [((2, 2), np.float32), INFO], {"uplo": letter("L")}
)


@pytest.mark.full
def test_lapack_is_loaded_for_the_first_program_that_calls_it() -> None:
    done = in_a_process(f"""
import sys, numpy as np, pjrt
client = pjrt.client("cpu")
client.compile("func.func public @main(%x: tensor<f32>) -> tensor<f32> {{ return %x : tensor<f32> }}")
print("scipy" in sys.modules, "jaxlib.lapack" in sys.modules)
program = client.compile({CHOLESKY!r})
print(np.asarray(program(4 * np.eye(2, dtype=np.float32))[0]).tolist(), "jax" in sys.modules)
""")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["False False", "[[2.0, 0.0], [0.0, 2.0]] False"]


@pytest.mark.full
def test_a_kept_program_calls_lapack_too(client: pjrt.Client, tmp_path: Path) -> None:
    kept = tmp_path / "cholesky"
    kept.write_bytes(client.compile(CHOLESKY).serialize())
    done = in_a_process(f"""
import numpy as np, pjrt
program = pjrt.client("cpu").deserialize(open({str(kept)!r}, "rb").read())
print(np.asarray(program(4 * np.eye(2, dtype=np.float32))[0]).tolist())
""")
    assert done.stdout.splitlines() == ["[[2.0, 0.0], [0.0, 2.0]]"], done.stderr


@pytest.mark.full
def test_handlers_that_somebody_else_registered_know_where_lapack_is() -> None:
    """JAX registers them without loading LAPACK; jaxlib's handlers would call the address 0."""
    done = in_a_process(f"""
import numpy as np, pjrt
from jaxlib import _jax, lapack
for name, handler, version in lapack.registrations()["cpu"]:
    _jax.register_custom_call_target(name, handler, "cpu", api_version=version, traits=0)
print(np.asarray(pjrt.client("cpu").compile({CHOLESKY!r})(4 * np.eye(2, dtype=np.float32))[0]).tolist())
""")
    assert done.stdout.splitlines() == ["[[2.0, 0.0], [0.0, 2.0]]"], done.stderr


def test_a_kept_program_whose_handler_is_missing_names_it(client: pjrt.Client, programs: Any, tmp_path: Path) -> None:
    client.register_ffi_handler("test_custom_calls.here", lambda x, out: np.copyto(out, x))
    kept = tmp_path / "kept"
    kept.write_bytes(client.compile(programs.call("test_custom_calls.here")).serialize())
    done = in_a_process(f"""
import pjrt
try:
    pjrt.client("cpu").deserialize(open({str(kept)!r}, "rb").read())
except pjrt.NotFoundError as error:
    print(error.message)
""")
    assert "test_custom_calls.here" in done.stdout, done.stderr


@pytest.mark.parametrize("target", sorted(compilation.JAX_ONLY))
def test_a_target_that_only_jax_can_serve_is_refused_by_name(client: pjrt.Client, programs: Any, target: str) -> None:
    with pytest.raises(pjrt.UnimplementedError, match=f"the program calls '{target}'"):
        client.compile(programs.call(target, "index = 0 : ui64"))
    with pytest.raises(pjrt.UnimplementedError, match=f"the program calls '{target}'"):
        client.topology.compile(programs.call(target, "index = 0 : ui64"))


def test_no_target_of_jaxlibs_own_is_unknown() -> None:
    """A target that a newer jaxlib brings must be looked at: does it need what only JAX gives?"""
    done = in_a_process("""
from jaxlib import _jax
client = _jax.get_tfrt_cpu_client(asynchronous=True, num_devices=1)
print(*sorted(_jax.custom_call_targets("cpu")))
""")
    assert set(done.stdout.split()) <= compilation.JAX_ONLY | {"dce_sink"}, done.stderr


# Calls that would leave the memory of their operands and results.

WRONG = {
    "a result smaller than its operand": ("lapack_spotrf_ffi", [(8, 8)], [(4, 4), ()], {"uplo": letter("L")}),
    "a larger one": ("lapack_spotrf_ffi", [(4, 4)], [(8, 8), ()], {"uplo": letter("L")}),
    "a matrix that is not square": ("lapack_spotrf_ffi", [(8, 4)], [(8, 4), ()], {"uplo": letter("L")}),
    "one status for a batch": ("lapack_spotrf_ffi", [(3, 4, 4)], [(3, 4, 4), ()], {"uplo": letter("L")}),
    "short pivots": ("lapack_sgetrf_ffi", [(8, 8)], [(8, 8), (2,), ()], {}),
    "short scales": ("lapack_sgeqrf_ffi", [(8, 8)], [(8, 8), (1,)], {}),
    "short eigenvalues": (
        "lapack_ssyevd_ffi", [(8, 8)], [(8, 8), (1,), ()], {"mode": letter("V"), "uplo": letter("L")},
    ),
    "a short diagonal": ("lapack_sgtsv_ffi", [(2,), (8,), (8,), (8, 2)], [(2,), (8,), (8,), (8, 2), ()], {}),
    "a small triangle": (
        "lapack_strsm_ffi", [(2, 2), (8, 8)], [(8, 8)],
        {"diag": letter("N"), "side": letter("L"), "trans_x": letter("N"), "uplo": letter("L")},
    ),
    "the triangle of the other side": (
        "lapack_strsm_ffi", [(2, 2), (2, 8)], [(2, 8)],
        {"diag": letter("N"), "side": letter("R"), "trans_x": letter("N"), "uplo": letter("L")},
    ),
    "thin vectors for all": ("lapack_sgesdd_ffi", [(8, 2)], [(8, 2), (2,), (8, 2), (2, 2), ()], {"mode": letter("A")}),
    "an unknown mode": ("lapack_sgesdd_ffi", [(2, 2)], [(2, 2), (2,), (2, 2), (2, 2), ()], {"mode": letter("X")}),
    "rows outside": (
        "lapack_sgehrd_ffi", [(4, 4)], [(4, 4), (3,), ()], {"high": "9 : i32", "low": "1 : i32"}
    ),
    "no rows": ("lapack_sgetrf_ffi", [(0, 3)], [(0, 3), (0,), ()], {}),
}  # fmt: skip


def wrong_program(case: str) -> str:
    target, operands, results, attributes = WRONG[case]
    integers = {"short pivots": (1, 2), "no rows": (1, 2)}.get(case, (len(results) - 1,) if results[-1] == () else ())
    made = [(shape, np.int32 if number in integers else np.float32) for number, shape in enumerate(results)]
    return program(target, [np.zeros(shape, np.float32) for shape in operands], made, attributes)


@pytest.mark.parametrize("case", WRONG)
def test_a_call_that_would_leave_its_memory_is_refused(client: pjrt.Client, case: str) -> None:
    expected = "would leave the memory of its operands and results"
    if case == "no rows":  # XLA's compiler divides by zero over the copy of an empty matrix into another layout
        expected += "|XLA's compiler ends its process over it"
    with pytest.raises(pjrt.PjrtError, match=expected):
        client.compile(wrong_program(case))


@pytest.mark.parametrize("where", ["a function", "a loop", "a branch"])
def test_it_is_found_wherever_it_is(client: pjrt.Client, where: str) -> None:
    kind = "(tensor<8x8xf32>) -> (tensor<4x4xf32>, tensor<i32>)"
    config = "{api_version = 4 : i32, backend_config = {uplo = 76 : ui8}}"
    body = f"""%r:2 = stablehlo.custom_call @lapack_spotrf_ffi(%y) {config} : {kind}
            %p = stablehlo.pad %r#0, %z, low = [0, 0], high = [4, 4], interior = [0, 0]
              : (tensor<4x4xf32>, tensor<f32>) -> tensor<8x8xf32>"""
    text = {
        "a function": f"""
          func.func public @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {{
            %0 = func.call @f(%x) : (tensor<8x8xf32>) -> tensor<8x8xf32>
            return %0 : tensor<8x8xf32> }}
          func.func private @f(%y: tensor<8x8xf32>) -> tensor<8x8xf32> {{
            %z = stablehlo.constant dense<0.0> : tensor<f32>
            {body}
            return %p : tensor<8x8xf32> }}""",
        "a loop": f"""
          func.func public @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {{
            %z = stablehlo.constant dense<0.0> : tensor<f32>
            %n = stablehlo.constant dense<0> : tensor<i32>
            %0:2 = stablehlo.while(%i = %n, %y = %x) : tensor<i32>, tensor<8x8xf32> cond {{
              %c = stablehlo.constant dense<3> : tensor<i32>
              %1 = stablehlo.compare LT, %i, %c : (tensor<i32>, tensor<i32>) -> tensor<i1>
              stablehlo.return %1 : tensor<i1>
            }} do {{
              {body}
              stablehlo.return %r#1, %p : tensor<i32>, tensor<8x8xf32>
            }}
            return %0#1 : tensor<8x8xf32> }}""",
        "a branch": f"""
          func.func public @main(%x: tensor<8x8xf32>, %i: tensor<i1>) -> tensor<8x8xf32> {{
            %z = stablehlo.constant dense<0.0> : tensor<f32>
            %y = stablehlo.add %x, %x : tensor<8x8xf32>
            %0 = "stablehlo.if"(%i) ({{
              {body}
              stablehlo.return %p : tensor<8x8xf32>
            }}, {{ stablehlo.return %y : tensor<8x8xf32> }}) : (tensor<i1>) -> tensor<8x8xf32>
            return %0 : tensor<8x8xf32> }}""",
    }[where]
    with pytest.raises(pjrt.InvalidArgumentError, match="lapack_spotrf_ffi would leave the memory"):
        client.compile(text)


@pytest.mark.parametrize("line", [5, 98, 225, 226, 227, 28897])
@pytest.mark.parametrize("target", ["xla_ffi_python_cpu_callback", "lapack_spotrf_ffi"])
def test_no_location_hides_a_call(client: pjrt.Client, target: str, line: int) -> None:
    """A line of 226 is written as the bytes of the tag that stands before the name of the target."""
    text = f"""func.func public @main(%x: tensor<8x8xf32>) -> tensor<4x4xf32> {{
      %0 = stablehlo.custom_call @{target}(%x) {{api_version = 4 : i32, backend_config = {{index = 0 : ui64}}}}
        : (tensor<8x8xf32>) -> tensor<4x4xf32> loc("f":{line}:0)
      return %0 : tensor<4x4xf32> }}"""
    with pytest.raises(pjrt.PjrtError, match=f"{target}.* (that only JAX's own CPU backend|leave the memory)"):
        client.compile(text)


@pytest.mark.parametrize("encoding", ["hlo", "artifact"])
def test_it_is_found_in_every_encoding(client: pjrt.Client, encoding: str) -> None:
    text = wrong_program("a result smaller than its operand")
    made = pjrt.stablehlo.to_hlo(text) if encoding == "hlo" else pjrt.stablehlo.serialize(text, "1.9.0")
    with pytest.raises(pjrt.InvalidArgumentError, match="lapack_spotrf_ffi would leave the memory"):
        client.compile(made)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_older_kinds_of_calls_are_refused(client: pjrt.Client, version: int) -> None:
    text = wrong_program("a result smaller than its operand").replace("api_version = 4", f"api_version = {version}")
    text = text.replace("backend_config = {uplo = 76 : ui8}", 'backend_config = "{uplo = 76 : ui8}"')
    with pytest.raises(pjrt.PjrtError):
        client.compile(text)


def test_top_k_of_more_than_there_are(client: pjrt.Client) -> None:
    text = """func.func public @main(%x: tensor<4xf32>) -> (tensor<64xf32>, tensor<64xi32>) {
      %0:2 = stablehlo.custom_call @TopK(%x) {called_computations = [@greater]}
        : (tensor<4xf32>) -> (tensor<64xf32>, tensor<64xi32>)
      return %0#0, %0#1 : tensor<64xf32>, tensor<64xi32> }
    func.func private @greater(%a: tensor<f32>, %b: tensor<f32>, %i: tensor<i32>, %j: tensor<i32>) -> tensor<i1> {
      %0 = stablehlo.compare GT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
      return %0 : tensor<i1> }"""
    with pytest.raises(pjrt.InvalidArgumentError, match="TopK would leave the memory"):
        client.compile(text)


@pytest.mark.parametrize("shape", [(10,), (3, 10), (2, 3, 10)])
def test_top_k_as_jax_has_it(client: pjrt.Client, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    inner = "".join(f"{size}x" for size in shape[:-1])
    text = f"""func.func public @main(%x: tensor<{inner}10xf32>) -> tensor<{inner}3xf32> {{
      %0:2 = chlo.top_k(%x, k = 3) : tensor<{inner}10xf32> -> (tensor<{inner}3xf32>, tensor<{inner}3xi32>)
      return %0#0 : tensor<{inner}3xf32> }}"""
    np.testing.assert_array_equal(np.asarray(client.compile(text)(x)[0]), -np.sort(-x, axis=-1)[..., :3])


@pytest.mark.parametrize("target", ["memcpy", "printf", "__xla_cpu_runtime_PrintfToStderr", "nobody"])
def test_names_without_a_handler_are_refused(client: pjrt.Client, programs: Any, target: str) -> None:
    with pytest.raises(pjrt.PjrtError, match=target):
        client.compile(programs.call(target))


# Sparse matrices.


def csr(index: str, count: int, rows: int, dense: str) -> str:
    kind = f"tensor<{dense}xf32>"
    result = f"tensor<{rows}{''.join('x' + part for part in dense.split('x')[1:])}xf32>"
    types = f"tensor<{count}xf32>, tensor<{rows + 1}x{index}>, tensor<{count}x{index}>, {kind}"
    return f"""func.func public @main(
        %v: tensor<{count}xf32>, %r: tensor<{rows + 1}x{index}>, %c: tensor<{count}x{index}>, %d: {kind}) -> {result} {{
      %0 = stablehlo.custom_call @cpu_csr_sparse_dense_ffi(%v, %r, %c, %d)
        {{api_version = 4 : i32, backend_config = {{}}}} : ({types}) -> {result}
      return %0 : {result} }}"""


@pytest.mark.parametrize("index", ["i32", "i64"])
@pytest.mark.parametrize("columns", [(), (2,), (300,)])
def test_a_sparse_product(client: pjrt.Client, index: str, columns: tuple[int, ...]) -> None:
    """The last one is large enough for several threads."""
    rows, inner = (2000, 1000) if columns == (300,) else (3, 4)
    generator = np.random.default_rng(0)
    sparse = np.where(generator.random((rows, inner)) < 0.3, generator.standard_normal((rows, inner)), 0)
    sparse, dense = sparse.astype(np.float32), generator.standard_normal((inner, *columns)).astype(np.float32)
    places = np.nonzero(sparse)
    dtype = np.dtype(index.replace("i", "int"))
    starts = np.concatenate([[0], np.cumsum(np.bincount(places[0], minlength=rows))]).astype(dtype)
    kind = "x".join(map(str, dense.shape))
    executable = client.compile(csr(index, len(places[0]), rows, kind))
    (found,) = executable(sparse[places], starts, places[1].astype(dtype), dense)
    np.testing.assert_allclose(np.asarray(found), sparse @ dense, rtol=1e-3, atol=1e-3)
    again = client.deserialize(executable.serialize())
    (found,) = again(sparse[places], starts, places[1].astype(dtype), dense)
    np.testing.assert_allclose(np.asarray(found), sparse @ dense, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("index", ["i32", "i64"])
@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        ([0, 1, 2], [0, 3]),
        ([0, 1, 2], [0, 1 << 20]),
        ([0, 1, 2], [-1, 0]),
        ([0, 1, 2], [0, -(1 << 31)]),
        ([0, 1, 3], [0, 1]),
        ([-1, 1, 2], [0, 1]),
        ([0, 3, 2], [0, 1]),
        ([1, 0, 2], [0, 1]),
        ([0, 1 << 20, 2], [0, 1]),
    ],
)
def test_indices_that_lead_outside_are_an_error(
    client: pjrt.Client, index: str, rows: list[int], columns: list[int]
) -> None:
    dtype = np.dtype(index.replace("i", "int"))
    executable = client.compile(csr(index, 2, 2, "3"))
    arguments = np.ones(2, np.float32), np.array(rows, dtype), np.array(columns, dtype), np.ones(3, np.float32)
    with pytest.raises(pjrt.InvalidArgumentError, match="of a sparse matrix must"):
        np.asarray(executable(*arguments)[0])
    (found,) = executable(arguments[0], np.array([0, 1, 2], dtype), np.array([0, 2], dtype), arguments[3])
    assert np.asarray(found).tolist() == [1, 1]


def test_values_that_no_row_has_may_have_any_column(client: pjrt.Client) -> None:
    """JAX pads matrices so."""
    executable = client.compile(csr("i32", 4, 2, "3"))
    rows, columns = np.array([0, 1, 2], np.int32), np.array([0, 2, 3, 3], np.int32)
    (found,) = executable(np.ones(4, np.float32), rows, columns, np.ones(3, np.float32))
    assert np.asarray(found).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (csr("i32", 2, 2, "3"), "tensor<3xi32>, tensor<2xi32>, tensor<3xf32>) -> tensor<8xf32>"),
        (csr("i32", 2, 2, "3"), "tensor<3xi64>, tensor<2xi32>, tensor<3xf32>) -> tensor<2xf32>"),
    ],
)
def test_a_sparse_product_of_wrong_shapes_is_refused(client: pjrt.Client, text: str, wrong: str) -> None:
    types = ["tensor<2xf32>", *wrong.partition(")")[0].split(", ")]
    result = wrong.rpartition(" ")[2]
    parameters = ", ".join(f"%x{number}: {each}" for number, each in enumerate(types))
    text = f"""func.func public @main({parameters}) -> {result} {{
      %0 = stablehlo.custom_call @cpu_csr_sparse_dense_ffi(%x0, %x1, %x2, %x3) {{api_version = 4 : i32}}
        : ({", ".join(types)}) -> {result}
      return %0 : {result} }}"""
    with pytest.raises(pjrt.InvalidArgumentError, match="would leave the memory"):
        client.compile(text)


def test_a_saved_program_that_calls_jaxlibs_handler_itself_is_refused(client: pjrt.Client, tmp_path: Path) -> None:
    """As JAX saves it: its rows and columns would not be looked at."""
    done = in_a_process(f"""
from jaxlib import _jax, cpu_sparse, lapack
from jaxlib.mlir import ir
from pjrt.stablehlo import read, to_module
for name, handler, version in cpu_sparse.registrations()["cpu"]:
    _jax.register_custom_call_target(name, handler, "cpu", api_version=version, traits=0)
own = _jax.get_tfrt_cpu_client(asynchronous=True, num_devices=1)
with to_module(read({csr("i32", 2, 2, "3")!r}), trusted=True) as module:
    made = own.compile_and_load(module, _jax.DeviceList(tuple(own.local_devices())), _jax.CompileOptions())
saved = own.serialize_executable(made) if hasattr(own, "serialize_executable") else made.serialize()
open({str(tmp_path / "saved")!r}, "wb").write(saved)
""")
    assert done.returncode == 0, done.stderr
    with pytest.raises(
        pjrt.UnimplementedError, match=r"'cpu_csr_sparse_dense_ffi', whose operands .* compile the program"
    ):
        client.deserialize((tmp_path / "saved").read_bytes())
