"""The versions of the protocol: each one that jaxlib speaks, and those that it does not."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from remote_fixtures import RunJax

import pjrt
from pjrt.remote import Server
from pjrt.remote.protocol.versions import NEWEST, NEWEST_PROTOCOL, NEWEST_SERDES, OLDEST_PROTOCOL, Version, agreed

VERSIONS = [Version(number, NEWEST_SERDES) for number in range(OLDEST_PROTOCOL, NEWEST_PROTOCOL + 1)]

PROGRAM = """
for number in range(len(sys.argv) - 1):
    devices = jax.devices(f"proxy{number or ''}")
    mesh = Mesh(np.array(devices), ("x",))
    x = jax.device_put(np.arange(8.0, dtype="f4"), NamedSharding(mesh, P("x")))
    y = jax.jit(lambda x: x + x.sum(), donate_argnums=0)(x)
    y.block_until_ready()
    compiled = jax.jit(lambda x: x @ x).lower(jnp.ones((4, 4), device=devices[1])).compile()
    z = jax.device_put(y, devices[1], donate=True)
    one = jax.device_put(np.float32([[1, 2], [3, 4]]).T, devices[0])
    failed = jax.jit(lambda x: x * 2)(one)
    failed.delete()
    try:
        np.asarray(failed)
    except RuntimeError as error:
        print(type(error).__name__, end=" ")
    flops = (compiled.cost_analysis() or {}).get("flops", 0)
    print(np.asarray(z).tolist(), np.asarray(one).tolist(), flops > 0)
"""


@pytest.mark.full
def test_jax_in_every_version(run_jax: RunJax) -> None:
    """One process of JAX has a platform for each version, all on the same devices."""
    with pjrt.client("cpu", num_devices=2) as client, ExitStack() as stack:
        addresses = [stack.enter_context(Server(client, "127.0.0.1:0", newest=version)).address for version in VERSIONS]
        lines = run_jax(addresses[0], PROGRAM, *addresses[1:])
    value = [28.0 + n for n in range(8)]
    assert len(lines) == len(VERSIONS)
    for version, line in zip(VERSIONS, lines, strict=True):
        assert line == f"RuntimeError {value} [[1.0, 3.0], [2.0, 4.0]] {version.protocol >= 18}", version


@pytest.mark.parametrize(
    ("oldest", "newest", "expected"),
    [
        (Version(16, 0), Version(25, 3), NEWEST),
        (Version(16, 0), Version(99, 99), NEWEST),
        (Version(1, 0), Version(16, 0), Version(16, 0)),
        (Version(17, 1), Version(20, 1), Version(20, 1)),
    ],
)
def test_the_newest_common_version_is_agreed_on(oldest: Version, newest: Version, expected: Version) -> None:
    assert agreed(oldest, newest) == expected


@pytest.mark.parametrize(
    ("oldest", "newest"),
    [
        (Version(1, 0), Version(15, 3)),
        (Version(26, 0), Version(30, 3)),
        (Version(16, 4), Version(25, 9)),
        (Version(20, 0), Version(17, 0)),
    ],
)
def test_ends_without_a_common_version_are_refused(oldest: Version, newest: Version) -> None:
    with pytest.raises(pjrt.FailedPreconditionError, match="protocol 16 to 25"):
        agreed(oldest, newest)
