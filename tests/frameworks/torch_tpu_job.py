"""PyTorch's own device through TorchTPU, on devices of ours: an opt-in job, because its packages are 6 GB.

    python3.13 -m venv torchtpu && torchtpu/bin/pip install "torch==2.11.*" torch-tpu==0.2.0 transformers ".[xla]"
    torchtpu/bin/python tests/frameworks/torch_tpu_job.py                  # or with the name of one device
    torchtpu/bin/python tests/frameworks/torch_tpu_job.py reference llama  # or with that of one part, too

Each part runs in a subprocess, exits with tensors alive, and must end cleanly. All operators: ``torch_operators.py``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

DEVICES = ("reference", "cpu")
STEPS = 20
SECONDS = 600


# The models: each with its inputs, and a loss of both.


def mlp(torch: Any) -> tuple[Any, list[Any], Callable[..., Any]]:
    nn = torch.nn
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 5))
    inputs = [torch.randn(64, 20), torch.randint(0, 5, (64,))]
    return model, inputs, lambda model, x, y: nn.functional.cross_entropy(model(x), y)


def cnn(torch: Any) -> tuple[Any, list[Any], Callable[..., Any]]:
    nn = torch.nn
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 5)
    )
    inputs = [torch.randn(16, 3, 8, 8), torch.randint(0, 5, (16,))]
    return model, inputs, lambda model, x, y: nn.functional.cross_entropy(model(x), y)


def encoder(torch: Any) -> tuple[Any, list[Any], Callable[..., Any]]:
    nn = torch.nn
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(32, 5))
    inputs = [torch.randn(4, 12, 32), torch.randint(0, 5, (4,))]
    return model, inputs, lambda model, x, y: nn.functional.cross_entropy(model(x)[:, 0], y)


def llama(torch: Any) -> tuple[Any, list[Any], Callable[..., Any]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=256, num_key_value_heads=2, max_position_embeddings=128, **sizes))
    return model, [torch.randint(0, 256, (2, 16))], lambda model, ids: model(ids, labels=ids).loss


def gpt2(torch: Any) -> tuple[Any, list[Any], Callable[..., Any]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=4, **no_dropout))
    return model, [torch.randint(0, 256, (2, 16))], lambda model, ids: model(ids, labels=ids).loss


def unet(torch: Any) -> tuple[Any, list[Any], Callable[..., Any]]:
    """The denoiser of a diffusion model: times as sines, skips, attention, and what makes images smaller and larger."""
    nn, width = torch.nn, 8

    class Block(nn.Module):
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.norm, self.first = nn.GroupNorm(1, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
            self.time, self.second = nn.Linear(width, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
            self.skip = nn.Conv2d(inputs, outputs, 1)

        def forward(self, x: Any, time: Any) -> Any:
            y = self.first(nn.functional.silu(self.norm(x))) + self.time(time)[:, :, None, None]
            return self.skip(x) + self.second(nn.functional.silu(y))

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.down, self.up = nn.Conv2d(3, 8, 3, padding=1), Block(8, 16), Block(24, 8)
            self.smaller, self.leave = nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.Conv2d(8, 3, 3, padding=1)
            self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, x: Any, steps: Any) -> Any:
            angles = steps[:, None] * torch.arange(1, width // 2 + 1, device=steps.device)
            time = torch.cat([angles.sin(), angles.cos()], 1)
            high = self.enter(x)
            low = self.down(self.smaller(high), time)
            tokens = low.flatten(2).transpose(1, 2)
            low = low + self.attention(tokens, tokens, tokens, need_weights=False)[0].transpose(1, 2).reshape(low.shape)
            larger = nn.functional.interpolate(low, scale_factor=2.0, mode="nearest")
            return self.leave(self.up(torch.cat([larger, high], 1), time))

    inputs = [torch.randn(4, 3, 8, 8), torch.rand(4), torch.randn(4, 3, 8, 8)]
    return UNet(), inputs, lambda model, x, steps, noise: nn.functional.mse_loss(model(x, steps), noise)


MODELS = {f.__name__: f for f in (mlp, cnn, encoder, unet, llama, gpt2)}


def train(
    torch: Any, make: Callable[..., Any], device: Any, compiled: Callable[..., Any] | None = None
) -> tuple[list[float], float, Any]:
    """Return the losses of some steps of AdamW, the median seconds of a step, and the model."""
    torch.manual_seed(0)
    model, inputs, loss_of = make(torch)
    model, inputs = model.to(device), [each.to(device) for each in inputs]
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    forward = compiled(model) if compiled else model
    losses, seconds = [], []
    for _ in range(STEPS):
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss = loss_of(forward, *inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
    return losses, sorted(seconds)[len(seconds) // 2], model


def train_beside_the_cpu(torch: Any, device: Any, name: str) -> Any:
    expected, on_cpu, _ = train(torch, MODELS[name], "cpu")
    times = [f"torch's CPU {1e3 * on_cpu:.1f} ms"]
    if name == "mlp":
        times.append(f"inductor {1e3 * train(torch, MODELS[name], 'cpu', torch.compile)[1]:.1f} ms")
    for compiled in (None, torch.compile):
        losses, seconds, model = train(torch, MODELS[name], device, compiled)
        worst = max(abs(a - b) for a, b in zip(losses, expected, strict=True))
        times.append(
            f"{'compiled' if compiled else 'eager'} {1e3 * seconds:.1f} ms, at most {worst:.1e} from the CPU's losses"
        )
        assert worst < 2e-4, (losses, expected)
        assert losses[-1] < losses[0]
    print(f"    {losses[0]:.4f} to {losses[-1]:.4f}; a step: {'; '.join(times)}")
    return model


# What else a program does.


def generate(torch: Any, device: Any) -> Any:
    torch.manual_seed(0)
    model, (ids,), _ = llama(torch)
    expected = model.generate(ids[:, :4], max_new_tokens=8, do_sample=False)
    found = model.to(device).generate(ids[:, :4].to(device), max_new_tokens=8, do_sample=False)
    assert torch.equal(found.cpu(), expected)
    return model


def files(torch: Any, device: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.pt"
        model = torch.nn.Linear(3, 2).to(device)
        torch.save(model.state_dict(), path)
        assert torch.load(path)["weight"].device.type == "tpu"
        assert torch.equal(torch.load(path, map_location="cpu")["weight"], model.weight.cpu())
        other = torch.nn.Linear(3, 2).to(device)
        other.load_state_dict(torch.load(path))
        assert torch.equal(other.weight.cpu(), model.weight.cpu())
    return other


class Numbers:
    """Eight tensors, for workers of a data loader."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        import torch

        return torch.full((3,), float(index))


