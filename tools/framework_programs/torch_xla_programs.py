"""Programs with PyTorch/XLA, one for each of its main ways to use a device. Each checks its results."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import torch_xla

import pjrt
from pjrt.devices.xla.buffer import XlaBuffer

X = torch.arange(6.0).reshape(2, 3)

PROGRAMS: dict[str, Callable[[], None]] = {}


def program(function: Callable[[], None]) -> Callable[[], None]:
    """Add a function to the programs."""
    PROGRAMS[function.__name__] = function
    return function


@program
def lazy_tensors() -> None:
    """Tensors of several types are moved to the device, computed with there, and read."""
    device = torch_xla.device()
    x = X.to(device)
    assert torch.equal((x @ x.T).cpu(), X @ X.T)
    for dtype in (torch.bool, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16):
        value = torch.tensor([[0, 1, 3]]).to(dtype)
        assert torch.equal(value.to(device).cpu(), value), dtype


@program
def training() -> None:
    """A training of two steps: each step is one program whose results replace the parameters."""
    torch.manual_seed(0)
    device = torch_xla.device()
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = X.to(device), torch.ones(2, 1).to(device)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        losses.append(float(loss.detach().cpu()))
    assert losses[1] < losses[0]


@program
def compiled() -> None:
    """torch.compile with the backend openxla: a function is compiled once and called three times."""
    function = torch.compile(lambda v: torch.sin(v) * v, backend="openxla")
    x = X.to(torch_xla.device())
    for _ in range(3):
        assert torch.allclose(function(x).cpu(), torch.sin(X) * X, atol=1e-6)


@program
def in_place() -> None:
    """Updates in place, and views, which become programs that return the whole tensor."""
    x = X.to(torch_xla.device())
    x += 1
    x[0] = 5
    torch_xla.sync()
    x[:, 1].mul_(2)
    assert x.cpu().tolist() == [[5.0, 10.0, 5.0], [4.0, 10.0, 6.0]]


def main() -> None:
    """Run the program of a name."""
    XlaBuffer.is_on_cpu = property(lambda self: False)
    pjrt.frameworks.torch_xla.register("cpu", num_devices=1)
    PROGRAMS[sys.argv[1]]()


if __name__ == "__main__":
    main()
