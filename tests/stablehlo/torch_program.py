"""A program of ``torch.export``, and its conversion, which is stored: tests read it without PyTorch.

python tests/stablehlo/torch_program.py         # store it again; needs torch, torchax and jax
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pjrt.stablehlo.files.torch_export import Converted, convert

STORED = Path(__file__).parent / "data" / "torch_export"
WEIGHT = np.arange(12, dtype=np.float32).reshape(3, 4)
BIAS = np.array([1, -1, 0.5], np.float32)
SHIFT = np.array([1, 2, 3], np.float32)
FACTOR = 3.0
MOST = 16


def exported_program() -> Any:
    """Return a linear layer with a dynamic batch, nested arguments, a number, None, and weights of several types."""
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 3)
            self.linear.load_state_dict({"weight": torch.from_numpy(WEIGHT), "bias": torch.from_numpy(BIAS)})
            self.register_buffer("scale", torch.tensor(2.0, dtype=torch.bfloat16))

        def forward(self, batch: Any, factor: float, mask: Any = None, *, shift: Any) -> Any:
            y = self.linear(batch["x"]) * self.scale.float() * factor + shift
            return {"y": y, "rest": [batch["ids"] * 2, None, 7]}

    b = torch.export.Dim("b", max=MOST)
    batch = {"x": torch.zeros(2, 4), "ids": torch.zeros(2, dtype=torch.int64)}
    dynamic = {"batch": {"x": {0: b}, "ids": {0: b}}, "factor": None, "mask": None, "shift": None}
    keywords = {"shift": torch.from_numpy(SHIFT)}
    return torch.export.export(Model().eval(), (batch, FACTOR, None), keywords, dynamic_shapes=dynamic)


def arguments(batch: int) -> dict[str, np.ndarray]:
    """Return the first argument of the program."""
    values = np.random.default_rng(batch)
    return {"x": values.standard_normal((batch, 4)).astype(np.float32), "ids": values.integers(0, 9, batch)}


def expected(x: np.ndarray) -> np.ndarray:
    """Return the result ``y``."""
    return (x @ WEIGHT.T + BIAS) * 2 * FACTOR + SHIFT


def stored() -> Converted:
    """Return the program, as it was converted."""
    return Converted.read(STORED)


if __name__ == "__main__":
    STORED.mkdir(exist_ok=True)
    convert(exported_program()).write(STORED)
