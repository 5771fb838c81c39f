"""PyTorch/XLA on devices of ours: an opt-in job, because its packages are 7 GB.

    python3.11 -m venv torchxla && torchxla/bin/pip install torch==2.9.0 torch_xla==2.9.0
    torchxla/bin/pip install ".[xla]"
    torchxla/bin/python tests/frameworks/torch_xla_job.py            # or with the name of one device

Each part runs in a subprocess, exits with tensors alive, and must end cleanly. It runs a second time under the layer
``validate``, which must find nothing.
"""

from __future__ import annotations

import concurrent.futures
import copy
import math
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jobs_with_layers

DEVICES = ("reference", "cpu")
NUM_PROCESSES = 2
NUM_SHARDS = 4


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


def scalars(torch: Any, torch_xla: Any) -> None:
    """Use numbers that the device computes where PyTorch waits for them with the GIL held."""
    device = torch_xla.device()
    x = torch.arange(6.0).to(device)
    start = torch.tensor(1).to(device)

    def i() -> Any:
        return start + 1  # computed anew, so that each case has to wait for it

    def assigned() -> Any:
        y = x + 0
        y[i()] = 7.0
        return y

    def put(value: Any) -> Any:
        on_host = torch.zeros(2)
        on_host[0] = value
        return on_host

    cases: dict[str, tuple[Callable[[], Any], Any]] = {
        "x[i]": (lambda: x[i()], 2.0),
        "x[i:]": (lambda: x[i() :], [2.0, 3.0, 4.0, 5.0]),
        "x[i, None]": (lambda: x[i(), None], [2.0]),
        "x[i] = v": (assigned, [0.0, 1.0, 7.0, 3.0, 4.0, 5.0]),
        "host[0] = i": (lambda: put(i()), [2.0, 0.0]),
        "select": (lambda: x.select(0, i()), 2.0),
        "narrow": (lambda: x.narrow(0, i(), 2), [2.0, 3.0]),
        "full": (lambda: torch.full((2,), i()), [2, 2]),
        "add alpha": (lambda: torch.add(x, x, alpha=i()), [0.0, 3.0, 6.0, 9.0, 12.0, 15.0]),
        "clamp": (lambda: torch.clamp(x, max=i()), [0.0, 1.0, 2.0, 2.0, 2.0, 2.0]),
        "sizes": (lambda: torch.zeros(i()), [0.0, 0.0]),
        "item": (lambda: i().item(), 2),
        "tolist": (lambda: (x * i()).tolist(), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]),
        "int": (lambda: int(i()), 2),
        "float": (lambda: float(i()), 2.0),
        "bool": (lambda: bool(i()), True),
        "if": (lambda: 1 if i() > 1 else 0, 1),
        "index": (lambda: [10, 20, 30][i()], 30),
        "range": (lambda: list(range(i())), [0, 1]),
        "iterate": (lambda: [float(v) for v in x * i()], [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]),
        "format": (lambda: f"{i():d}", "2"),
        "print": (lambda: str(i()), f"tensor(2, device='{device}')"),
        "torch.tensor": (lambda: torch.tensor([i(), i()]), [2, 2]),
        "as_tensor": (lambda: torch.as_tensor(i()), 2),
        "nonzero": (lambda: (x > i()).nonzero(), [[3], [4], [5]]),
        "masked_select": (lambda: x.masked_select(x > i()), [3.0, 4.0, 5.0]),
        "x[mask]": (lambda: x[x > i()], [3.0, 4.0, 5.0]),
        "cpu": (lambda: i().cpu(), 2),
        "numpy": (lambda: (x * i()).cpu().numpy(), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]),
        "equal": (lambda: torch.equal(x + i(), x + 2), True),
        "allclose": (lambda: torch.allclose(x + i(), x + 2), True),
        "split": (lambda: torch.split(x, int(i()))[0], [0.0, 1.0]),
        "in": (lambda: 2 in x + 0, True),
        "copy": (lambda: copy.deepcopy(x + i()), [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]),
        "pickle": (lambda: pickle.loads(pickle.dumps(i())), 2),
    }
    for name, (case, expected) in cases.items():
        print(f"    {name}", file=sys.stderr, flush=True)
        found = case()
        if hasattr(found, "tolist"):
            found = found.tolist()
        assert found == expected, (name, found, expected)


def optimizers(torch: Any, torch_xla: Any) -> None:
    """Run optimizers whose count of steps is a tensor, on the device if they are capturable."""
    device = torch_xla.device()
    for capturable in (False, True):
        losses = []
        for place in (device, torch.device("cpu")):
            torch.manual_seed(0)
            weight = torch.randn(4, 3).to(place).requires_grad_()
            optimizer = torch.optim.AdamW([weight], lr=0.1, capturable=capturable and place is device)
            if capturable and place is device:
                torch_xla.sync()
            for _ in range(3):
                optimizer.zero_grad()
                loss = (weight**2).sum()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        assert all(math.isclose(a, b, rel_tol=1e-5) for a, b in zip(losses[:3], losses[3:], strict=True)), losses


def threads(torch: Any, torch_xla: Any) -> None:
    """Run several threads of Python at once, each of which waits for numbers of the device."""
    device = torch_xla.device()
    x = torch.arange(6.0).to(device)

    def work(number: int) -> list[float]:
        torch.manual_seed(number)
        found = []
        for step in range(20):
            i = torch.tensor(step % 5).to(device) + 1
            noise = torch.rand(3, device=device)
            found.append((x[i] + 0 * noise.sum()).item())
        return found

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for found in pool.map(work, range(4)):
            assert found == [float(step % 5 + 1) for step in range(20)]


