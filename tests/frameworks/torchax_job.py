"""PyTorch without PyTorch/XLA on devices of ours: an opt-in job, because its packages are large.

    python tests/frameworks/torchax_job.py                  # or with the names of devices

It needs torch, torchax, jax and optax. For each device a subprocess runs all parts, compares them with PyTorch's own
CPU, and exits with tensors alive. The last line of each device is a row of the table on the page
``docs/frameworks/torch.md``.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

DEVICES = ("reference", "cpu", "mychip", "iree")
"""The devices; ``mychip`` is the scaffold that ``pjrt new-plugin mychip`` writes."""

TOLERANCE = 1e-4
STEPS = 5


def difference(ours: Any, theirs: Any) -> float:
    """Return the largest difference of two arrays, relative to the largest number of theirs."""
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    assert ours.shape == theirs.shape
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


class Parts:
    """The parts of the job on one device. Each returns the largest difference from PyTorch's own CPU."""

    def __init__(self, target: str) -> None:
        """Compute what the device is compared with, then make the device PyTorch's."""
        import torch
        import torch_models

        import pjrt

        self.torch = torch
        self.target = target
        torch.manual_seed(0)
        self.models = {
            "convolutions": (torch_models.ResNet().eval(), torch.randn(2, 3, 32, 32)),
            "transformer": (torch_models.TransformerBlock(32, 4).eval(), torch.randn(2, 16, 32)),
        }
        self.wanted = {name: model(x).detach().numpy() for name, (model, x) in self.models.items()}
        self.x, self.y = torch.randn(32, 8), torch.randint(0, 3, (32,))
        self.wanted_losses = self._trained_by_pytorch()
        self.file = Path(tempfile.mkdtemp()) / "model.pt2"
        model, x = self.models["convolutions"]
        batch = torch.export.Dim("batch")
        torch.export.save(torch.export.export(model, (x,), dynamic_shapes=({0: batch},)), self.file)
        np.save(self.file.with_name("x.npy"), x.numpy())
        self.device = pjrt.frameworks.torch.register_torchax(target)

    def network(self) -> Any:
        """Return a small network, always with the same weights."""
        nn = self.torch.nn
        self.torch.manual_seed(1)
        return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3))

    def _trained_by_pytorch(self) -> list[float]:
        network = self.network()
        optimizer = self.torch.optim.SGD(network.parameters(), lr=0.1)
        losses = []
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = self.torch.nn.functional.cross_entropy(network(self.x), self.y)
            loss.backward()
            optimizer.step()
            losses.append(float(loss))
        return losses

    def loss(self, weights: Any, x: Any, y: Any) -> Any:
        """Return the loss of the network with these weights."""
        results = self.torch.func.functional_call(self.network_on_device, weights, (x,))
        return self.torch.nn.functional.cross_entropy(results, y)

    def weights(self) -> dict[str, Any]:
        """Return the weights of the network, on the device."""
        self.network_on_device = self.network().to(self.device)
        return {name: weight.detach() for name, weight in self.network_on_device.named_parameters()}

    def eager(self) -> float:
        """Run modules operation by operation."""
        worst = 0.0
        for name, (model, x) in self.models.items():
            result = model.to(self.device)(x.to(self.device))
            assert {each.platform for each in result.jax().devices()} == {self.platform()}
            worst = max(worst, difference(result.detach().cpu(), self.wanted[name]))
        return worst

    def platform(self) -> str:
        """Return the platform of JAX's default device."""
        import jax

        return str(jax.config.jax_default_device.platform)

    def compiled(self) -> float:
        """Run modules as one program each."""
        import torchax

        results = {
            name: torchax.compile(model.to(self.device))(x.to(self.device)) for name, (model, x) in self.models.items()
        }
        return max(difference(result.detach().cpu(), self.wanted[name]) for name, result in results.items())

    def training(self) -> float:
        """Train by JAX's gradients of PyTorch's loss."""
        from torchax import interop

        gradients = interop.jax_value_and_grad(self.loss)

        def step(weights: Any, x: Any, y: Any) -> Any:
            loss, slopes = gradients(weights, x, y)
            return loss, {name: weight - 0.1 * slopes[name] for name, weight in weights.items()}

        compiled = interop.jax_jit(step)
        weights, x, y = self.weights(), self.x.to(self.device), self.y.to(self.device)
        losses = []
        for _ in range(STEPS):
            loss, weights = compiled(weights, x, y)
            losses.append(float(loss))
        return difference(losses, self.wanted_losses)

    def optax(self) -> float:
        """Train with a training step of torchax and an optimizer of Optax."""
        import optax
        from torchax import interop, train

        def model(weights: Any, buffers: Any, x: Any) -> Any:
            return self.torch.func.functional_call(self.network_on_device, {**weights, **buffers}, (x,))

        optimizer = optax.sgd(0.1)
        step = interop.jax_jit(train.make_train_step(model, self.torch.nn.functional.cross_entropy, optimizer))
        weights, x, y = self.weights(), self.x.to(self.device), self.y.to(self.device)
        state = interop.call_jax(optimizer.init, weights)
        losses = []
        for _ in range(STEPS):
            loss, weights, state = step(weights, {}, state, x, y)
            losses.append(float(loss))
        return difference(losses, self.wanted_losses)

    def pt2(self) -> float:
        """Run a file of torch.export with ``pjrt run``."""
        inputs, results = self.file.with_name("x.npy"), self.file.with_name("y.npy")
        command = ["run", str(self.file), "--device", self.target, "-i", str(inputs), "-o", str(results)]
        subprocess.run([sys.executable, "-m", "pjrt", *command], check=True, capture_output=True)
        return difference(np.load(results), self.wanted["convolutions"])


def target_of(device: str) -> str:
    """Return the device for ``register`` and ``pjrt run``: a name, or the place of the scaffold's function."""
    if device != "mychip":
        return device
    folder = tempfile.mkdtemp()
    subprocess.run([sys.executable, "-m", "pjrt", "new-plugin", "mychip"], cwd=folder, check=True, capture_output=True)
    return f"{folder}/mychip/src/mychip/__init__.py:make_client"


def run_here(device: str) -> None:
    """Run all parts on a device, and print a row of the table."""
    warnings.simplefilter("ignore")
    parts = Parts(target_of(device))
    functions: list[Callable[[], float]] = [parts.eager, parts.compiled, parts.training, parts.optax, parts.pt2]
    cells = []
    for function in functions:
        worst = function()
        print(f"{device} {function.__name__}: {worst:.1e}", flush=True)
        assert worst < TOLERANCE, f"{function.__name__}: {worst:.1e} from PyTorch"
        cells.append(f"{worst:.0e}" if worst else "equal")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "torchax", "jax"))
    print(f"| `{device}` | {versions} | {' | '.join(cells)} |")


def main() -> None:
    if sys.argv[1:2] == ["--here"]:
        run_here(sys.argv[2])
        return
    failed = [
        device
        for device in sys.argv[1:] or DEVICES
        if subprocess.run([sys.executable, __file__, "--here", device], check=False).returncode
    ]
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