def loaders(torch: Any, device: Any) -> Any:
    torch.ones(3, device=device)  # the device is in use when the workers are made
    for method in ("fork", "spawn"):
        loader = torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=2, multiprocessing_context=method)
        assert sum(batch.to(device).sum().item() for batch in loader) == 84, method
    pinned = torch.utils.data.DataLoader(Numbers(), batch_size=2, pin_memory=True)
    assert sum(batch.to(device, non_blocking=True).sum().item() for batch in pinned) == 84


def precision(torch: Any, device: Any) -> Any:
    a = torch.randn(8, 8)
    with torch.autocast("tpu", dtype=torch.bfloat16):
        product = a.to(device) @ a.to(device)
    assert product.dtype == torch.bfloat16
    assert torch.allclose(product.cpu().float(), a @ a, rtol=5e-2, atol=1e-1)
    model = torch.nn.Linear(8, 1).to(device, torch.bfloat16)
    model(a.to(device, torch.bfloat16)).sum().backward()
    assert torch.isfinite(model.weight.grad.cpu().float()).all()
    return model


def random(torch: Any, device: Any) -> Any:
    def drawn() -> Any:
        torch.manual_seed(3)
        return torch.randn(1000, device=device).cpu()

    first, generator = drawn(), torch.Generator(device=device)
    assert torch.equal(first, drawn())
    assert not torch.equal(first, torch.randn(1000, device=device).cpu())
    assert abs(first.mean()) < 0.2
    assert 0.8 < first.std() < 1.2
    draws = [torch.rand(5, device=device, generator=generator.manual_seed(5)).cpu() for _ in range(2)]
    assert torch.equal(*draws)
    dropped = torch.nn.functional.dropout(torch.ones(1000, device=device), 0.5).cpu()
    assert 350 < (dropped == 0).sum() < 650


def fallback(torch: Any, device: Any) -> Any:
    import pjrt

    a = torch.randn(4, 4)
    s = (a @ a.T + torch.eye(4)).requires_grad_()
    on_device = s.detach().to(device).requires_grad_()
    for each in (s, on_device):
        torch.linalg.cholesky(each).sum().backward()
    assert torch.allclose(on_device.grad.cpu(), s.grad, atol=1e-4)
    counts = pjrt.frameworks.torch.fallback_counts()
    assert counts == {"aten::linalg_cholesky_ex.L": 1}, counts
    digits, mask = torch.arange(6.0, device=device), torch.tensor([True, False] * 3)
    assert torch.trace(digits.reshape(2, 3)).item() == 4.0
    assert digits[mask.to(device)].cpu().tolist() == [0.0, 2.0, 4.0]
    x = torch.randn(512, 512)
    place = x.to(device)
    times = []
    for function in (lambda: torch.trace(place), lambda: torch.trace(x)):
        function().item()
        begin = time.perf_counter()
        for _ in range(20):
            function().item()
        times.append(1e3 * (time.perf_counter() - begin) / 20)
    print("    torch.trace of 512×512, which TorchTPU lacks: {:.2f} ms, on the CPU alone {:.3f} ms".format(*times))


