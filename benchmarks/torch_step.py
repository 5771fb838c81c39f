"""A training step of PyTorch's models: eager, by Inductor, and by ``torch.compile(backend="pjrt")``.

    python -m benchmarks.torch_step          # needs torch, torchax, transformers, and a compiler for Inductor

The tensors are the CPU's for all contestants. A step is forward, backward, AdamW and the loss as a number.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.side_by_side import Report, duration, main, table, take_turns

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "frameworks"))
from torch_tpu_job import MODELS

OURS = ("pjrt on cpu", "pjrt on reference")


def training_step(torch: Any, make: Callable[..., Any], compiled: Callable[..., Any]) -> Callable[[], float]:
    """Return a call that trains a new model by one step and returns its loss."""
    torch.manual_seed(0)
    model, inputs, loss_of = make(torch)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    forward = compiled(model)

    def step() -> float:
        optimizer.zero_grad()
        loss = loss_of(forward, *inputs)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def measure(quick: bool) -> Report:
    """Time the models of the tests, all contestants in turns."""
    import torch

    by_pjrt = functools.partial(torch.compile, backend="pjrt")
    ways = {
        "eager": lambda model: model,
        "Inductor": torch.compile,
        OURS[0]: lambda model: by_pjrt(model, options={"device": "cpu"}),
        OURS[1]: lambda model: by_pjrt(model, options={"device": "reference"}),
    }
    rows = []
    for name in list(MODELS)[: 1 if quick else None]:
        torch._dynamo.reset()
        steps = {way: training_step(torch, MODELS[name], compiled) for way, compiled in ways.items()}
        timings = take_turns(steps, rounds=3 if quick else 15, round_seconds=0.05 if quick else 0.3)
        for way in ways:
            ratios = [f"{timings[way].ratio_to(timings[other]):.2f}×" for other in ("eager", "Inductor")]
            rows.append((name, way, duration(timings[way].median), *ratios))
    about = f"torch {torch.__version__}, {torch.get_num_threads()} threads of PyTorch, {os.cpu_count()} processors."
    return Report(
        "A training step of PyTorch", about, [table(["model", "", "a step", "of eager", "of Inductor"], rows)]
    )


if __name__ == "__main__":
    main(measure)
