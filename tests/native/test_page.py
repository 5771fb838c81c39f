"""The page of drivers in C: its steps, on a new package, make a chip with a queue and a fallback."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pjrt import native
from pjrt.conformance import check_plugin

PAGE = (Path(__file__).parents[2] / "docs" / "native.md").read_text()
JAX = """
import sys
import jax, jax.numpy as jnp, numpy as np, pjrt

device = jax.devices(pjrt.frameworks.jax.register(sys.argv[1], platform="mychip3"))[0]
x = y = jax.device_put(np.arange(6, dtype=np.float32).reshape(2, 3), device)
for _ in range(100):
    y = y * x - x                      # one behind the other in the queue
print(np.asarray(jnp.tanh(x @ x.T) + x.sum()).round(3).tolist(), np.asarray(y)[0, 1])
"""


@pytest.mark.full
def test_the_steps_make_a_chip(tmp_path: Path) -> None:
    assert "\n$ pjrt new-plugin mychip3 --driver\n" in PAGE
    name = "chip_of_the_page"  # a package that is nowhere installed
    subprocess.run([sys.executable, "-m", "pjrt", "new-plugin", name, "--driver"], check=True, cwd=tmp_path, timeout=60)
    source = tmp_path / name / "src" / name
    (fallback,) = re.findall(r"^ {4}```python\n(.*?)^ {4}```", PAGE, re.DOTALL | re.MULTILINE)
    (patch,) = re.findall(r"^```diff\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    with (source / "compiler.py").open("a") as compiler:
        compiler.write(re.sub(r"^ {4}", "", fallback, flags=re.MULTILINE))
    (tmp_path / "queue.patch").write_text(patch.replace("mychip3", name))
    subprocess.run(["patch", "-p0", "-s", "-i", "queue.patch"], check=True, cwd=tmp_path, timeout=60)
    driver = tmp_path / "driver.so"
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", driver, "-lpthread"]
    command = [*shlex.split(os.environ.get("CC", "gcc")), source / "driver.c", *flags]
    subprocess.run(command, check=True, timeout=240)
    library = native.write_library(tmp_path / "chip.so", f"{source / 'compiler.py'}:compile", driver=driver)
    done = subprocess.run([sys.executable, "-c", JAX, library], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "[[16.0, 16.0], [16.0, 16.0]] -99.0"
    report = check_plugin(library, filters=["buffer.ready", "buffer.copy_before_ready"], jobs=2)
    assert report.passes_strictly, str(report)
