"""Programs with PyTorch's own device, through TorchTPU, one for each main way to use it. Each checks its results."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

import pjrt

X = torch.arange(6.0).reshape(2, 3)

Program = Callable[[Any], None]
PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    """Add a function to the programs."""
    PROGRAMS[function.__name__] = function
    return function


@program
def eager(device: Any) -> None:
    """Tensors of several types are moved to the device, computed with there one operation at a time, and read."""
    x = X.to(device)
    torch.testing.assert_close(((x @ x.T).relu() + 1).cpu(), (X @ X.T).relu() + 1)
    for dtype in (torch.bool, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16):
        value = torch.tensor([[0, 1, 3]]).to(dtype)
        assert torch.equal(value.to(device).cpu(), value), dtype


@program
def training(device: Any) -> None:
    """A training of two steps, with autograd and AdamW, one operation at a time."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    x, y = X.to(device), torch.ones(2, 1).to(device)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[1] < losses[0]


@program
def compiled(device: Any) -> None:
    """torch.compile: a function is compiled once, forward and backward, and called twice."""
    function = torch.compile(lambda v: (torch.sin(v) * v).sum(1))
    for _ in range(2):
        x = X.to(device).requires_grad_()
        result = function(x)
        result.sum().backward()
        torch.testing.assert_close(result.detach().cpu(), (torch.sin(X) * X).sum(1))
        torch.testing.assert_close(x.grad.cpu(), torch.cos(X) * X + torch.sin(X))


@program
def in_place(device: Any) -> None:
    """Updates in place, and views of a tensor."""
    x = X.to(device)
    x += 1
    x[0] = 5
    x[:, 1].mul_(2)
    assert x.cpu().tolist() == [[5.0, 10.0, 5.0], [4.0, 10.0, 6.0]]


@program
def on_the_cpu(device: Any) -> None:
    """An operator that TorchTPU lacks runs on the CPU, between two on the device."""
    x = X.to(device)
    matrix = x @ x.T + torch.eye(2, device=device)
    factor = torch.linalg.cholesky(matrix)
    torch.testing.assert_close((factor @ factor.T).cpu(), X @ X.T + torch.eye(2))


def main() -> None:
    """Run the program of a name."""
    PROGRAMS[sys.argv[1]](pjrt.frameworks.torch.register("cpu"))


if __name__ == "__main__":
    main()
