"""The transformer of ``examples/transformer``, trained on all devices of a job.

Nothing in it is written for this package but the lines that register the device:

    python tests/frameworks/transformer_job.py reference 8                        # one process with eight devices
    python tests/frameworks/transformer_job.py reference 2 127.0.0.1:7000 4 RANK  # one of four processes with two

It prints the loss of each step. ``DEVICE`` may be ``FILE.py:FUNCTION``, a function that makes clients.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "transformer"))
from transformer import train

__all__ = ["train"]


def main(device: str, num_devices: str, *job: str) -> None:
    """Register the device, and train."""
    import pjrt

    platform = pjrt.frameworks.jax.register(device, platform="mine", num_devices=int(num_devices))
    jax.config.update("jax_platforms", platform)
    if job:
        address, processes, rank = job
        jax.distributed.initialize(address, int(processes), int(rank))
    print("devices", len(jax.devices()), len(jax.local_devices()), flush=True)
    for value in train(jax.devices()):
        print("loss", value, flush=True)
    if job:
        jax.distributed.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
