"""``pjrt.frameworks.jax.connect``: JAX on a server, in the clear, and through a tunnel with TLS and a token."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from certificates import Authority
from remote_fixtures import PATIENCE, Serve

pytest.importorskip("jax")

BEGIN = """
import os, sys
import pjrt
connect = pjrt.frameworks.jax.connect
"""


def run(source: str, *arguments: object, environment: Mapping[str, str] | None = None) -> list[str]:
    """Run a program; return the lines that it prints."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", BEGIN + source, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, **(environment or {})},
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    return done.stdout.splitlines()


@pytest.mark.full
def test_one_line_connects_jax(served_cpu: str) -> None:
    source = """
before = dict(os.environ)
platform = connect(sys.argv[1])
assert os.environ == before
import jax, jax.numpy as jnp
print(platform, jax.default_backend(), len(jax.devices()), jax.devices("remote") == jax.devices(), jax.devices("cpu"))
print(jax.jit(lambda x: x @ x)(jnp.eye(3) * 2).sum())
x = jnp.arange(3.0)
y = jax.jit(lambda x: x + 1, donate_argnums=0)(x)
print(x.is_deleted(), y)
jax.extend.backend.clear_backends()
print(len(jax.devices()), jnp.ones(2) + 1)
try:
    connect(sys.argv[1], platform="again")
except pjrt.FailedPreconditionError as error:
    print("before JAX is first used" in error.message)
"""
    assert run("import jax.extend\n" + source, served_cpu) == [
        "remote cpu 4 True [CpuDevice(id=0)]",
        "12.0",
        "True [1. 2. 3.]",
        "4 [2. 2.]",
        "True",
    ]


@pytest.mark.full
def test_several_servers_beside_the_default(serving: Serve) -> None:
    """JAX lowers programs for the reference device by its rules for CPUs: it knows donation and LAPACK by name."""
    both = serving("cpu", "reference", "-O", "num_devices=2", devices=2)
    source = """
names = [connect(address, platform=name, make_default=False) for name, address in zip("ab", sys.argv[1:])]
import jax, jax.numpy as jnp
print(jax.default_backend(), jax.devices()[0] in jax.devices("a"), [jax.devices(name)[1].platform for name in names])
x = jax.device_put(jnp.eye(3) * 4, jax.devices("a")[1])
y = jax.device_put(x, jax.devices("b")[0])
print(jnp.linalg.eigh(y)[0], y.devices())
z = jax.jit(lambda v: v + 1, donate_argnums=0)(y)
print(y.is_deleted(), z[0])
"""
    assert run(source, *both.addresses) == [
        "cpu False ['cpu', 'reference']",
        "[4. 4. 4.] {reference(id=0)}",
        "True [5. 1. 1.]",
    ]


@pytest.mark.full
def test_a_server_that_goes_away(serving: Serve) -> None:
    server = serving("cpu")
    source = """
import signal, threading
reasons, lost = [], threading.Event()
connect(sys.argv[1], on_disconnect=lambda reason: (reasons.append(reason), lost.set()))
import jax, jax.numpy as jnp
x = jnp.arange(3.0) + 1
print(x)
os.kill(int(sys.argv[2]), signal.SIGKILL)
assert lost.wait(60)
print(len(reasons), type(reasons[0]).__name__)
try:
    print(x + 1)
except jax.errors.JaxRuntimeError as error:
    print("failed")
"""
    assert run(source, server.address, server.process.pid) == ["[1. 2. 3.]", "1 str", "failed"]


@pytest.mark.full
def test_the_end_of_the_process_with_a_function_for_disconnections(served_cpu: str) -> None:
    """JAX ends its client while Python exits: no thread of jaxlib's may call the function then."""
    run("connect(sys.argv[1], on_disconnect=print)\nimport jax\njax.devices()", served_cpu)


@pytest.mark.full
def test_errors(served_cpu: str) -> None:
    source = """
def failing(kind, *arguments, **options):
    try:
        connect(*arguments, timeout=1, **options)
    except kind as error:
        print(error.message)
    else:
        raise AssertionError(arguments)

failing(pjrt.InvalidArgumentError, "127.0.0.1:80")
failing(pjrt.InvalidArgumentError, "http://127.0.0.1:80")
failing(pjrt.InvalidArgumentError, "grpc://127.0.0.1")
failing(pjrt.PermissionDeniedError, "grpc://192.0.2.1:8470")
failing(pjrt.UnavailableError, "grpc://127.0.0.1:9")
failing(pjrt.NotFoundError, sys.argv[1], token_file="/no/such/token")
import jax
jax.config.update("jax_platforms", "cpu")
failing(pjrt.FailedPreconditionError, sys.argv[1])
"""
    lines = run(source, served_cpu)
    for line, part in zip(
        lines,
        (
            "expected the address of a server as grpc://HOST:PORT",
            "found the scheme 'http'",
            "expected grpc://HOST:PORT",
            "use TLS: grpcs://192.0.2.1:8470",
            "nothing listens at 127.0.0.1:9: is the server running, and is the port right?",
            "/no/such/token",
            "JAX_PLATFORMS is 'cpu', so JAX would not see 'remote'",
        ),
        strict=True,
    ):
        assert part in line


@pytest.mark.full
def test_tls_and_a_token(serving: Serve, authority: Authority, token_file: Path) -> None:
    server = serving(
        "cpu",
        *("--tls-certificate", str(authority.server.certificate), "--tls-key", str(authority.server.key)),
        *("--token-file", str(token_file), "-O", "num_devices=2"),
    )
    source = """
platform = connect(sys.argv[1], ca_file=sys.argv[2], token_file=sys.argv[3], timeout=120)
import jax, jax.numpy as jnp
print(len(jax.devices()), jax.jit(lambda x: x.sum())(jnp.arange(1 << 20)).item())
x = jnp.ones(3)
"""
    assert run(source, server.address, authority.certificate, token_file) == ["2 -524288"]
    refused = """
try:
    connect(sys.argv[1], ca_file=sys.argv[2], token_file=sys.argv[3], timeout=9999)  # jaxlib would try as long
except pjrt.UnauthenticatedError as error:
    print("token" in error.message, sys.argv[1] in error.message)
"""
    other = token_file.with_name("other")
    other.touch(mode=0o600)
    other.write_text("0123456789abcdef0123456789abcdef\n")
    assert run(refused, server.address, authority.certificate, other) == ["True True"]
