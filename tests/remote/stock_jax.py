"""Run scripts of ``tests/frameworks`` with stock JAX on a served device: a script for a process without this package.

    python stock_jax.py ADDRESS [checks] [sharded] [training]

The devices are those of the server at the address, by jaxlib's own client. It prints a JSON object with the results of
each script, by default of all. The results of ``training`` are the losses on the served devices and on JAX's own.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any


class WithoutPjrt(MetaPathFinder):
    """Finds no module of this package, wherever it is installed."""

    def find_spec(self, name: str, *_: Any) -> None:
        if name.partition(".")[0] == "pjrt":
            raise ModuleNotFoundError(f"this process is without {name}")


sys.meta_path.insert(0, WithoutPjrt())
sys.path.insert(0, str(Path(__file__).parents[1] / "frameworks"))
os.environ["IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"] = "true"

PLATFORM = "served"


def main(address: str, *names: str) -> None:
    import sharded_programs  # before JAX: it sets the number of JAX's own devices

    # isort: split
    import jax
    import jax_checks
    import transformer_job
    from jax.extend import backend
    from jax.extend.backend import ifrt_proxy

    def checks() -> Any:
        return jax_checks.results(PLATFORM)

    def sharded() -> Any:
        return sharded_programs.differences(sharded_programs.check_by_jax, sharded_programs.mesh_of(PLATFORM))

    def training() -> Any:
        return [list(transformer_job.train(jax.devices(name))) for name in (PLATFORM, "cpu")]

    options = ifrt_proxy.ClientConnectionOptions()
    options.connection_timeout_in_seconds = 60
    backend.register_backend_factory(PLATFORM, lambda: ifrt_proxy.get_client(address, options), priority=-1000)
    scripts = (checks, sharded, training)
    print(json.dumps({script.__name__: script() for script in scripts if not names or script.__name__ in names}))
    assert "pjrt" not in sys.modules


if __name__ == "__main__":
    main(*sys.argv[1:])
