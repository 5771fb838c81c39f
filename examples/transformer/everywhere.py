"""One training of a transformer in four places, with the same losses: a notebook, cell by cell.

    python examples/transformer/everywhere.py [LAUNCHER]

The places are eight devices of this process, a job of four processes with two devices each, a server with eight
devices, and a cluster of four workers with two devices each. LAUNCHER starts the workers: ``local``, the default, or
``ray``.
The training in ``transformer.py`` is JAX without a change.
"""

# %% The devices: before JAX is first used.
import atexit
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import pjrt

launcher = sys.argv[1] if len(sys.argv) > 1 else "local"
here = Path(__file__).parent

pjrt.frameworks.jax.register("cpu", num_devices=8, platform="one_process")

serve = [sys.executable, "-m", "pjrt", "serve", "cpu", "--option", "num_devices=8"]
server = subprocess.Popen(serve, stdout=subprocess.PIPE, text=True)
atexit.register(server.terminate)
address = server.stdout.readline().split()[-1]
pjrt.frameworks.jax.connect(address, platform="server", make_default=False)

cluster = pjrt.cluster(hosts=4, device="cpu", num_devices=2, launcher=launcher)
pjrt.frameworks.jax.register(cluster, platform="cluster")

# %% The training on three of them, in this process.
import jax  # noqa: E402
from transformer import train  # noqa: E402

losses = {name: list(train(jax.devices(name))) for name in ("one_process", "server", "cluster")}

# %% The training as a job: the same file, in four processes.
launch = [sys.executable, "-m", "pjrt", "launch", "-n", "4", str(here / "transformer.py")]
devices = {"PJRT_JAX_DEVICES": "cpu", "PJRT_OPTIONS_CPU": "num_devices=2", "JAX_PLATFORMS": "pjrt_cpu"}
job = subprocess.run(launch, env={**os.environ, **devices}, stdout=subprocess.PIPE, text=True, check=True)
lines = [line.split() for line in job.stdout.splitlines()]
losses["job"] = [float(value) for process, word, value, *_ in lines if (process, word) == ("[0]", "loss")]

# %% The losses.
for name, values in losses.items():
    print(f"{name:12}", *(f"{value:.7f}" for value in values))
    np.testing.assert_allclose(values, losses["one_process"], rtol=1e-6)

# %% The end.
cluster.close()
