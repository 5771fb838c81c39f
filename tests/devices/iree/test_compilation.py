"""Compilation: diagnostics, crashes, what is left to the fallback, and compiled modules that are kept."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from iree_programs import CHOLESKY, DOUBLE, FFT

from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.devices.iree import compiler
from pjrt.devices.iree.client import PLACES, IreeClient

pytestmark = pytest.mark.full

NewClient = Callable[..., IreeClient]
X = np.arange(4, dtype=np.float32)


@pytest.mark.parametrize("place", ["subprocess", "process"])
def test_programs_are_compiled_in_both_places(new_client: NewClient, tmp_path: Path, place: str) -> None:
    executable = new_client(compile_in=place, cache=None).compile(DOUBLE)
    np.testing.assert_array_equal(np.asarray(executable(X)[0]), 2 * X)


@pytest.mark.parametrize("place", ["subprocess", "process"])
def test_diagnostics_are_in_the_error_and_nowhere_else(
    new_client: NewClient, capfd: pytest.CaptureFixture[str], place: str
) -> None:
    client = new_client(compile_in=place, fallback=None)
    with pytest.raises(UnimplementedError, match=r"stablehlo.fft at model\.py:9:5: .*failed to legalize"):
        client.compile(FFT)
    with pytest.raises(UnimplementedError, match=r"IREE does not run stablehlo.cholesky \(model\.py:7:3\)"):
        client.compile(CHOLESKY)
    assert capfd.readouterr() == ("", "")


def test_loops_that_change_the_places_of_their_values(new_client: NewClient) -> None:
    """JAX's random numbers: each turn of their loop takes other parts of the memory of the one before."""
    jax = pytest.importorskip("jax")
    jax.config.update("jax_platforms", "cpu")

    def uniform(key: Any, low: Any, high: Any) -> Any:
        return jax.random.uniform(jax.random.wrap_key_data(key), (64, 2), minval=low, maxval=high)

    arguments = np.zeros(2, np.uint32), np.array(-1, np.int32), np.array(1, np.float32)
    program = jax.jit(uniform).lower(*arguments).as_text()
    for client in (new_client(), new_client(flags=["--iree-hal-memoization=false"])):
        (result,) = client.compile(program)(*arguments)
        np.testing.assert_allclose(np.asarray(result), uniform(*arguments), rtol=1e-6)


@pytest.mark.parametrize("place", ["subprocess", "process"])
def test_flags_that_the_compiler_lacks_are_refused(new_client: NewClient, place: str) -> None:
    client = new_client(compile_in=place, flags=["--iree-no-such-flag"])
    with pytest.raises(InvalidArgumentError, match=r"does not take its flags: .*no-such-flag"):
        client.compile(DOUBLE)


def test_flags_reach_the_compiler(new_client: NewClient) -> None:
    plain, debug = (new_client(flags=flags).compile(DOUBLE) for flags in ([], ["--iree-llvmcpu-debug-symbols=false"]))
    assert debug.size_of_generated_code < plain.size_of_generated_code


def crash(code: bytes, flags: object) -> bytes:
    """Have the compiler end as by a failed assertion."""
    raise compiler.CrashError("IREE's compiler ended with signal 6; it printed 'assertion failed'")


def test_a_program_that_crashes_the_compiler_is_left_to_the_fallback(new_client: NewClient) -> None:
    # Its constant of complex<f64> divides by zero in the compiler.
    text = """
    func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
      %c = stablehlo.constant dense<(1.0, 2.0)> : tensor<2xcomplex<f64>>
      %r = stablehlo.real %c : (tensor<2xcomplex<f64>>) -> tensor<2xf64>
      %0 = stablehlo.convert %r : (tensor<2xf64>) -> tensor<2xf32>
      %1 = stablehlo.add %0, %x : tensor<2xf32>
      return %1 : tensor<2xf32>
    }"""
    (out,) = new_client().compile(text)(np.ones(2, np.float32))
    np.testing.assert_array_equal(np.asarray(out), [2, 2])


def test_a_crash_of_the_compiler_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "iree-compile"
    program.write_text("#!/bin/sh\ncat > /dev/null\necho 'assertion failed' >&2\nkill -ABRT $$\n")
    program.chmod(0o755)
    monkeypatch.setattr(compiler, "_program", lambda: str(program))
    with pytest.raises(compiler.CrashError, match="signal 6; it printed 'assertion failed'"):
        compiler.in_subprocess(b"", [])


def test_a_crash_names_the_program(new_client: NewClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PLACES, "process", crash)
    client = new_client(compile_in="process", fallback=None, cache=None)
    with pytest.raises(UnimplementedError, match=r"ended with signal 6.*the program is main"):
        client.compile(DOUBLE)


def test_what_iree_lacks_is_the_fallbacks(new_client: NewClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pjrt")
    a = np.array([[2, 1], [1, 3]], np.float32)
    (out,) = new_client().compile(CHOLESKY)(a)
    np.testing.assert_allclose(np.asarray(out), np.exp(np.linalg.cholesky(2 * a)), rtol=1e-6)
    assert "IREE does not run stablehlo.cholesky" in caplog.text


def test_runs_are_cut_around_the_operation_that_the_compiler_names(
    new_client: NewClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = []
    inner = compiler.in_process

    def compile(code: bytes, flags: list[str]) -> bytes:
        texts.append(code.decode())
        return inner(code, flags)

    monkeypatch.setitem(PLACES, "process", compile)
    x = np.arange(6).astype(np.complex64)
    (out,) = new_client(compile_in="process", cache=None).compile(FFT)(x)
    np.testing.assert_allclose(np.asarray(out), np.fft.fft(2 * x), rtol=1e-5, atol=1e-5)
    assert ["stablehlo.fft" in text for text in texts] == [True, True, False]
    assert "stablehlo.add" in texts[-1]


def test_modules_are_kept(new_client: NewClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new_client(cache=tmp_path / "a").compile(DOUBLE)
    (file,) = (tmp_path / "a").iterdir()
    monkeypatch.setattr(compiler, "_program", lambda: "/does/not/exist")
    executable = new_client(cache=tmp_path / "a").compile(DOUBLE)
    np.testing.assert_array_equal(np.asarray(executable(X)[0]), 2 * X)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(Exception, match="does/not/exist"):  # a damaged one is compiled again
        new_client(cache=tmp_path / "a").compile(DOUBLE)


def test_a_module_that_everyone_may_write_to_is_compiled_anew(
    new_client: NewClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module is code. What the cache makes is safe, whatever the process lets others do."""
    folder = tmp_path / "above" / "cache"
    before = os.umask(0)
    try:
        new_client(cache=folder).compile(DOUBLE)
    finally:
        os.umask(before)
    (file,) = folder.iterdir()
    assert [path.stat().st_mode & stat.S_IWOTH for path in (file, folder, folder.parent)] == [0, 0, 0]
    monkeypatch.setattr(compiler, "_program", lambda: "/does/not/exist")
    np.testing.assert_array_equal(np.asarray(new_client(cache=folder).compile(DOUBLE)(X)[0]), 2 * X)
    file.chmod(0o666)
    with pytest.raises(Exception, match="does/not/exist"):
        new_client(cache=folder).compile(DOUBLE)


def test_a_folder_that_everyone_may_write_to_is_refused(new_client: NewClient, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(Exception, match="not safe as a cache"):
        new_client(cache=tmp_path)