def memory(torch: Any, device: Any) -> Any:
    large = torch.ones(1 << 20, device=device)
    torch.accelerator.synchronize()
    assert torch.accelerator.memory_stats()["active_bytes.all.current"] >= 4 << 20
    return large


def profiled(torch: Any, device: Any) -> Any:
    with torch.profiler.profile() as profile:
        (torch.ones(3, device=device) + 1).cpu()
    assert "aten::add" in [event.key for event in profile.key_averages()]


def refusals(torch: Any, device: Any) -> Any:
    import pjrt

    for call, message in (
        (lambda: pjrt.frameworks.torch.register("reference", num_devices=3), "TorchTPU one device in a process"),
        (lambda: pjrt.frameworks.torch.register("no_such"), "no_such"),
        (lambda: pjrt.frameworks.torch.register(7), "expected the name of a device"),
    ):
        found = ""
        try:
            call()
        except pjrt.PjrtError as error:
            found = error.message
        assert message in found, (message, found)


PARTS: dict[str, Callable[[Any, Any], Any]] = {
    **{name: (lambda torch, device, name=name: train_beside_the_cpu(torch, device, name)) for name in MODELS},
    **{f.__name__: f for f in (generate, files, loaders, precision, random, fallback, memory, profiled, refusals)},
}


# How the device is given to PyTorch.


def _run(code: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code],
        capture_output=True, text=True, timeout=SECONDS, env={**os.environ, **variables}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    return done.stdout


USE = """
x = torch.arange(4.0).to("tpu")
assert torch.compile(lambda x: (x * 2 + 1).sum())(x).item() == 16, x
"""
WAYS = {
    "before torch": "import pjrt; pjrt.frameworks.torch.register({device!r}); import torch" + USE,
    "after torch": "import torch, pjrt; pjrt.frameworks.torch.register({device!r})" + USE,
    "options": "import torch, pjrt; pjrt.frameworks.torch.register({device!r}, num_devices=2)" + USE,
    "environment": "import torch" + USE,
    "library": "import pjrt; pjrt.frameworks.torch.register({library!r}); import torch" + USE,
    "client": """
import pjrt, torch
device = pjrt.frameworks.torch.register(pjrt.client({device!r}))
x = torch.arange(4.0).to(device)
assert (x * 2 + 1).sum().item() == 16
try:
    torch.compile(lambda x: x * 2)(x)
except Exception as error:
    assert "torch.compile cannot use the device" in str(error), error
else:
    raise AssertionError("compiled")
""",
}


def ways(device: str) -> None:
    """Try each way to name a device."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "libdevice.so"
        subprocess.run(
            [sys.executable, "-m", "pjrt", "export", device, "-o", str(library)], check=True, stdout=subprocess.DEVNULL
        )
        for way, code in WAYS.items():
            _run(code.format(device=device, library=str(library)), PJRT_TORCH=device if way == "environment" else "")
            print(f"    {way}")


def run_part(device: str, part: str) -> None:
    import pjrt

    place = pjrt.frameworks.torch.register(device)
    import torch

    global alive
    alive = PARTS[part](torch, place), torch.ones(3, device=place) + 1


def main(devices: Sequence[str], parts: Sequence[str]) -> int:
    failed = count = 0
    for device in devices:
        for part in parts:
            count += 1
            begin = time.monotonic()
            print(f"{device}: {part}", flush=True)
            try:
                if part == "ways":
                    ways(device)
                else:
                    command = [sys.executable, "-X", "faulthandler", __file__, "--part", device, part]
                    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
                    sys.stdout.write(
                        "".join(line + "\n" for line in done.stdout.splitlines() if line.startswith("    "))
                    )
                    assert done.returncode == 0, (done.returncode, done.stderr[-3000:])
            except (AssertionError, subprocess.TimeoutExpired, subprocess.CalledProcessError) as problem:
                failed += 1
                print(f"    FAILED: {problem}")
            print(f"    {time.monotonic() - begin:.0f} s", flush=True)
    print(f"{count - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--part"]:
        run_part(*sys.argv[2:])
    else:
        sys.exit(main(sys.argv[1:2] or DEVICES, sys.argv[2:] or ("ways", *PARTS)))
