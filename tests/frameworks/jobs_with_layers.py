"""Layers before the plugins of frameworks that know nothing of them.

``run_validated`` is for each framework, and the parts are those of ``torch_xla_job.py``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from pjrt.layers import program_environment, read_findings
from pjrt.layers.trace import read_trace

TIME_LIMIT = 600

TRAINING = """
import torch
import torch_xla

torch.manual_seed(0)
device = torch_xla.device()
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 3))
net = net.to(device)
x, y = torch.randn(32, 8).to(device), torch.randint(0, 3, (32,)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    torch_xla.sync()
    print(f"loss {loss.item():.5f}", flush=True)
"""

WITH_JAX = """
import jax
import jax.numpy as jnp
import torch
import torch_xla

x = torch.arange(4.0).to(torch_xla.device())
z = jnp.arange(4.0)
for _ in range(3):
    x, z = x * 2, jax.jit(lambda z: z * 2)(z)
    torch_xla.sync()
print(jax.devices()[0].client.platform, z.tolist() == x.cpu().tolist() == [0.0, 8.0, 16.0, 24.0])
"""


def traced(device: str, folder: Path) -> None:
    """Trace a training that is unchanged: the log has its calls in order, and the summary their numbers."""
    script = _script(folder, TRAINING)
    arguments = ["-o", "train.log", "-o", "train.json", "-o", "train.trace", "--log", "--summary", "--plugin", device]
    done = _pjrt(["trace", *arguments, "--", sys.executable, str(script)], folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("loss ") == 4, done.stdout
    log = (folder / "train.log").read_text()
    assert log in done.stdout
    headings = {line.partition(":")[0] for line in log.splitlines() if line.startswith("// ")}
    assert headings >= {"// Load the plugin", "// Load data onto the device", "// Compile", "// RUN"}, headings
    names = [line.split("(")[0].split()[-1] for line in log.splitlines() if "PJRT_" in line]
    order = ["Client_Create", "Client_BufferFromHostBuffer", "Client_Compile", "LoadedExecutable_Execute"]
    places = [names.index(f"PJRT_{name}") for name in [*order, "Buffer_ToHostBuffer"]]
    assert places == sorted(places), names
    events = json.loads((folder / "train.json").read_text())["traceEvents"]
    assert any(event["name"].startswith("LoadedExecutable_Execute") for event in events)
    shown = _pjrt(["trace", "--json", "train.trace"], folder)
    (summary,) = json.loads(shown.stdout)
    assert summary["bytes_to_device"] > 8 * 32 * 4, summary
    print(
        f"    {len(names)} calls, {summary['compilations']} compilations, "
        f"{summary['bytes_to_device']} bytes to the device, {summary['bytes_to_host']} to the host"
    )


def validated(device: str, folder: Path) -> None:
    """Validate a training that is unchanged: it breaks no rule."""
    done, calls = run_validated([sys.executable, str(_script(folder, TRAINING))], folder, device)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("loss ") == 4, done.stdout
    assert calls["PJRT_LoadedExecutable_Execute"] >= 4, calls


def replayed(device: str, folder: Path) -> None:
    """Record a training that is unchanged, and replay it without PyTorch on this device and on another."""
    recording = folder / "train.rec"
    options = {"record": {"file": str(recording)}}
    with program_environment(["record"], plugin=device, options=options) as environment:
        done = _run([sys.executable, str(_script(folder, TRAINING))], folder, environment)
    assert done.returncode == 0, done.stdout + done.stderr
    for other in ("reference", "cpu"):
        again = _pjrt(["replay", str(recording), "--plugin", other, "--layer", "validate", "--json"], folder)
        assert again.returncode == 0, again.stdout[-3000:] + again.stderr
        result = json.loads(again.stdout)
        assert result["agrees"], result["findings"]
        print(f"    {result['calls']} calls, {recording.stat().st_size} bytes, the same on {other}")


def with_jax(device: str, folder: Path) -> None:
    """Put the same layers before JAX's and PyTorch/XLA's plugin in one process."""
    done, calls = run_validated([sys.executable, str(_script(folder, WITH_JAX))], folder, device)
    assert (done.returncode, done.stdout) == (0, f"{device} True\n"), done.stdout + done.stderr
    assert calls["PJRT_Client_Create"] == 2, calls


PARTS: dict[str, Callable[[str, Path], None]] = {f.__name__: f for f in (traced, validated, replayed, with_jax)}


def run_part(device: str, part: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        PARTS[part](device, Path(name))


def run_validated(
    command: Sequence[str], folder: Path, plugin: str | None = None
) -> tuple[subprocess.CompletedProcess[str], Counter[str]]:
    """Run a program under the layer ``validate``, which must find nothing.

    Returns:
        The program's end, and how often it and the processes that it started called each of these functions: proof
        that their plugins had layers.
    """
    findings = folder / "findings.jsonl"
    options = {
        "trace": {"file": f"{folder}/%p.trace", "functions": "Client_Create|LoadedExecutable_Execute", "ring": "1m"},
        "validate": {"file": str(findings), "checksums": "on", "limit": "1000"},
    }
    with program_environment(["trace", "validate"], plugin=plugin, options=options) as environment:
        done = _run(command, folder, environment)
    assert not findings.exists(), "\n".join(map(str, read_findings(findings)))
    traces = map(read_trace, folder.glob("*.trace"))
    return done, Counter(call.function.name for trace in traces for call in trace.calls)


def _script(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(text)
    return path


def _pjrt(arguments: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return _run([sys.executable, "-m", "pjrt", *arguments], folder, None)


def _run(command: Sequence[str], folder: Path, environment: dict[str, str] | None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIME_LIMIT, check=False
    )
