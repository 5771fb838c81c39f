"""The frameworks' checks of JAX through ``pjrt serve cpu``, with stock JAX in a process without this package.

Also what jaxlib's client itself cannot carry: the table of ``docs/remote.md``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from remote_fixtures import PATIENCE, RunJax, end_serving, start_serving

pytest.importorskip("jax")
pytest.importorskip("grpc")

HERE = Path(__file__).parent
NO_CALLBACKS = "Unsupported host callback type"
CLIENT_LIMITS = {
    "arrays_know_that_they_are_ready": "AssertionError",
    "buffer_callbacks": NO_CALLBACKS,
    "callback_that_fails": NO_CALLBACKS,
    "callbacks_for_each_part": NO_CALLBACKS,
    "callbacks_in_partitioned_programs": NO_CALLBACKS,
    "callbacks_with_64_bits": NO_CALLBACKS,
    "callbacks_with_elements_of_less_than_a_byte": NO_CALLBACKS,
    "debug_print_and_callbacks": NO_CALLBACKS,
    "host_arrays_with_strides": "Negative or zero strides are not fully supported",
    "ordered_callbacks_without_results": NO_CALLBACKS,
    "serialized_executables": "IFRT service executable does not support `Serialize`",
}
"""The checks that jaxlib's client fails by itself, with its own message: the server has no part in it."""


@pytest.fixture(scope="module")
def results() -> Iterator[dict[str, Any]]:
    """The results of each script on a server with eight devices."""
    serving = start_serving("cpu", "-O", "num_devices=8")
    try:
        done = subprocess.run(
            [sys.executable, str(HERE / "stock_jax.py"), serving.address],
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert serving.errors == ""
        yield json.loads(done.stdout.splitlines()[-1])
    finally:
        end_serving(serving)


def names(script: str, mark: str) -> list[str]:
    lines = (HERE.parent / "frameworks" / script).read_text().splitlines()
    return [lines[i + 1].split("(")[0].removeprefix("def ") for i, line in enumerate(lines) if line == mark]


@pytest.mark.full
@pytest.mark.parametrize("name", names("jax_checks.py", "@check"))
def test_jax_runs(results: dict[str, Any], name: str) -> None:
    message = results["checks"][name]
    if name in CLIENT_LIMITS:
        assert CLIENT_LIMITS[name] in message
    else:
        assert message is None


@pytest.mark.full
@pytest.mark.parametrize("name", names("sharded_programs.py", "@program"))
def test_a_sharded_program(results: dict[str, Any], name: str) -> None:
    assert results["sharded"][name] is None


@pytest.mark.full
def test_training_gives_the_losses_of_local_training(results: dict[str, Any]) -> None:
    served, local = results["training"]
    assert served == pytest.approx(local, rel=1e-6)
    assert served[-1] < served[0]


@pytest.mark.full
def test_limits_of_the_client_of_jaxlib(served_cpu: str, run_jax: RunJax) -> None:
    source = """
def limit(function, message):
    try:
        function()
    except Exception as error:
        assert message in str(error), error
    else:
        raise AssertionError(message)

x = jnp.arange(4.0)
executable = jax.jit(lambda x: x + 1).lower(x).compile().runtime_executable()
limit(executable.hlo_modules, "HloModule does not provide stable serialization")
limit(devices[0].memory_stats, "MemoryStats is only supported for addressable PjRt devices")
limit(x.unsafe_buffer_pointer, "for a PjRt-compatible backend only")
limit(lambda: np.from_dlpack(x), "for a PjRt-compatible backend only")
limit(devices[0].client.defragment, "Defragmentation is not supported on this runtime")
y = x + 1
jax.block_until_ready([x, y])
print(y.is_ready())
y.block_until_ready()
print(y.is_ready())
jax.debug.print("{}", y)
"""
    # Outside of jit, JAX makes callbacks itself, with the operands on its own CPU.
    lines = run_jax(served_cpu, source, environment={"JAX_PLATFORMS": "proxy,cpu"})
    assert lines == ["False", "True", "[1. 2. 3. 4.]"]
