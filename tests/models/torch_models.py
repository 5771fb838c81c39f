"""Models of PyTorch, converted from ``torch.export`` and compared with PyTorch's own results.

    python tests/models/torch_models.py reference        # or another device; needs torch, torchax and jax

As a test, one process converts them all, with torchax imported: PyTorch and JAX take seconds to start.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import pjrt
from pjrt import stablehlo
from pjrt.stablehlo.files import torch_export

RELATIVE, ABSOLUTE = 1e-4, 2e-5


class ResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Any) -> Any:
        y = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(self.second_norm(self.second(y)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 7, 2, 3)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.blocks = nn.Sequential(ResidualBlock(8, 16, 2))
        self.head = nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        y = self.blocks(self.pool(functional.relu(self.stem(x))))
        return self.head(functional.adaptive_avg_pool2d(y, 1).flatten(1))


class TransformerBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(x)


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 32), nn.Embedding(64, 32)
        self.blocks = nn.Sequential(TransformerBlock(32, 4))
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Any) -> Any:
        x = self.blocks(self.tokens(ids) + self.places(torch.arange(ids.shape[1])))
        return {"logits": self.head(x), "last": (x[:, -1], None)}


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Any) -> Any:
        return self.function(*arguments)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: Any) -> Any:
        self.count.add_(x)
        return self.count * 2


def linear_algebra(x: Any) -> Any:
    return torch.linalg.inv(x), torch.linalg.cholesky(x @ x.T), torch.linalg.qr(x)[1].abs(), torch.linalg.svd(x)[1]


def types(x: Any) -> Any:
    return x.half(), x.double().sum(), x.to(torch.int8), x > 0, x.long() // 2, x.to(torch.complex64) * 1j


def choices(x: Any) -> Any:
    values, order = x.topk(3)
    return values, order, torch.sort(x, descending=True)[1], x.argmax(1), x.cumsum(1), torch.where(x > 0, x, 0.0)


def images(x: Any) -> Any:
    larger = functional.interpolate(x, scale_factor=2, mode="bilinear")
    return larger, functional.pad(x, (1, 1, 1, 1), mode="reflect"), functional.avg_pool2d(x, 2)


BATCH, LENGTH = torch.export.Dim("batch"), torch.export.Dim("length", max=64)
RANDOM = torch.manual_seed(0) and torch.randn

# The module, its arguments, and their dynamic sizes.
AGREEING: dict[str, tuple[nn.Module, tuple[Any, ...], Any]] = {
    "resnet": (ResNet(), (RANDOM(2, 3, 32, 32),), ({0: BATCH},)),
    "transformer": (LanguageModel(), (torch.randint(0, 50, (2, 16)),), ({0: BATCH, 1: LENGTH},)),
    "lstm": (nn.LSTM(8, 16, batch_first=True), (RANDOM(2, 5, 8),), None),
    "transposed": (nn.Sequential(nn.GroupNorm(2, 4), nn.ConvTranspose2d(4, 3, 4, 2, 1)), (RANDOM(1, 4, 8, 8),), None),
    "images": (Function(images), (RANDOM(1, 2, 8, 8),), None),
    "types": (Function(types), (RANDOM(3, 8),), None),
    "choices": (Function(choices), (RANDOM(3, 7),), None),
    "linear_algebra": (Function(linear_algebra), (RANDOM(4, 4),), None),
    "unused argument": (Function(lambda x, _: 2 * x), (RANDOM(3), RANDOM(2)), None),
    "unused weight": (nn.BatchNorm1d(4), (RANDOM(3, 4),), None),  # it counts batches in training alone
    "bfloat16": (nn.Linear(8, 8).bfloat16(), (RANDOM(2, 8).bfloat16(),), None),
}

# The module, its arguments, and a part of the message.
REFUSED: dict[str, tuple[nn.Module, tuple[Any, ...], str]] = {
    "random": (nn.Dropout().train(), (RANDOM(3),), "torchax cannot lower the operations aten.rand.default"),
    "state": (Counting(), (RANDOM(3),), "changes its state or inputs (count)"),
    "training": (nn.BatchNorm1d(4).train(), (RANDOM(3, 4),), "export the model after model.eval()"),
    "unknown sizes": (Function(lambda x: x[x > 0]), (RANDOM(4),), "torchax cannot lower"),
    "text": (Function(lambda x: (x, "text")), (RANDOM(4),), "expected arrays, numbers and None as results"),
}


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return leaves(list(value.values()))
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in leaves(item)]
    return [] if value is None else [value]


def as_numpy(tensor: Any) -> np.ndarray:
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().numpy()


def compare(name: str, device: str) -> float:
    """Run a model on a device and in PyTorch, and return the largest difference."""
    module, arguments, dynamic = AGREEING[name]
    module.eval()
    program = torch.export.export(module, arguments, dynamic_shapes=dynamic)
    shapes = [tuple(each.shape) for each in arguments]
    values = [as_numpy(each).astype(_dtype(each.dtype)) for each in arguments]
    with pjrt.load_model(program, device) as model:
        assert dynamic is None or model.parameters[0].is_dynamic
        assert [len(each.shape) for each in model.parameters] == [len(shape) for shape in shapes]
        results = list(map(np.asarray, leaves(model(*values))))
    wanted = leaves(module(*arguments))
    worst = 0.0
    for result, want in zip(results, wanted, strict=True):
        assert result.dtype == _dtype(want.dtype), name
        wide = np.complex128 if want.is_complex() else np.float64
        ours, theirs = result.astype(wide), as_numpy(want).astype(wide)
        coarse = want.dtype in (torch.bfloat16, torch.float16)
        np.testing.assert_allclose(ours, theirs, rtol=1e-2 if coarse else RELATIVE, atol=1e-2 if coarse else ABSOLUTE)
        worst = max(worst, float(np.max(np.abs(ours - theirs), initial=0.0)))
    return worst


def _dtype(dtype: torch.dtype) -> np.dtype[Any]:
    return np.dtype(str(dtype).removeprefix("torch."))


def refuse(name: str) -> None:
    """Check that a model is refused with its message."""
    module, arguments, message = REFUSED[name]
    program = torch.export.export(module, arguments)
    with pytest.raises(pjrt.UnimplementedError, match=re.escape(message)):
        stablehlo.read_torch_export(program)


def main() -> None:
    warnings.simplefilter("ignore")
    torch_export.load_torchax("run these tests")
    for name in AGREEING:
        print(f"{name}: at most {compare(name, sys.argv[1]):.1e} from PyTorch", flush=True)
    for name in REFUSED:
        refuse(name)


if __name__ == "__main__":
    main()
