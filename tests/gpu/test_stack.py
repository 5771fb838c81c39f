"""Layers, conformance and a server over the GPU's plugin."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from test_frameworks import TRAINING

import pjrt


def test_the_trace_of_a_training_step(tmp_path: Path, gpu: str, is_gpu: bool) -> None:
    script, trace = tmp_path / "train.py", tmp_path / "train.json"
    script.write_text(TRAINING)
    command = [
        sys.executable,
        "-m",
        "pjrt",
        "trace",
        "-o",
        str(trace),
        "--plugin",
        gpu,
        "--",
        sys.executable,
        str(script),
    ]
    subprocess.run(command, check=True, timeout=240, capture_output=True)
    names = {event.get("name") for event in json.loads(trace.read_text())["traceEvents"]}
    assert any("LoadedExecutable_Execute" in str(name) for name in names)


def test_a_layer_adds_nothing_to_results(python: Callable[..., str], is_gpu: bool) -> None:
    if not is_gpu:
        pytest.skip("the stand-in is no library")
    code = """
import numpy as np, pjrt
client = pjrt.layers.wrap(pjrt.load_plugin(GPU).path, ["validate", "trace"]).client(memory="on-demand")
text = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { %0 = stablehlo.add %x, %x : tensor<4xf32> "
text += "return %0 : tensor<4xf32> }"
print(np.asarray(client.compile(text)(np.ones(4, np.float32))[0]).tolist())
client.close()
"""
    assert json.loads(python(code)) == [2.0] * 4


def test_a_served_device_in_stock_jax(python: Callable[..., str], client: pjrt.Client) -> None:
    with pjrt.remote.serve(client, "127.0.0.1:0") as server:
        code = f"""
import pjrt
pjrt.frameworks.jax.connect({server.address!r})
import jax.numpy as jnp
print(float((jnp.ones((64, 64)) @ jnp.ones((64, 64))).sum()))
"""
        assert float(python(code)) == 64.0**3


def test_many_executions_in_flight(client: pjrt.Client) -> None:
    text = "func.func @main(%x: tensor<256x256xf32>) -> tensor<256x256xf32> {\n"
    text += "  %0 = stablehlo.add %x, %x : tensor<256x256xf32>\n  return %0 : tensor<256x256xf32>\n}"
    executable = client.compile(text)
    one = client.buffer_from_host(np.ones((256, 256), np.float32))
    results = [executable(one)[0] for _ in range(2000)]
    for result in results:
        result.ready().result(60)
    assert np.array_equal(np.asarray(results[-1]), np.full((256, 256), 2, np.float32))


def test_out_of_memory_has_a_report(client: pjrt.Client, is_gpu: bool) -> None:
    if not is_gpu:
        pytest.skip("the stand-in has the host's memory")
    size = 1 << 38  # 256 GiB of bytes
    t = f"tensor<{size}xi8>"
    text = f"func.func @main() -> {t} {{ %0 = stablehlo.iota dim = 0 : {t} return %0 : {t} }}"
    with pytest.raises(pjrt.ResourceExhaustedError) as error:
        client.compile(text)()[0].ready().result()
    assert "allocator" in str(error.value) or error.value.payloads
