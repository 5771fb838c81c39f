"""Programs of clients: their custom calls reach no other memory of the server, and no handlers of others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

import pjrt
from pjrt import remote
from pjrt.devices.xla import _jaxlib, ffi_handler

SPARSE = """func.func @main(
    %v: tensor<4xi32>, %r: tensor<5xi32>, %c: tensor<4xi32>, %d: tensor<8xi32>) -> tensor<4xi32> {
  %0 = stablehlo.custom_call @cpu_csr_sparse_dense_ffi(%v, %r, %c, %d) {api_version = 4 : i32, backend_config = {}}
    : (tensor<4xi32>, tensor<5xi32>, tensor<4xi32>, tensor<8xi32>) -> tensor<4xi32>
  return %0 : tensor<4xi32> }"""
CHOLESKY = """func.func @main(%x: tensor<{n}x{n}xf32>) -> (tensor<{m}x{m}xf32>, tensor<i32>) {{
  %0:2 = stablehlo.custom_call @lapack_spotrf_ffi(%x) {{api_version = 4 : i32, backend_config = {{uplo = 76 : ui8}}}}
    : (tensor<{n}x{n}xf32>) -> (tensor<{m}x{m}xf32>, tensor<i32>)
  return %0#0, %0#1 : tensor<{m}x{m}xf32>, tensor<i32> }}"""
CALL = """func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {{
  %0 = stablehlo.custom_call @{target}(%x) {{api_version = 4 : i32}} : (tensor<2xf32>) -> tensor<2xf32>
  return %0 : tensor<2xf32> }}"""


@pytest.fixture(scope="module")
def cpu() -> Iterator[pjrt.Client]:
    with pjrt.client("cpu") as client:
        yield client


@pytest.fixture
def client(cpu: pjrt.Client) -> Iterator[pjrt.Client]:
    with remote.serve(cpu) as server, pjrt.client("remote", address=server.address) as client:
        yield client


def test_a_client_does_not_write_into_other_arrays(client: pjrt.Client) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match="would leave the memory"):
        client.compile(CHOLESKY.format(n=300, m=4))
    (factor, status) = client.compile(CHOLESKY.format(n=2, m=2))(np.eye(2, dtype=np.float32))
    assert np.asarray(factor).tolist() == [[1, 0], [0, 1]]
    assert np.asarray(status) == 0


def test_a_client_does_not_read_other_arrays(client: pjrt.Client) -> None:
    executable = client.compile(SPARSE)
    values, rows, dense = np.ones(4, np.int32), np.arange(5, dtype=np.int32), np.arange(8, dtype=np.int32)
    (found,) = executable(values, rows, np.array([7, 0, 3, 3], np.int32), dense)
    assert np.asarray(found).tolist() == [7, 0, 3, 3]
    with pytest.raises(pjrt.InvalidArgumentError, match="columns of a sparse matrix must be from 0 to 7"):
        np.asarray(executable(values, rows, np.arange(100, 104, dtype=np.int32), dense)[0])


def test_a_handler_that_others_registered_is_not_for_clients(cpu: pjrt.Client, client: pjrt.Client) -> None:
    """As JAX does with those of any package that is imported; the owner of the server has them."""
    program = CALL.format(target="test_strangers.other")
    _jaxlib.register_handler("test_strangers.other", ffi_handler.handler_of(_double, 0))
    assert np.asarray(cpu.compile(program)(np.ones(2, np.float32))[0]).tolist() == [2, 2]
    with pytest.raises(pjrt.PermissionDeniedError, match=r"'test_strangers\.other', a handler in the server's process"):
        client.compile(program)
    with (
        remote.serve(cpu, allow_options=None) as server,
        pjrt.client("remote", address=server.address) as trusted,
    ):
        assert np.asarray(trusted.compile(program)(np.ones(2, np.float32))[0]).tolist() == [2, 2]


def test_a_handler_of_the_owner_is_for_clients(cpu: pjrt.Client, client: pjrt.Client) -> None:
    cpu.register_ffi_handler("test_strangers.own", _double)
    executable = client.compile(CALL.format(target="test_strangers.own"))
    assert np.asarray(executable(np.ones(2, np.float32))[0]).tolist() == [2, 2]


def _double(x: np.ndarray, out: np.ndarray) -> None:  # type: ignore[type-arg]
    np.multiply(x, 2, out=out)


def test_programs_that_cannot_be_vetted_are_refused(cpu: pjrt.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that embeds Python may know none to start: it compiles its own programs, but no stranger's unseen."""
    with (
        remote.serve(cpu, vet_programs=True) as server,
        pjrt.client("remote", address=server.address) as client,
    ):
        monkeypatch.setattr(sys, "executable", "")
        with pytest.raises(pjrt.FailedPreconditionError, match="expected a Python to start"):
            client.compile(CALL.format(target="test_strangers.own").replace("2x", "3x"))


@pytest.mark.full
def test_a_client_ends_no_server_by_a_line_number() -> None:
    """The line 226 is written as the bytes of the tag before the name of a target, where a pattern looked for it."""
    done = subprocess.run(
        [sys.executable, "-c", _LINES], capture_output=True, text=True, timeout=200, check=False
    )  # fmt: skip
    assert done.stdout.split() == ["UNIMPLEMENTED", "UNIMPLEMENTED"], done.stderr


_LINES = """
import pjrt
from pjrt import remote
with pjrt.client("cpu") as cpu, remote.serve(cpu) as server, pjrt.client("remote", address=server.address) as client:
    for line in (5, 226):
        try:
            client.compile(f'''func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
              %0 = stablehlo.custom_call @xla_ffi_python_cpu_callback(%x)
                {{api_version = 4 : i32, backend_config = {{index = 0 : ui64}}}}
                : (tensor<4xf32>) -> tensor<4xf32> loc("f":{line}:0)
              return %0 : tensor<4xf32> }}''')
        except pjrt.PjrtError as error:
            print(error.code.name)
"""
