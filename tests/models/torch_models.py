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
from torch._higher_order_ops.while_loop import while_loop
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


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.drop = nn.Linear(4, 4), nn.Linear(4, 4), nn.Dropout()

    def forward(self, x: Any) -> Any:
        chosen = torch.cond(x.sum() > 0, lambda x: (self.left(x).sin(), x + 1), lambda x: (self.right(x), 2 * x), (x,))
        return torch.cond(x[0, 0] > 0, lambda x: self.drop(x), lambda x: x[:, :4].cos(), (chosen[0],)), chosen[1]


def loop(x: Any) -> Any:
    limit = torch.tensor(5)
    return while_loop(lambda i, x: i < limit, lambda i, x: (i + 1, x * 1.5 - i), (torch.tensor(0), x))


def random_loop(x: Any) -> Any:
    return while_loop(lambda x: x.sum() < 5, lambda x: (x + torch.rand(3),), (x,))


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
        self.register_buffer("last", torch.zeros(3), persistent=False)  # written, and never read

    def forward(self, x: Any, y: Any) -> Any:
        self.count.add_(x)
        self.last.copy_(x)
        y.mul_(2).add_(self.count)
        return self.count * 2, y.sum()


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
    "left": (Branches(), (RANDOM(3, 4).abs(),), ({0: BATCH},)),
    "right": (Branches(), (-RANDOM(3, 4).abs(),), ({0: BATCH},)),
    "loop": (Function(loop), (RANDOM(3),), None),
    "dropout": (nn.Sequential(nn.Linear(4, 4), nn.Dropout()), (RANDOM(3, 4),), None),
    "bfloat16": (nn.Linear(8, 8).bfloat16(), (RANDOM(2, 8).bfloat16(),), None),
}

# The module, its arguments, and a part of the message.
REFUSED: dict[str, tuple[nn.Module, tuple[Any, ...], str]] = {
    "random": (Function(lambda x: torch.normal(x, 1.0)), (RANDOM(3),), "cannot lower the operations aten.normal"),
    "random loop": (Function(random_loop), (RANDOM(3),), "expected no random numbers in a while_loop"),
    "layers": (nn.LSTM(3, 4, 2, dropout=0.5), (RANDOM(5, 2, 3),), "expected aten.lstm.input without dropout"),
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


# Before torchax is imported: PyTorch cannot compile branches and loops after it.
def prepare(name: str) -> tuple[Any, Any]:
    """Return an exported model, and PyTorch's results."""
    module, arguments, dynamic = AGREEING[name]
    module.eval()
    return torch.export.export(module, arguments, dynamic_shapes=dynamic), module(*arguments)


def compare(name: str, device: str, program: Any, expected: Any) -> float:
    """Run a model on a device, and return the largest difference from PyTorch."""
    _, arguments, dynamic = AGREEING[name]
    shapes = [tuple(each.shape) for each in arguments]
    values = [as_numpy(each).astype(_dtype(each.dtype)) for each in arguments]
    with pjrt.load_model(program, device) as model:
        assert dynamic is None or model.parameters[0].is_dynamic
        assert [len(each.shape) for each in model.parameters] == [len(shape) for shape in shapes]
        results = list(map(np.asarray, leaves(model(*values))))
    wanted = leaves(expected)
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


def train_statistics(device: str) -> None:
    """Check that a batch normalization in training keeps its statistics, and that they can be set."""
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).train()
    x = RANDOM(2, 1, 5, 5)
    program = torch.export.export(module, (x,))
    first = {name: value.numpy().copy() for name, value in module.named_buffers()}
    with pjrt.load_model(program, device) as model:
        for _ in range(3):
            np.testing.assert_allclose(model(x.numpy()), as_numpy(module(x)), rtol=RELATIVE, atol=ABSOLUTE)
            state = {name: as_numpy(value) for name, value in module.named_buffers()}
            assert model.state.keys() == state.keys()
            for name, value in model.state.items():
                np.testing.assert_allclose(value, state[name], rtol=RELATIVE, atol=ABSOLUTE)
        model.set_state(first)
        assert model.state["1.num_batches_tracked"] == 0


def change_inputs(device: str) -> None:
    """Check that arguments are changed in place, and that buffers are."""
    module, x, y = Counting(), RANDOM(3), RANDOM(3)
    with pjrt.load_model(torch.export.export(module, (x, y)), device) as model:
        mine = y.numpy().copy()
        for _ in range(2):
            for result, wanted in zip(model(x.numpy(), mine), module(x, y), strict=True):
                np.testing.assert_allclose(result, wanted, rtol=RELATIVE, atol=ABSOLUTE)
            np.testing.assert_allclose(mine, y, rtol=RELATIVE, atol=ABSOLUTE)
        np.testing.assert_allclose(model.state["count"], module.count, rtol=RELATIVE, atol=ABSOLUTE)
        np.testing.assert_array_equal(model.state["last"], x)


def drop(device: str, branches: Any) -> None:
    """Check that dropout draws other numbers for each call, and the same for the same seed."""
    x = np.ones((50, 40), np.float32)
    program = torch.export.export(nn.Sequential(nn.Dropout(0.25), nn.Dropout2d(0.5)).train(), (torch.ones(1, 50, 40),))
    with pjrt.load_model(program, device) as model:
        first, second = (np.asarray(model(x[None]))[0] for _ in range(2))
        kept = first[first.any(1)]
        assert set(np.unique(kept)) == {np.float32(0), np.float32(1 / 0.75 / 0.5)}
        assert 0.2 < (kept == 0).mean() < 0.3
        assert 0.2 < first.any(1).mean() < 0.8
        assert not np.array_equal(first, second)
        model.set_state({"torch.random": [0, 0]})
        np.testing.assert_array_equal(np.asarray(model(x[None]))[0], first)
    with pjrt.load_model(branches, device) as model:
        ones = np.ones((6, 4), np.float32)
        seen = [np.asarray(model(ones)[0]) for _ in range(2)]
        assert all((each == 0).any() and (each != 0).any() for each in seen)
        assert not np.array_equal(*seen)


def refuse(name: str, program: Any) -> None:
    """Check that a model is refused with its message."""
    message = REFUSED[name][-1]
    with pytest.raises(pjrt.UnimplementedError, match=re.escape(message)):
        stablehlo.read_torch_export(program)


def main() -> None:
    warnings.simplefilter("ignore")
    agreeing = {name: prepare(name) for name in AGREEING}
    refused = {name: torch.export.export(*each[:2]) for name, each in REFUSED.items()}
    branches = torch.export.export(Branches().train(), (torch.ones(6, 4),))
    torch_export.load_torchax("run these tests")
    device = sys.argv[1]
    for name, (program, expected) in agreeing.items():
        print(f"{name}: at most {compare(name, device, program, expected):.1e} from PyTorch", flush=True)
    train_statistics(device)
    change_inputs(device)
    drop(device, branches)
    for name, program in refused.items():
        refuse(name, program)


if __name__ == "__main__":
    main()
