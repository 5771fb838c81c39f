"""PyTorch/XLA on devices of ours: an opt-in job, because its packages are 7 GB.

    python3.11 -m venv torchxla && torchxla/bin/pip install torch==2.9.0 torch_xla==2.9.0
    torchxla/bin/pip install ".[xla]"
    torchxla/bin/python tests/frameworks/torch_xla_job.py

Each part runs in a process of its own, exits with tensors alive, and must end cleanly.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

DEVICES = ("reference", "cpu")
NUM_PROCESSES = 2


def tensors(torch: Any, torch_xla: Any) -> None:
    device = torch_xla.device()
    x = torch.arange(6.0).reshape(2, 3).to(device)
    assert torch.equal((x @ x.T).cpu(), torch.tensor([[5.0, 14.0], [14.0, 50.0]]))
    for dtype in (torch.bool, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float64):
        value = torch.tensor([[0, 1, 3]]).to(dtype)
        assert torch.equal(value.to(device).cpu(), value), dtype
    values, order = torch.sort(torch.tensor([3.0, 1.0, 2.0]).to(device))
    assert values.cpu().tolist() == [1.0, 2.0, 3.0]
    assert order.cpu().tolist() == [1, 2, 0]


def train(torch: Any, torch_xla: Any, device: Any) -> list[float]:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 3))
    x, y = torch.randn(32, 8).to(device), torch.randint(0, 3, (32,)).to(device)
    net = net.to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        losses.append(float(loss.detach().cpu()))
    return losses


def training_step(torch: Any, torch_xla: Any) -> None:
    ours, cpu = train(torch, torch_xla, torch_xla.device()), train(torch, torch_xla, "cpu")
    worst = max(abs(a - b) for a, b in zip(ours, cpu, strict=True))
    print(f"    loss {ours[0]:.6f} to {ours[-1]:.6f}, at most {worst:.1e} from the CPU's")
    assert worst < 1e-5


def convolution(torch: Any, torch_xla: Any) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2))
    x = torch.randn(2, 3, 8, 8)
    want = net(x)
    got = net.to(torch_xla.device())(x.to(torch_xla.device())).cpu()
    assert torch.allclose(got, want, atol=1e-4)


def compiled(torch: Any, torch_xla: Any) -> None:
    function = torch.compile(lambda v: torch.sin(v) * v, backend="openxla")
    x = torch.randn(5).to(torch_xla.device())
    for _ in range(3):
        assert torch.allclose(function(x).cpu(), torch.sin(x.cpu()) * x.cpu(), atol=1e-6)


def each_process(index: int) -> None:
    """What each of the processes runs that PyTorch/XLA starts: it has a device of its own."""
    import torch
    import torch_xla
    import torch_xla.runtime

    value = torch.full((3,), float(index)).to(torch_xla.device())
    assert (value * 2 + 1).cpu().tolist() == [2.0 * index + 1] * 3
    assert torch_xla.runtime.local_process_count() == NUM_PROCESSES
    assert torch_xla.runtime.addressable_device_count() == 1
    print(f"    process {index} of {torch_xla.runtime.local_process_count()}", flush=True)


def processes(torch: Any, torch_xla: Any) -> None:
    torch_xla.launch(each_process)


PARTS: dict[str, Callable[[Any, Any], None]] = {
    f.__name__: f for f in (tensors, training_step, convolution, compiled, processes)
}


def run_part(device: str, part: str) -> None:
    import pjrt

    pjrt.frameworks.torch_xla.register(device, num_devices=NUM_PROCESSES if part == "processes" else 1)
    import torch
    import torch_xla

    PARTS[part](torch, torch_xla)
    global alive
    alive = [torch.ones(3, device=torch_xla.device()) + i for i in range(3)]


def main() -> int:
    failed = count = 0
    for device in DEVICES:
        for part in PARTS:
            if (device, part) == ("cpu", "processes"):
                continue  # XLA's CPU numbers its devices anew in each process, which PyTorch/XLA cannot tell apart
            count += 1
            print(f"{device}: {part}", flush=True)
            done = subprocess.run(
                [sys.executable, "-X", "faulthandler", __file__, device, part],
                capture_output=True,
                text=True,
                timeout=600,
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
            )
            sys.stdout.write(done.stdout)
            if done.returncode:
                failed += 1
                print(f"    FAILED with {done.returncode}: {done.stderr[-2000:]}")
    print(f"{count - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) == 3:
        run_part(*sys.argv[1:])
    else:
        sys.exit(main())
