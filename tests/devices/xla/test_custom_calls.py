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
from pjrt.devices.xla import _jaxlib, custom_calls
from pjrt.stablehlo.jaxlib import load

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
        orders = {0: "dense<> : tensor<0xindex>", 1: "dense<0> : tensor<1xindex>", 2: "dense<[0, 1]> : tensor<2xindex>"}
        return "[" + ", ".join(orders[len(shape)] for shape in shapes) + "]"

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


def test_a_kept_program_calls_lapack_too(client: pjrt.Client, tmp_path: Path) -> None:
    kept = tmp_path / "cholesky"
    kept.write_bytes(client.compile(CHOLESKY).serialize())
    done = in_a_process(f"""
import numpy as np, pjrt
program = pjrt.client("cpu").deserialize(open({str(kept)!r}, "rb").read())
print(np.asarray(program(4 * np.eye(2, dtype=np.float32))[0]).tolist())
""")
    assert done.stdout.splitlines() == ["[[2.0, 0.0], [0.0, 2.0]]"], done.stderr


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


@pytest.mark.parametrize("target", sorted(custom_calls.JAX_ONLY))
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
    assert set(done.stdout.split()) <= custom_calls.JAX_ONLY | {"dce_sink"}, done.stderr
