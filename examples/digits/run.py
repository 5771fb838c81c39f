"""Run the exported digit classifier on the held-out digits, with `pjrt` alone: no JAX, no scikit-learn.

pip install "pjrt[xla]"
python run.py
"""

import statistics
import time
from pathlib import Path

import numpy as np

import pjrt

HERE = Path(__file__).parent
REPEATS = 50


def main() -> None:
    """Compile the program, classify every held-out digit, and print how many were right and how long it took."""
    labels = np.load(HERE / "labels.npy")
    with np.load(HERE / "weights.npz") as weights:
        arguments = [weights[name] for name in weights.files]  # saved in the order in which the program takes them
    arguments.append(np.load(HERE / "images.npy"))

    started = time.perf_counter()
    client = pjrt.client("cpu")
    executable = client.compile((HERE / "digits.stablehlo").read_bytes())
    compiled = time.perf_counter()
    (scores,) = executable(*arguments)
    predictions = np.asarray(scores).argmax(axis=1)
    first = time.perf_counter()

    right = int((predictions == labels).sum())
    print(f"{right} of {len(labels)} held-out digits recognized: accuracy {right / len(labels):.4f}")

    on_device = [client.buffer_from_host(argument) for argument in arguments]  # so that the weights travel once
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        (scores,) = executable(*on_device)
        scores.ready().result()
        seconds.append(time.perf_counter() - start)
    print(f"client and compilation {1e3 * (compiled - started):.1f} ms, first run {1e3 * (first - compiled):.1f} ms")
    print(f"one run over all {len(labels)} digits {1e3 * statistics.median(seconds):.2f} ms (median of {REPEATS})")


if __name__ == "__main__":
    main()