def each_process(index: int) -> None:
    """Run in each process that PyTorch/XLA starts: each has its own device."""
    import torch
    import torch_xla
    import torch_xla.runtime

    value = torch.full((3,), float(index)).to(torch_xla.device())
    assert (value * 2 + 1).cpu().tolist() == [2.0 * index + 1] * 3
    assert torch_xla.runtime.local_process_count() == NUM_PROCESSES
    assert torch_xla.runtime.addressable_device_count() == 1
    print(f"    process {index} of {torch_xla.runtime.local_process_count()}", flush=True)


def reduce_in_each_process(index: int) -> None:
    """Add up over all devices: the threads of ``cpu`` meet; processes do not, and get an error."""
    import torch
    import torch_xla
    import torch_xla.core.xla_model

    value = torch.full((2,), float(index + 1)).to(torch_xla.device())
    total = torch_xla.core.xla_model.all_reduce(torch_xla.core.xla_model.REDUCE_SUM, value)
    try:
        found = str(total.cpu().tolist())
    except RuntimeError as error:
        found = "refused" if "do not compute together" in str(error) else repr(error)
    assert found == ("[3.0, 3.0]" if os.environ["PJRT_DEVICE"] == "PJRT_CPU" else "refused"), found


def collectives(torch: Any, torch_xla: Any) -> None:
    torch_xla.launch(reduce_in_each_process)


def linear_algebra(torch: Any, torch_xla: Any) -> None:
    torch.manual_seed(0)
    a = torch.randn(3, 3)
    s = a @ a.T + torch.eye(3)
    of_a_device = a.to(torch_xla.device()), s.to(torch_xla.device())
    for function in (
        lambda a, s: torch.linalg.cholesky(s),
        lambda a, s: torch.linalg.eigh(s)[0],
        lambda a, s: torch.linalg.lu_factor(a)[0],
        lambda a, s: torch.linalg.qr(a)[1].abs(),
        lambda a, s: torch.linalg.svd(a)[1],
        lambda a, s: torch.linalg.solve(s, a),
        lambda a, s: torch.topk(a, 2)[0],
    ):
        assert torch.allclose(function(*of_a_device).cpu(), function(a, s), atol=1e-4)


def sharded(torch: Any, torch_xla: Any) -> None:
    """Compute on several devices with SPMD, and read results whose shardings XLA chooses."""
    import numpy as np
    import torch_xla.runtime
    from torch_xla.distributed import spmd

    torch_xla.runtime.use_spmd()
    mesh = spmd.Mesh(np.arange(NUM_SHARDS), (NUM_SHARDS,), ("data",))
    value = torch.arange(8.0).reshape(4, 2)
    x = value.to(torch_xla.device())
    spmd.mark_sharding(x, mesh, ("data", None))
    cases: dict[str, Callable[[Any], Any]] = {
        "rows": lambda x: -x.sum(1),
        "whole": lambda x: x.sum(),
        "columns": lambda x: x.T.contiguous() * 2,
        "product": lambda x: x @ x.T,
    }
    for name, case in cases.items():
        found, expected = case(x).cpu(), case(value)
        assert torch.equal(found, expected), (name, found, expected)
    results = [case(x) for case in cases.values()]  # all in one program
    torch_xla.sync()
    for name, found, case in zip(cases, results, cases.values(), strict=True):
        assert torch.equal(found.cpu(), case(value)), (name, found.cpu())


def processes(torch: Any, torch_xla: Any) -> None:
    torch_xla.launch(each_process)


PARTS: dict[str, Callable[[Any, Any], None]] = {
    f.__name__: f
    for f in (
        tensors,
        training_step,
        convolution,
        compiled,
        scalars,
        optimizers,
        threads,
        linear_algebra,
        collectives,
        sharded,
        processes,
    )
}


NUM_DEVICES = {"collectives": NUM_PROCESSES, "sharded": NUM_SHARDS, "processes": NUM_PROCESSES}


def run_part(device: str, part: str) -> None:
    import pjrt

    pjrt.frameworks.torch_xla.register(device, num_devices=NUM_DEVICES.get(part, 1))
    import torch
    import torch_xla

    PARTS[part](torch, torch_xla)
    global alive
    alive = [torch.ones(3, device=torch_xla.device()) + i for i in range(3)]


def run_in_subprocess(device: str, part: str) -> None:
    """Run a part as it is, and under the layer ``validate``."""
    command = [sys.executable, "-X", "faulthandler", __file__, device, part]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    sys.stdout.write(done.stdout)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    with tempfile.TemporaryDirectory() as folder:
        done, calls = jobs_with_layers.run_validated(command, Path(folder))
    assert done.returncode == 0, ("under validate", done.returncode, done.stderr[-2000:])
    assert calls["PJRT_Client_Create"], calls
    print(f"    {calls['PJRT_LoadedExecutable_Execute']} executions under validate, no finding")


def main(devices: Sequence[str]) -> int:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    failed = count = 0
    for device in devices:
        for part in (*PARTS, *jobs_with_layers.PARTS):
            if (device, part) == ("cpu", "processes"):
                continue  # XLA's CPU numbers its devices anew in each process, which PyTorch/XLA cannot tell apart
            count += 1
            print(f"{device}: {part}", flush=True)
            run = run_in_subprocess if part in PARTS else jobs_with_layers.run_part
            try:
                run(device, part)
            except (AssertionError, subprocess.TimeoutExpired) as problem:
                failed += 1
                print(f"    FAILED: {problem}")
    print(f"{count - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) == 3:
        run_part(*sys.argv[1:])
    else:
        sys.exit(main(sys.argv[1:] or DEVICES))
