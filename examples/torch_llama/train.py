"""Train a small Llama on a device of this package, with stock PyTorch: ``torch.compile(llama, backend="pjrt")``.

    pip install torch torchax jax transformers ".[xla]"
    python examples/torch_llama/train.py                     # on `reference`
    python examples/torch_llama/train.py cpu --steps 100

The text is this file. The model reads and writes bytes, and its weights begin with random numbers.
"""

import argparse
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

LENGTH = 32


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("device", nargs="?", default="reference")
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()

    torch.manual_seed(0)
    text = torch.tensor(list(Path(__file__).read_bytes()))
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    llama = LlamaForCausalLM(LlamaConfig(vocab_size=256, num_key_value_heads=2, **sizes))
    optimizer = torch.optim.AdamW(llama.parameters(), 3e-3)
    compiled = torch.compile(llama, backend="pjrt", options={"device": args.device})

    for step in range(args.steps):
        starts = torch.randint(0, len(text) - LENGTH, (8,))
        ids = torch.stack([text[start : start + LENGTH] for start in starts])
        optimizer.zero_grad()
        loss = compiled(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        if step % 10 == 0 or step == args.steps - 1:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)

    written = llama.generate(text[None, :16], max_new_tokens=32, do_sample=False)
    print(repr(bytes(written[0].tolist()).decode(errors="replace")))


if __name__ == "__main__":
    main()
